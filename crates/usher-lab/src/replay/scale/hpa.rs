//! The Kubernetes HPA with its defaults: what a policy is compared with.
//!
//! Every 15 s it asks for `ceil(pods × mean ÷ target)` pods, the most that any metric asks for, unless
//! all are within 10 % of their targets. It grows by 4 pods or by 100 %, whichever is more, and shrinks to the
//! most that was asked for in the last five minutes. It ticks as often as its limits' periods are long,
//! so that each tick has limits of its own. Pods that start count as having none of a metric on the way
//! up (Kubernetes, "Horizontal Pod Autoscaling").

use std::collections::VecDeque;
use std::time::Duration;

use super::seen::Seen;
use usher_capacity::amount::Amount;
use usher_capacity::policy::{Range, Target};
use usher_capacity::size::{self, MeasuredMetric};

/// Between two ticks.
pub(super) const INTERVAL: Duration = Duration::from_secs(15);
/// Distance of a metric from its target that changes nothing, in percent.
const TOLERANCE: u32 = 10;
/// Pods that it may add in a tick, if that is more than 100 %.
const MOST_ADDED: u32 = 4;
/// For how long what was asked for keeps it from shrinking.
pub(super) const STABILIZATION: Duration = Duration::from_secs(300);

/// An HPA.
#[derive(Clone, Debug)]
pub(in crate::replay) struct Hpa {
    range: Range,
    metrics: Vec<Target>,
    /// Sizes that the metrics asked for within the stabilization window, and when.
    asked: VecDeque<(Duration, u32)>,
}

impl Hpa {
    /// HPA with these metrics, within these bounds.
    pub(in crate::replay) fn new(range: Range, metrics: Vec<Target>) -> Self {
        Self { range, metrics, asked: VecDeque::new() }
    }

    /// Number of pods that there should be.
    pub(super) fn size(&mut self, seen: &Seen, now: Duration) -> u32 {
        let Range { min, max } = self.range;
        let current = seen.asked;
        let asks = self.metrics.iter().filter_map(|metric| {
            let values = seen
                .pods
                .iter()
                .map(|pod| metric.signal.and_then(|signal| pod.get(signal)).copied().unwrap_or_default());
            let sum = Amount::of(values.sum::<f64>()).unwrap_or_default();
            let count = seen.pods.len() as u32;
            let measured = MeasuredMetric { sum, count, missing: 0, unready: seen.starting };
            size::per_pod(&measured, metric.target, current, TOLERANCE)
        });
        let Some(asked) = asks.max() else { return current.clamp(min, max) };
        let asked = asked.clamp(min, max);
        self.asked.push_back((now, asked));
        while self.asked.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= STABILIZATION) {
            self.asked.pop_front();
        }
        let size = if asked > current {
            let limit = current.saturating_add(MOST_ADDED).max(current.saturating_mul(2));
            asked.min(limit)
        } else {
            let most = self.asked.iter().map(|(_, asked)| *asked).max().unwrap_or(asked);
            most.min(current)
        };
        size.clamp(min, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    /// The size at ticks with these values of each pod; all pods serve at once.
    fn sizes(start: u32, values: &[f64]) -> Vec<u32> {
        let target = Target { name: "queue_depth".to_owned(), signal: Some(0), target: Amount::whole(4) };
        let mut hpa = Hpa::new(Range { min: 1, max: 20 }, vec![target]);
        let mut current = start;
        let tick = |(tick, value): (usize, &f64)| {
            let pods = (0..current).map(|_| Box::from([*value])).collect();
            let seen = Seen { asked: current, starting: 0, pods };
            current = hpa.size(&seen, S(tick as u64 * 15));
            current
        };
        values.iter().enumerate().map(tick).collect()
    }

    #[test]
    fn hpa_scales_the_mean_to_the_target() {
        assert_eq!(sizes(4, &[5.0]), [5]);
        assert_eq!(sizes(4, &[4.4, 3.6, 4.5]), [4, 4, 5], "within a tenth it stays");
        // 4 more, then twice as many, then the bound.
        assert_eq!(sizes(2, &[100.0, 100.0, 100.0]), [6, 12, 20]);
    }

    #[test]
    fn hpa_shrinks_after_five_minutes_of_lower_demand() {
        let mut values = vec![8.0];
        values.extend([1.0; 21]);
        let sizes = sizes(4, &values);
        assert_eq!(sizes[..20], [8; 20]);
        assert_eq!(sizes[20], 2, "300 s after it asked for 8");
    }

    #[test]
    fn starting_pods_count_as_zero_load() {
        let target = Target { name: "queue_depth".to_owned(), signal: Some(0), target: Amount::whole(4) };
        let mut hpa = Hpa::new(Range { min: 0, max: 20 }, vec![target]);
        let seen = |starting, value| Seen { asked: 2 + starting, starting, pods: vec![[value].into(); 2] };
        assert_eq!(hpa.size(&seen(3, 10.0), S(0)), 5, "20 in all are 4 each");
        assert_eq!(hpa.size(&seen(3, 16.0), S(15)), 8);
        let nobody = Seen { asked: 3, starting: 3, pods: Vec::new() };
        assert_eq!(hpa.size(&nobody, S(30)), 3, "it keeps what there is");
    }
}
