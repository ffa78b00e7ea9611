//! Shares of a whole number in proportion to weights, within bounds: exact water-filling and largest
//! remainder.

/// Largest weight: products with the largest groups stay within 128 bits.
pub const MOST_WEIGHT: u128 = 1 << 80;

/// Bounds of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Lower bound.
    pub low: u32,
    /// Upper bound, at least `low`.
    pub high: u32,
}

/// A quota: `whole + numerator ÷ denominator`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Whole part.
    pub whole: u32,
    /// Numerator of the fraction.
    pub numerator: u128,
    /// Denominator of the fraction; above 0.
    pub denominator: u128,
}

/// Splits `total` in proportion to `weights`, each share within its bounds. The shares' sum is `total`,
/// clamped to the bounds, and each share is within one of its quota in an exact split within the bounds
/// ([`quotas`]).
///
/// Weights are relative, at most [`MOST_WEIGHT`]; equal if all are zero.
pub fn split(total: u32, weights: &[u128], bounds: &[Bounds]) -> Vec<u32> {
    let quotas = quotas(total, weights, bounds);
    let mut shares: Vec<u32> =
        quotas.iter().zip(bounds).map(|(quota, b)| quota.whole.clamp(b.low, b.high)).collect();
    let given: u64 = shares.iter().copied().map(u64::from).sum();
    let mut left = u64::from(within(total, bounds)).saturating_sub(given);
    let mut order: Vec<usize> = (0..shares.len()).collect();
    // The largest remainder first; sorting is stable, so equals are in the order of the roles.
    order.sort_by(|a, b| by_fraction(&quotas[*a], &quotas[*b]));
    // One round is enough where quotas are exact; bounds are checked all the same.
    while left > 0 {
        let before = left;
        for &index in &order {
            if left > 0 && shares[index] < bounds[index].high {
                shares[index] += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    shares
}

/// Exact shares of `total`, as fractions.
pub fn quotas(total: u32, weights: &[u128], bounds: &[Bounds]) -> Vec<Quota> {
    let mut quotas = vec![Quota { denominator: 1, ..Quota::default() }; bounds.len()];
    let mut left = u64::from(within(total, bounds));
    let mut free: Vec<usize> = (0..bounds.len()).collect();
    let weight_of = |index: usize| weights.get(index).copied().unwrap_or(0).min(MOST_WEIGHT);
    while !free.is_empty() {
        let sum: u128 = free.iter().map(|index| weight_of(*index)).sum();
        // Equal weights if all remaining ones are zero.
        let (weights, sum): (Vec<u128>, u128) = if sum == 0 {
            (vec![1; free.len()], free.len() as u128)
        } else {
            (free.iter().map(|index| weight_of(*index)).collect(), sum)
        };
        // Everything times `sum`, so that nothing is rounded.
        let scaled = |weight: u128| u128::from(left) * weight;
        let (mut under, mut over) = (0, 0);
        for (index, weight) in free.iter().zip(&weights) {
            let (low, high) = (u128::from(bounds[*index].low) * sum, u128::from(bounds[*index].high) * sum);
            under += low.saturating_sub(scaled(*weight));
            over += scaled(*weight).saturating_sub(high);
        }
        if under == 0 && over == 0 {
            for (index, weight) in free.iter().zip(&weights) {
                let share = scaled(*weight);
                quotas[*index] =
                    Quota { whole: (share / sum) as u32, numerator: share % sum, denominator: sum };
            }
            break;
        }
        let mut rest = Vec::new();
        for (index, weight) in free.iter().zip(&weights) {
            let Bounds { low, high } = bounds[*index];
            let fixed = if under >= over {
                (scaled(*weight) < u128::from(low) * sum).then_some(low)
            } else {
                (scaled(*weight) > u128::from(high) * sum).then_some(high)
            };
            match fixed {
                Some(share) => quotas[*index] = Quota { whole: share, numerator: 0, denominator: 1 },
                None => rest.push(*index),
            }
        }
        let fixed: u64 = free
            .iter()
            .filter(|index| !rest.contains(index))
            .map(|index| u64::from(quotas[*index].whole))
            .sum();
        left = left.saturating_sub(fixed);
        free = rest;
    }
    quotas
}

/// Clamps `total` to the sums of the bounds.
fn within(total: u32, bounds: &[Bounds]) -> u32 {
    let sum = |of: fn(&Bounds) -> u32| bounds.iter().map(|b| u64::from(of(b))).sum::<u64>();
    let (low, high) = (sum(|b| b.low), sum(|b| b.high));
    u32::try_from(u64::from(total).clamp(low, high.max(low))).unwrap_or(u32::MAX)
}

/// Orders by fraction, largest first.
fn by_fraction(a: &Quota, b: &Quota) -> std::cmp::Ordering {
    // The product of two could overflow, a comparison step by step can't.
    compare((b.numerator, b.denominator), (a.numerator, a.denominator))
}

/// Compares two fractions exactly, whatever their size.
fn compare(mut a: (u128, u128), mut b: (u128, u128)) -> std::cmp::Ordering {
    let mut turned = false;
    loop {
        let (whole_a, whole_b) = (a.0 / a.1, b.0 / b.1);
        let (rest_a, rest_b) = (a.0 % a.1, b.0 % b.1);
        let order = if whole_a != whole_b {
            whole_a.cmp(&whole_b)
        } else if rest_a == 0 || rest_b == 0 {
            rest_a.cmp(&rest_b)
        } else {
            // Of two rests, the one whose inverse is smaller is the larger.
            (a, b) = ((a.1, rest_a), (b.1, rest_b));
            turned = !turned;
            continue;
        };
        return if turned { order.reverse() } else { order };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use std::cmp::Ordering;

    fn bounds(low: &[u32], high: &[u32]) -> Vec<Bounds> {
        low.iter().zip(high).map(|(low, high)| Bounds { low: *low, high: *high }).collect()
    }

    #[test]
    fn largest_remainders_are_rounded_up_within_bounds() {
        let table: [(u32, &[u128], &[u32], &[u32], &[u32]); 7] = [
            (10, &[5, 5], &[1, 1], &[4, 20], &[4, 6]),
            (3, &[99, 1], &[1, 2], &[8, 8], &[1, 2]),
            (7, &[90, 10], &[0, 0], &[10, 10], &[6, 1]),
            (10, &[1, 1, 1], &[0, 0, 0], &[9, 9, 9], &[4, 3, 3]),
            (12, &[0, 0], &[1, 1], &[20, 20], &[6, 6]),
            (2, &[70, 30], &[2, 2], &[8, 8], &[2, 2]),
            (40, &[70, 30], &[2, 2], &[8, 8], &[8, 8]),
        ];
        for (total, weights, low, high, shares) in table {
            assert_eq!(split(total, weights, &bounds(low, high)), shares, "{total} {weights:?}");
        }
        assert!(split(5, &[], &[]).is_empty());
    }

    /// The sum and the bounds hold, and each share is less than one from its quota.
    #[test]
    fn a_million_random_splits_keep_the_rules() {
        let mut rng = StdRng::seed_from_u64(948);
        for case in 0..1_000_000 {
            let roles = rng.random_range(1..=4);
            let large = case % 10 == 0;
            let (most, weight) = if large { (1_000_000u32, MOST_WEIGHT) } else { (20, 100) };
            let b: Vec<Bounds> = (0..roles)
                .map(|_| {
                    let low = rng.random_range(0..=most);
                    Bounds { low, high: rng.random_range(low..=most) }
                })
                .collect();
            let weights: Vec<u128> = (0..roles).map(|_| rng.random_range(0..=weight)).collect();
            let total = rng.random_range(0..=most * 5);
            let shares = split(total, &weights, &b);
            let (low, high) = b.iter().fold((0, 0), |(low, high), b| (low + b.low, high + b.high));
            let at = || format!("{case}: {total} {weights:?} {b:?} {shares:?}");
            assert_eq!(shares.iter().sum::<u32>(), total.clamp(low, high), "{}", at());
            for ((share, b), quota) in shares.iter().zip(&b).zip(quotas(total, &weights, &b)) {
                assert!((b.low..=b.high).contains(share), "{}", at());
                let above = u32::from(quota.numerator > 0);
                assert!(*share == quota.whole || *share == quota.whole + above, "{}", at());
            }
        }
    }

    #[test]
    fn fractions_of_any_size_compare() {
        let most = u128::MAX;
        for (a, b, order) in [
            ((1, 2), (1, 3), Ordering::Greater),
            ((2, 4), (1, 2), Ordering::Equal),
            ((0, 5), (0, 1), Ordering::Equal),
            ((0, 5), (1, most), Ordering::Less),
            ((most - 2, most - 1), (most - 1, most), Ordering::Less),
            ((7, 16), (3, 7), Ordering::Greater),
        ] {
            assert_eq!(compare(a, b), order, "{a:?} {b:?}");
            assert_eq!(compare(b, a), order.reverse(), "{a:?} {b:?}");
        }
    }
}
