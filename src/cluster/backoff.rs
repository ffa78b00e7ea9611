//! How long to wait before something that failed is tried again.

use std::time::Duration;

use rand::{Rng, RngExt};

/// Doubles from `first` to `most`. Half of each pause is drawn, so that the replicas of
/// a pool don't come back to a server that was down all at once.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses between `first` and `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: 0 }
    }

    /// The pause after one more failure.
    pub fn next(&mut self, rng: &mut dyn Rng) -> Duration {
        let whole = self.first.saturating_mul(1 << self.failures.min(20)).min(self.most);
        self.failures = self.failures.saturating_add(1);
        whole / 2 + (whole / 2).mul_f64(rng.random::<f64>())
    }

    /// It worked.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since it last worked.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn pauses_double_up_to_a_bound_and_half_of_each_is_drawn() {
        let (first, most) = (Duration::from_millis(200), Duration::from_secs(10));
        let mut backoff = Backoff::new(first, most);
        let mut rng = StdRng::seed_from_u64(3);
        let mut whole = first;
        for _ in 0..40 {
            let pause = backoff.next(&mut rng);
            assert!(pause >= whole / 2 && pause <= whole, "{pause:?} of {whole:?}");
            whole = (whole * 2).min(most);
        }
        backoff.reset();
        assert!(backoff.next(&mut rng) <= first);
        assert_eq!(backoff.failures(), 1);
    }
}
