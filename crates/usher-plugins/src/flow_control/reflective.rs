//! `soft-reflective-ceiling-policy`: as the pool fills, priorities below the highest are
//! let through ever more rarely, the lowest first.

use super::ceiling::{BandPosition, Ceiling};

/// The ceiling of a band. The highest may fill the pool. Another is free while the
/// saturation is below its mirror image, 1 − rank ÷ (bands − 1) × saturation; beyond that
/// one request gets through in a while, and none when the pool is full.
pub(super) fn ceiling(position: BandPosition, saturation: f64) -> Ceiling {
    let BandPosition { rank, bands, .. } = position;
    if rank == 0 || bands <= 1 {
        return Ceiling::Below(1.0);
    }
    let reflected = 1.0 - rank as f64 * saturation / (bands - 1) as f64;
    if saturation < reflected {
        return Ceiling::Below(1.0);
    }
    // Below one half nothing is reflected, so this is where a pool is full, or no number.
    if !(0.5..1.0).contains(&saturation) {
        return Ceiling::Below(0.0);
    }
    let period = (saturation / (1.0 - saturation)).round().max(1.0);
    // Saturates, as casts from floats do.
    Ceiling::OneIn(period as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_the_pool_the_rarer_a_low_priority() {
        let open = Ceiling::Below(1.0);
        let shut = Ceiling::Below(0.0);
        // saturation, rank, bands, ceiling
        let table = [
            (0.99, 0, 3, open),
            (5.0, 0, 3, open),
            (0.99, 0, 1, open),
            (0.49, 2, 3, open),
            (0.5, 2, 3, Ceiling::OneIn(1)),
            (0.5, 1, 3, open),
            (0.66, 1, 3, open),
            (0.67, 1, 3, Ceiling::OneIn(2)),
            (0.75, 2, 3, Ceiling::OneIn(3)),
            (0.9, 1, 2, Ceiling::OneIn(9)),
            (0.99, 1, 2, Ceiling::OneIn(99)),
            (1.0, 1, 2, shut),
            (3.0, 1, 2, shut),
            (f64::NAN, 1, 2, shut),
        ];
        for (saturation, rank, bands, expected) in table {
            let position = BandPosition { rank, bands, priority: 0, lowest: -9, highest: 9 };
            assert_eq!(ceiling(position, saturation), expected, "{saturation} {rank}/{bands}");
        }
    }
}
