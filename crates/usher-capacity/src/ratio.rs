//! Hard ratio of two roles: the cheapest pair of counts that satisfies it (as `ratioConstraint` of kthena's
//! AutoscalingPolicy).

use std::cmp::Ordering;

use super::coordinate::gcd;
use super::share::Bounds;

/// A ratio of whole numbers of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    numerator: u64,
    denominator: u64,
}

impl Fraction {
    /// Parses `1:4`, `1/4`, `0.25` or `2`.
    ///
    /// # Errors
    /// A message that shows the notation.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = || format!("{text:?} is not a ratio; write for example \"1:4\" or 0.25");
        let (numerator, denominator) = match text.split_once([':', '/']) {
            Some((above, below)) => (decimal(above).ok_or_else(refuse)?, decimal(below).ok_or_else(refuse)?),
            None => (decimal(text).ok_or_else(refuse)?, (1, 1)),
        };
        // (a ÷ b) ÷ (c ÷ d)
        let above = u128::from(numerator.0) * u128::from(denominator.1);
        let below = u128::from(numerator.1) * u128::from(denominator.0);
        if below == 0 {
            return Err(format!("{text:?} divides by zero; write for example \"1:4\" or 0.25"));
        }
        let divisor = gcd(above, below).max(1);
        let part = |value: u128| u64::try_from(value / divisor).map_err(|_| refuse());
        Ok(Self { numerator: part(above)?, denominator: part(below)? })
    }

    /// Returns `true` if zero.
    pub fn is_zero(self) -> bool {
        self.numerator == 0
    }

    /// `count` times this, rounded up.
    fn times_up(self, count: u32) -> u64 {
        let product = u128::from(self.numerator) * u128::from(count);
        u64::try_from(product.div_ceil(u128::from(self.denominator))).unwrap_or(u64::MAX)
    }

    /// `count` times this, rounded down.
    fn times_down(self, count: u32) -> u64 {
        let product = u128::from(self.numerator) * u128::from(count);
        u64::try_from(product / u128::from(self.denominator)).unwrap_or(u64::MAX)
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> Ordering {
        let across = |a: u64, b: u64| u128::from(a) * u128::from(b);
        across(self.numerator, other.denominator).cmp(&across(other.numerator, self.denominator))
    }
}

/// A decimal with at most nine digits after the point, as a fraction.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    let scale = 10u64.pow(part.len() as u32);
    let number = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    Some((number(whole)?.checked_mul(scale)?.checked_add(number(part)?)?, scale))
}

/// Bounds of two roles' ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatioBounds {
    /// Smallest ratio.
    pub min: Fraction,
    /// Largest ratio; `None`: unbounded.
    pub max: Option<Fraction>,
}

impl RatioBounds {
    /// Returns `true` if `x : y` is within bounds.
    pub fn hold(&self, x: u32, y: u32) -> bool {
        !self.is_below(x, y) && !self.is_above(x, y)
    }

    /// Returns `true` if `x : y` is below the smallest ratio.
    pub fn is_below(&self, x: u32, y: u32) -> bool {
        u64::from(x) < self.min.times_up(y)
    }

    /// Returns `true` if `x : y` is above the largest ratio.
    pub fn is_above(&self, x: u32, y: u32) -> bool {
        let most = if y == 0 { 0 } else { self.max.map_or(u64::MAX, |max| max.times_down(y)) };
        u64::from(x) > most
    }
}

/// Counts nearest to `(x, y)` whose ratio `x : y` is within bounds, each within its own bounds: of all such
/// pairs the one that removes the fewest pods, then the one that adds the fewest, then the smallest sum, then
/// the smallest `x`. `None` if there is no such pair.
///
/// Zero pods of both roles satisfy any ratio; zero of one only 0 (`y` pods, with a `min` of 0).
pub fn repair(pair: (u32, u32), ratio: &RatioBounds, bounds: (Bounds, Bounds)) -> Option<(u32, u32)> {
    let (of_x, of_y) = bounds;
    let mut best: Option<((u64, u64, u64, u32), (u32, u32))> = None;
    for y in of_y.low..=of_y.high {
        let low = ratio.min.times_up(y).max(u64::from(of_x.low));
        let most = if y == 0 { 0 } else { ratio.max.map_or(u64::MAX, |max| max.times_down(y)) };
        let high = most.min(u64::from(of_x.high));
        if low > high {
            continue;
        }
        // Removing costs most and adding next, so the nearest is best for this `y`.
        let x = u64::from(pair.0).clamp(low, high) as u32;
        let removed = pair.0.saturating_sub(x) + pair.1.saturating_sub(y);
        let added = x.saturating_sub(pair.0) + y.saturating_sub(pair.1);
        let key = (u64::from(removed), u64::from(added), u64::from(x) + u64::from(y), x);
        if best.is_none_or(|(least, _)| key < least) {
            best = Some((key, (x, y)));
        }
    }
    best.map(|(_, pair)| pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fraction(text: &str) -> Fraction {
        Fraction::parse(text).unwrap()
    }

    fn ratio(min: &str, max: &str) -> RatioBounds {
        RatioBounds { min: fraction(min), max: Some(fraction(max)) }
    }

    fn bounds(x: (u32, u32), y: (u32, u32)) -> (Bounds, Bounds) {
        (Bounds { low: x.0, high: x.1 }, Bounds { low: y.0, high: y.1 })
    }

    #[test]
    fn fractions_are_read_as_ratios_and_decimals() {
        assert_eq!(fraction("1:4"), fraction("0.25"));
        assert_eq!(fraction("2/8"), fraction(".25"));
        assert_eq!(fraction("3"), fraction("3:1"));
        assert_eq!(fraction("0.5:2"), fraction("1:4"));
        assert!(fraction("0.6") < fraction("0.65") && fraction("0").is_zero());
        for text in ["", ":", "1:", "1:0", "a", "-1", "1:2:3", "1e3", "0.1234567891", "99999999999999999999"]
        {
            assert!(Fraction::parse(text).unwrap_err().contains(&format!("{text:?}")), "{text}");
        }
    }

    /// Pairs that kthena's admission over real numbers and its one-pass repair get wrong, and the order of
    /// preferences.
    #[test]
    fn nearest_pair_that_keeps_the_ratio_is_found() {
        let wide = bounds((0, 100), (0, 100));
        let table = [
            // Over real numbers it could be kept, over pods it can't.
            ((1, 2), ratio("0.6", "0.65"), bounds((1, 1), (1, 2)), None),
            // One pass would end at 2 : 3.
            ((1, 3), ratio("0.5", "0.5"), bounds((1, 2), (1, 3)), Some((1, 2))),
            ((2, 8), ratio("1:4", "1:1"), bounds((2, 8), (4, 16)), Some((2, 8))),
            ((2, 12), ratio("1:4", "1:1"), bounds((2, 8), (4, 16)), Some((3, 12))),
            ((8, 4), ratio("1:4", "1:1"), bounds((2, 8), (4, 16)), Some((8, 8))),
            ((5, 3), ratio("1", "1"), wide, Some((5, 5))),
            ((0, 0), ratio("0.5", "2"), wide, Some((0, 0))),
            ((0, 3), ratio("0.5", "2"), wide, Some((2, 3))),
            ((3, 0), ratio("0.5", "2"), wide, Some((3, 2))),
            ((9, 9), ratio("2", "3"), bounds((0, 9), (0, 9)), Some((9, 4))),
        ];
        for (pair, ratio, bounds, expected) in table {
            assert_eq!(repair(pair, &ratio, bounds), expected, "{pair:?} {ratio:?} {bounds:?}");
        }
        let open = RatioBounds { min: fraction("0.5"), max: None };
        assert_eq!(repair((7, 1), &open, wide), Some((7, 1)));
    }

    /// kthena's table (`disaggregated_ratio_test.go`), except for the row without a ratio.
    #[test]
    fn matches_kthenas_test_table() {
        let (quarter, wide) = (|| ratio("0.25", "1"), bounds((0, 8), (0, 16)));
        let table = [
            ((2, 4), quarter(), wide, Some((2, 4))),
            ((1, 8), quarter(), wide, Some((2, 8))),
            ((1, 3), ratio("0.5", "0.5"), bounds((1, 10), (1, 10)), Some((2, 4))),
            ((7, 99), ratio("0.07", "0.07"), bounds((7, 7), (1, 100)), Some((7, 100))),
            ((6, 2), quarter(), wide, Some((6, 6))),
            ((2, 20), quarter(), bounds((0, 3), (0, 20)), Some((3, 12))),
            ((0, 4), quarter(), wide, Some((1, 4))),
            ((4, 0), quarter(), wide, Some((4, 4))),
            ((0, 0), quarter(), wide, Some((0, 0))),
            ((1, 2), ratio("0.55", "0.55"), bounds((1, 2), (2, 3)), None),
        ];
        for (pair, ratio, bounds, expected) in table {
            assert_eq!(repair(pair, &ratio, bounds), expected, "{pair:?} {ratio:?} {bounds:?}");
        }
    }

    /// Comparison with all pairs, by independent arithmetic.
    #[test]
    fn found_pair_is_the_nearest() {
        for (low, high) in
            [((1, 4), (1, 1)), ((1, 2), (1, 2)), ((3, 5), (2, 3)), ((0, 1), (2, 1)), ((5, 2), (3, 1))]
        {
            let text = |(a, b): (u32, u32)| format!("{a}:{b}");
            let ratio = ratio(&text(low), &text(high));
            for bounds in [bounds((0, 6), (0, 6)), bounds((1, 3), (2, 7)), bounds((2, 2), (0, 9))] {
                for pair in (0..=8u32).flat_map(|x| (0..=8u32).map(move |y| (x, y))) {
                    let holds = |x: u32, y: u32| match y {
                        0 => x == 0,
                        _ => low.0 * y <= x * low.1 && x * high.1 <= high.0 * y,
                    };
                    let cost = |x: u32, y: u32| {
                        let removed = pair.0.saturating_sub(x) + pair.1.saturating_sub(y);
                        (removed, x.saturating_sub(pair.0) + y.saturating_sub(pair.1), x + y, x)
                    };
                    let all = (bounds.0.low..=bounds.0.high)
                        .flat_map(|x| (bounds.1.low..=bounds.1.high).map(move |y| (x, y)));
                    let best = all.filter(|(x, y)| holds(*x, *y)).min_by_key(|(x, y)| cost(*x, *y));
                    assert_eq!(repair(pair, &ratio, bounds), best, "{pair:?} {ratio:?} {bounds:?}");
                }
            }
        }
    }
}
