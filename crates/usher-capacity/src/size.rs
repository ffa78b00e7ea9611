//! Size that a metric asks for, computed like the Kubernetes HPA.

use super::amount::Amount;

/// A metric over a group's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredMetric {
    /// Sum over the ready pods with a value, and values outside of pods.
    pub sum: Amount,
    /// Number of pods with a value.
    pub count: u32,
    /// Ready pods without the number.
    pub missing: u32,
    /// Unready pods.
    pub unready: u32,
}

/// Direction of a sum from that of pods at their target.
fn direction(sum: Amount, at_target: Amount) -> std::cmp::Ordering {
    sum.cmp(&at_target)
}

/// Pods that a metric asks for, with `current` pods and a `target` per pod.
///
/// Ready pods without a value count as at their target for scale-down and as zero for scale-up, unready ones
/// as zero for scale-up; neither reverses the direction. Within `tolerance` percent, inclusive, nothing
/// changes. `None` without any value.
pub fn per_pod(measured: &MeasuredMetric, target: Amount, current: u32, tolerance: u32) -> Option<u32> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let MeasuredMetric { sum, count, missing, unready } = *measured;
    if count == 0 && sum <= Amount::ZERO {
        return None;
    }
    let way = direction(sum, target * count);
    let unready = if way == Greater { unready } else { 0 };
    if missing == 0 && unready == 0 {
        let keeps = count > 0 && sum.is_within(target * count, tolerance);
        return Some(if keeps { current } else { sum.ceil_div(target) });
    }
    // Assumed load of pods without a value.
    let sum = if way == Greater { sum } else { sum + target * missing };
    let count = count + missing + unready;
    let after = direction(sum, target * count);
    let turned = matches!((way, after), (Less, Greater) | (Greater, Less));
    if turned || sum.is_within(target * count, tolerance) {
        return Some(current);
    }
    let asked = sum.ceil_div(target);
    Some(match after {
        Less => asked.min(current),
        Equal => current,
        Greater => asked.max(current),
    })
}

/// Pods that a metric outside of pods asks for: value divided by target.
pub fn external(value: Amount, target: Amount, current: u32, tolerance: u32) -> u32 {
    let keeps = current > 0 && value.is_within(target * current, tolerance);
    if keeps { current } else { value.ceil_div(target) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(value: f64) -> Amount {
        Amount::of(value).unwrap()
    }

    #[test]
    fn sizes_by_pods() {
        let table = [
            // sum, with, without, unready, current → asked; the target is 4, the tolerance 10
            (16.0, 4, 0, 0, 4, Some(4)),
            (17.6, 4, 0, 0, 4, Some(4)),
            (17.7, 4, 0, 0, 4, Some(5)),
            (14.4, 4, 0, 0, 4, Some(4)),
            (14.3, 4, 0, 0, 4, Some(4)),
            (12.0, 4, 0, 0, 4, Some(3)),
            (0.0, 4, 0, 0, 4, Some(0)),
            (40.0, 4, 0, 0, 4, Some(10)),
            (0.0, 0, 4, 0, 4, None),
            (0.0, 0, 0, 0, 0, None),
            // Two without: at their target on the way down …
            (2.0, 2, 2, 0, 4, Some(3)),
            (7.0, 2, 2, 0, 4, Some(4)),
            // … and none on the way up, which may turn it around.
            (20.0, 2, 2, 0, 4, Some(5)),
            (12.0, 2, 2, 0, 4, Some(4)),
            (17.0, 2, 2, 0, 4, Some(4)),
            (8.0, 2, 2, 0, 4, Some(4)),
            // Those that start count on the way up only.
            (20.0, 2, 0, 3, 5, Some(5)),
            (40.0, 2, 0, 3, 5, Some(10)),
            (4.0, 2, 0, 3, 5, Some(1)),
            // What waits, before there is a pod, or while the first one starts.
            (40.0, 0, 0, 0, 0, Some(10)),
            (40.0, 0, 0, 1, 1, Some(10)),
            (2.0, 0, 0, 3, 3, Some(3)),
        ];
        for (sum, count, missing, unready, current, expected) in table {
            let measured = MeasuredMetric { sum: amount(sum), count, missing, unready };
            assert_eq!(per_pod(&measured, amount(4.0), current, 10), expected, "{measured:?} {current}");
        }
    }

    #[test]
    fn sizes_from_outside() {
        let table = [
            (10.5, 10, 10),
            (11.0, 10, 10),
            (11.1, 10, 12),
            (9.0, 10, 10),
            (8.9, 10, 9),
            (1.05, 10, 2),
            (0.0, 3, 0),
            (0.0, 0, 0),
            (0.1, 0, 1),
        ];
        for (value, current, expected) in table {
            assert_eq!(external(amount(value), amount(1.0), current, 10), expected, "{value} {current}");
        }
    }
}
