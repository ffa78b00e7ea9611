//! Decimal numbers with exact comparisons: 4.4 is exactly ten percent above 4.

use std::iter::Sum;
use std::ops::{Add, Mul};

/// Fractions of one, as fine as the smallest unit of a Kubernetes quantity.
const ONE: i128 = 1_000_000_000;
/// Largest value; larger ones are clamped. Products of sums over a million pods with percentages stay far
/// within 128 bits.
const MOST: f64 = 1e15;

/// A number in billionths, so that sums and comparisons are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Amount of a number; `None` for NaN. Infinite and very large numbers are clamped.
    pub fn of(value: f64) -> Option<Self> {
        if value.is_nan() {
            return None;
        }
        let value = value.clamp(-MOST, MOST);
        // Both fit into 64 bits, which a processor converts to: 128 are a call.
        let whole = value as i64;
        // Apart, so that a large number keeps its decimals as well as an f64 does.
        let part = (value - whole as f64) * ONE as f64;
        let part = if part == 0.0 { 0 } else { part.round() as i64 };
        Some(Self(i128::from(whole) * ONE + i128::from(part)))
    }

    /// Amount of a whole number.
    pub fn whole(value: u64) -> Self {
        Self(i128::from(value) * ONE)
    }

    /// Closest `f64`.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / ONE as f64
    }

    /// Value in billionths.
    pub fn billionths(self) -> i128 {
        self.0
    }

    /// Quotient by `part`, rounded up; 0 unless both are positive.
    pub fn ceil_div(self, part: Self) -> u32 {
        if self.0 <= 0 || part.0 <= 0 {
            return 0;
        }
        let whole = self.0 / part.0 + i128::from(self.0 % part.0 != 0);
        u32::try_from(whole).unwrap_or(u32::MAX)
    }

    /// Returns `true` if within `percent` of `target`, inclusive.
    pub fn is_within(self, target: Self, percent: u32) -> bool {
        (self.0 - target.0).abs() * 100 <= target.0.abs() * i128::from(percent)
    }

    /// Mean: `self ÷ count`, in billionths; `None` if `count` is 0.
    pub fn mean(self, count: usize) -> Option<Self> {
        (count > 0).then(|| Self(self.0 / count as i128))
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Mul<u32> for Amount {
    type Output = Self;

    fn mul(self, count: u32) -> Self {
        Self(self.0.saturating_mul(i128::from(count)))
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(value: f64) -> Amount {
        Amount::of(value).unwrap()
    }

    #[test]
    fn decimal_arithmetic_is_exact() {
        assert!(amount(4.4).is_within(amount(4.0), 10));
        assert!(amount(3.6).is_within(amount(4.0), 10));
        assert!(!amount(4.400_000_001).is_within(amount(4.0), 10));
        assert!(amount(0.1) + amount(0.2) == amount(0.3));
        assert_eq!(amount(123_456.7).billionths(), 123_456_700_000_000);
        assert_eq!(amount(-0.25).billionths(), -250_000_000);
        let tenths: Amount = (0..1000).map(|_| amount(0.1)).sum();
        assert_eq!(tenths, Amount::whole(100));
    }

    #[test]
    fn amounts_of_both_signs_are_exact_up_to_the_largest() {
        for value in
            [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, -2.75, 4.4, 1e-9, 4e-10, 999_999.999_999_999, 1e15, -1e15]
        {
            let whole = f64::trunc(value);
            let expected = whole as i128 * ONE + ((value - whole) * ONE as f64).round() as i128;
            assert_eq!(amount(value).billionths(), expected, "{value}");
        }
    }

    #[test]
    fn nan_is_refused_and_infinity_is_clamped() {
        assert_eq!(Amount::of(f64::NAN), None);
        let most = amount(f64::INFINITY);
        assert_eq!(most, amount(1e300));
        assert_eq!(most.ceil_div(amount(1e-9)), u32::MAX);
        assert!(!(most * u32::MAX).is_within(Amount::whole(1), 1000));
    }

    #[test]
    fn quotients_round_up() {
        for (value, part, times) in
            [(8.0, 4.0, 2), (8.1, 4.0, 3), (0.0, 4.0, 0), (-3.0, 4.0, 0), (1.0, 0.0, 0), (0.3, 0.1, 3)]
        {
            assert_eq!(amount(value).ceil_div(amount(part)), times, "{value} {part}");
        }
    }
}
