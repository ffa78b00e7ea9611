//! Sampling above a rate, and the time from which on a first token is slow.

use std::time::{Duration, Instant};

/// Lets so many through per second, and after a pause a burst at once.
#[derive(Debug)]
pub(super) struct Sampler {
    per_second: f64,
    burst: f64,
    left: f64,
    last: Option<Instant>,
}

impl Sampler {
    pub(super) fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, left: burst, last: None }
    }

    pub(super) fn take(&mut self, now: Instant) -> bool {
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last = self.last.max(Some(now));
        self.left = (self.left + passed.as_secs_f64() * self.per_second).min(self.burst);
        let is_let_through = self.left >= 1.0;
        if is_let_through {
            self.left -= 1.0;
        }
        is_let_through
    }
}

/// Requests that are watched before any is called slow.
const FEWEST: u32 = 20;

/// Step by which the quantile follows what it sees, as a share of it.
const STEP: f64 = 0.05;

/// Share of requests that are not slow.
const USUAL: f64 = 0.95;

/// Ratio to the quantile from which on a time is slow: times that are all alike aren't.
const MARGIN: f64 = 1.25;

/// Seconds below which nothing is slow.
const LEAST: f64 = 0.05;

/// A moving quantile of times in seconds: it moves up by a small share of itself with a time above it, and down by
/// a nineteenth of that with one below.
#[derive(Debug, Default)]
pub(super) struct MovingQuantile {
    quantile: f64,
    seen: u32,
}

impl MovingQuantile {
    /// Takes a time. Returns `true` if it is longer by a quarter than nearly all before it.
    pub(super) fn is_slow(&mut self, seconds: f64) -> bool {
        if !seconds.is_finite() {
            return false;
        }
        if self.seen < FEWEST {
            self.seen += 1;
            self.quantile = self.quantile.max(seconds);
            return false;
        }
        let is_slow = seconds > LEAST.max(MARGIN * self.quantile);
        let share = if seconds > self.quantile { STEP * USUAL } else { STEP * (USUAL - 1.0) };
        self.quantile = (self.quantile * (1.0 + share)).max(LEAST);
        is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_admits_a_rate_and_a_burst() {
        let mut sampler = Sampler::new(10.0, 20.0);
        let start = Instant::now();
        let burst = (0..100).filter(|_| sampler.take(start)).count();
        assert_eq!(burst, 20);
        let second = (1..=1000).filter(|ms| sampler.take(start + Duration::from_millis(*ms))).count();
        assert!((9..=10).contains(&second), "{second}");
    }

    #[test]
    fn the_quantile_is_above_nineteen_of_twenty() {
        let mut slowness = MovingQuantile::default();
        // Times from 1 to 2 s in an order that has no pattern.
        let time = |n: u32| 1.0 + f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
        let above = (0..20_000).map(time).filter(|time| {
            let is_above = *time > slowness.quantile;
            slowness.is_slow(*time);
            is_above
        });
        let above = above.count();
        assert!((600..1600).contains(&above), "{above}");
        assert!(!slowness.is_slow(2.0) && slowness.is_slow(3.0) && !slowness.is_slow(f64::NAN));
    }

    #[test]
    fn equal_times_are_not_slow() {
        let mut slowness = MovingQuantile::default();
        assert!((0..1000).all(|_| !slowness.is_slow(1.0)));
    }

    #[test]
    fn short_times_are_never_slow() {
        let mut slowness = MovingQuantile::default();
        assert!((0..1000).all(|n| !slowness.is_slow(0.001 * f64::from(n % 40))));
    }
}
