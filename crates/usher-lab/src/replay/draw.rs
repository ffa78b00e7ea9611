//! Random numbers that are the same on every machine and with every version of a library:
//! a workload of a seed is to stay what it is.

use usher_core::random::mix;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    seed: u64,
    next: u64,
}

impl Draw {
    /// The sequence number `stream` of a seed.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self { seed: mix(mix(seed) ^ stream), next: 0 }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        mix(self.seed ^ mix(self.next))
    }

    /// Evenly in 0..1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Evenly in 0..`count`.
    pub(super) fn below(&mut self, count: u64) -> u64 {
        (self.unit() * count as f64) as u64
    }

    /// Exponential, of mean 1: the time between independent events.
    pub(super) fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Log-normal with this median and this standard deviation of the logarithm, as a
    /// whole number not outside `bounds`.
    pub(super) fn length(&mut self, median: f64, sigma: f64, bounds: (u32, u32)) -> u32 {
        // Box and Muller, 1958.
        let radius = (2.0 * self.exponential()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        let length = (median * (sigma * normal).exp()).round();
        // Saturates, as casts from floats do.
        (length as u32).clamp(bounds.0, bounds.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_their_median_spread_and_bounds() {
        let mut draw = Draw::new(1, 2);
        let mut lengths: Vec<u32> = (0..20_001).map(|_| draw.length(1000.0, 0.5, (100, 3000))).collect();
        lengths.sort_unstable();
        let at = |share: f64| f64::from(lengths[(share * 20_000.0) as usize]);
        assert!((at(0.5) / 1000.0 - 1.0).abs() < 0.02, "{}", at(0.5));
        // One standard deviation.
        assert!((at(0.8413) / 1000.0 / 0.5f64.exp() - 1.0).abs() < 0.03, "{}", at(0.8413));
        assert_eq!((lengths[0] >= 100, lengths[20_000]), (true, 3000));
    }

    #[test]
    fn streams_and_seeds_are_apart_and_times_have_mean_one() {
        assert_ne!(Draw::new(1, 0).number(), Draw::new(1, 1).number());
        assert_ne!(Draw::new(1, 0).number(), Draw::new(2, 0).number());
        let mut draw = Draw::new(7, 0);
        let mean = (0..20_000).map(|_| draw.exponential()).sum::<f64>() / 2e4;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
        assert!((0..1000).all(|_| draw.below(3) < 3));
    }
}
