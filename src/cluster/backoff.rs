//! Pause before something that failed is tried again.

use std::time::Duration;

use rand::{Rng, RngExt};

use super::Problem;

/// Longest `Retry-After` that is followed. What is known gets older meanwhile, and a proxy may
/// write anything.
pub const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);

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

    /// The pause after one more failure, by its problem: at least what the server asks for, and up to a quarter
    /// more, so that those whom it turned away don't come back all at once.
    pub fn after(&mut self, problem: Option<&Problem>, rng: &mut dyn Rng) -> Duration {
        let pause = self.next(rng);
        let Some(Problem::Busy { after, .. }) = problem else { return pause };
        let after = *after.min(&LONGEST_RETRY_AFTER);
        pause.max(after + (after / 4).mul_f64(rng.random::<f64>()))
    }

    /// Forgets the failures after a success.
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
    fn backoff_doubles_up_to_a_bound_with_jitter() {
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

    #[test]
    fn retry_after_is_honoured_up_to_five_minutes() {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(60));
        let mut rng = StdRng::seed_from_u64(4);
        for (asked, least, most) in [(1, 1, 2), (30, 30, 38), (9_999, 300, 375)] {
            let after = Duration::from_secs(asked);
            let problem = Problem::Busy { code: 429, message: "m".to_owned(), after };
            let pause = backoff.after(Some(&problem), &mut rng);
            assert!((least..=most).contains(&pause.as_secs()), "{asked}: {pause:?}");
        }
    }
}
