//! Coordination: shares a group's size among roles by cost and by pressure (volcano-sh/kthena#948, without
//! its defects).

use super::amount::Amount;
use super::share::{Bounds, MOST_WEIGHT, split};

/// Preferred share of a role, in percent of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// Smallest share, at most 100.
    pub min: u32,
    /// Largest share, at most 100.
    pub max: u32,
}

/// Pressure on a role: a value relative to its target; 1 at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Value, not negative.
    value: u128,
    /// Target, above 0.
    target: u128,
}

impl Pressure {
    /// No pressure.
    pub const NONE: Self = Self { value: 0, target: 1 };

    /// Pressure of a value; none for values below 0, or targets not above 0.
    pub fn new(value: Amount, target: Amount) -> Self {
        let (value, target) = match (u128::try_from(value.billionths()), target.billionths()) {
            (Ok(value), target @ 1..) => (value, target as u128),
            _ => (0, 1),
        };
        let divisor = gcd(value, target);
        Self { value: value / divisor, target: target / divisor }
    }

    /// Larger of two pressures.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        // Values are below 2¹⁰⁰, so only a pair of absurd ones could overflow.
        let larger = match (self.value.checked_mul(other.target), other.value.checked_mul(self.target)) {
            (Some(ours), Some(theirs)) => ours >= theirs,
            _ => self.as_f64() >= other.as_f64(),
        };
        if larger { self } else { other }
    }

    /// Closest `f64`.
    pub fn as_f64(self) -> f64 {
        self.value as f64 / self.target as f64
    }
}

/// Weight of each role in the group: `(1 − α) × base ÷ total + α × pressure ÷ all pressure`, scaled to whole
/// numbers. `alpha` is in billionths, 0 to 10⁹. `None` without any pressure.
pub fn weights(base: &[u32], pressures: &[Pressure], alpha: u32) -> Option<Vec<u128>> {
    let pressures = to_one_denominator(pressures);
    let pressed: u128 = pressures.iter().sum();
    if pressed == 0 {
        return None;
    }
    let total: u128 = base.iter().map(|share| u128::from(*share)).sum();
    let (alpha, rest) = (u128::from(alpha.min(ONE)), u128::from(ONE - alpha.min(ONE)));
    // Everything times `total × pressed`. Without a total each base counts the same.
    let (parts, whole): (Vec<u128>, u128) = match total {
        0 => (vec![1; base.len()], base.len() as u128),
        _ => (base.iter().map(|share| u128::from(*share)).collect(), total),
    };
    let mut weights: Vec<u128> = parts
        .iter()
        .zip(&pressures)
        .map(|(part, pressure)| rest * part * pressed + alpha * pressure * whole)
        .collect();
    shrink(&mut weights, MOST_WEIGHT);
    Some(weights)
}

/// Scale of alpha.
pub const ONE: u32 = 1_000_000_000;
/// Largest pressure after scaling, so that products with a total (below 2³⁰) and alpha (2³⁰) stay within 128
/// bits.
const MOST_PRESSURE: u128 = 1 << 60;

/// Pressures as whole numbers of a common unit.
fn to_one_denominator(pressures: &[Pressure]) -> Vec<u128> {
    let common = pressures.iter().try_fold(1u128, |common, pressure| {
        (common / gcd(common, pressure.target)).checked_mul(pressure.target)
    });
    let exact: Option<Vec<u128>> = common.and_then(|common| {
        pressures.iter().map(|pressure| pressure.value.checked_mul(common / pressure.target)).collect()
    });
    let mut values = exact.unwrap_or_else(|| {
        // Numbers of so many digits that billionths of them do.
        let billionths = |pressure: &Pressure| (pressure.as_f64() * f64::from(ONE)) as u128;
        pressures.iter().map(billionths).collect()
    });
    shrink(&mut values, MOST_PRESSURE);
    values
}

/// Divides all values by their greatest common divisor, then until none exceeds `most`.
fn shrink(values: &mut [u128], most: u128) {
    let divisor = values.iter().copied().fold(0, gcd).max(1);
    values.iter_mut().for_each(|value| *value /= divisor);
    let largest = values.iter().copied().max().unwrap_or(0);
    if largest > most {
        let scale = largest.div_ceil(most);
        values.iter_mut().for_each(|value| *value /= scale);
    }
}

/// Greatest common divisor.
pub(super) fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Result of sharing a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Pods of each role.
    pub pods: Vec<u32>,
    /// Applied bounds: those of the bands, or of the roles alone.
    pub bounds: Vec<Bounds>,
    /// `true` if the bands could not be satisfied.
    pub is_outside_bands: bool,
}

/// Shares `total` by weights within the roles' bounds, and within their bands if all of them can be satisfied
/// together.
pub fn coordinate(total: u32, weights: &[u128], roles: &[Bounds], bands: &[Option<Band>]) -> Shares {
    let banded: Vec<Bounds> = roles
        .iter()
        .enumerate()
        .map(|(index, role)| match bands.get(index).copied().flatten() {
            None => *role,
            Some(band) => {
                let part = |percent: u32| u64::from(total) * u64::from(percent);
                Bounds {
                    low: role.low.max(part(band.min).div_ceil(100) as u32),
                    high: role.high.min((part(band.max) / 100) as u32),
                }
            }
        })
        .collect();
    let sum = |of: fn(&Bounds) -> u32| banded.iter().map(|b| u64::from(of(b))).sum::<u64>();
    let is_feasible = banded.iter().all(|b| b.low <= b.high)
        && (sum(|b| b.low)..=sum(|b| b.high)).contains(&u64::from(total));
    let bounds = if is_feasible { banded } else { roles.to_vec() };
    Shares { pods: split(total, weights, &bounds), bounds, is_outside_bands: !is_feasible }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure(value: f64, target: f64) -> Pressure {
        Pressure::new(Amount::of(value).unwrap(), Amount::of(target).unwrap())
    }

    const ROLES: [Bounds; 2] = [Bounds { low: 1, high: 8 }; 2];
    const HALF: u32 = ONE / 2;

    #[test]
    fn pressure_moves_pods_within_preferred_bands() {
        let band = |min, max| Some(Band { min, max });
        let nine = [pressure(9.0, 1.0), pressure(1.0, 1.0)];
        let w = weights(&[7, 1], &nine, HALF).unwrap();
        let shares = coordinate(8, &w, &ROLES, &[band(25, 60), band(40, 75)]);
        assert_eq!((shares.pods, shares.is_outside_bands), (vec![4, 4], false));

        let equal = [pressure(4.0, 4.0), pressure(0.5, 0.5)];
        let w = weights(&[7, 1], &equal, HALF).unwrap();
        assert_eq!(w, [11, 5], ".6875 and .3125 of 16");
        assert_eq!(coordinate(8, &w, &ROLES, &[None, None]).pods, [6, 2]);

        let base = super::super::cost::allocate(3, &[PRICED; 2], 100);
        let w = weights(&base, &equal, HALF).unwrap();
        let shares = coordinate(3, &w, &ROLES, &[band(45, 55), band(45, 55)]);
        assert_eq!((shares.pods, shares.is_outside_bands), (vec![2, 1], true));
    }

    const PRICED: super::super::cost::RoleCost = super::super::cost::RoleCost { min: 1, max: 8, cost: 100.0 };

    #[test]
    fn weights_are_none_without_pressure() {
        assert_eq!(weights(&[1, 1], &[pressure(0.0, 1.0), pressure(-5.0, 1.0)], HALF), None);
        assert_eq!(weights(&[3, 5], &[pressure(1.0, 1.0), pressure(0.0, 1.0)], 0), Some(vec![3, 5]));
        assert_eq!(weights(&[3, 5], &[pressure(1.0, 1.0), pressure(0.0, 1.0)], ONE), Some(vec![1, 0]));
        assert_eq!(weights(&[0, 0], &[pressure(1.0, 1.0), pressure(0.0, 1.0)], HALF), Some(vec![3, 1]));
    }

    #[test]
    fn larger_pressure_wins_and_weights_are_bounded() {
        let (a, b) = (pressure(1.0, 3.0), pressure(0.333_333_333, 1.0));
        assert_eq!(a.max(b), a);
        assert_eq!(b.max(a), a);
        let absurd = [pressure(1e300, 1e-9), pressure(0.123_456_789, 0.987_654_321), pressure(1e15, 7.0)];
        let w = weights(&[1, 1, 1_000_000], &absurd, HALF).unwrap();
        assert!(w.iter().all(|weight| *weight <= MOST_WEIGHT) && w[0] > 0);
        assert!(absurd[0].max(absurd[2]) == absurd[0]);
    }
}
