//! Due times of the requests of an open loop.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::settings::Arrivals;

/// Times since the start of the load, one after the other.
#[derive(Debug)]
pub(super) enum Schedule {
    Even {
        per_second: f64,
        next: u64,
    },
    Poisson {
        per_second: f64,
        at: f64,
        rng: Box<StdRng>,
    },
    /// Times of the trace.
    Trace {
        speed: f64,
    },
}

impl Schedule {
    pub(super) fn new(per_second: f64, arrivals: Arrivals, seed: u64) -> Self {
        match arrivals {
            Arrivals::Even => Self::Even { per_second, next: 0 },
            Arrivals::Poisson => {
                Self::Poisson { per_second, at: 0.0, rng: Box::new(StdRng::seed_from_u64(seed)) }
            }
        }
    }

    /// Time at which the next request is due, of which a trace says that it came at `arrival`.
    pub(super) fn next(&mut self, arrival: Duration) -> Duration {
        match self {
            Self::Even { per_second, next } => {
                let due = *next as f64 / *per_second;
                *next += 1;
                duration(due)
            }
            Self::Poisson { per_second, at, rng } => {
                let due = *at;
                // 1 - x is never 0.
                *at -= (1.0 - rng.random::<f64>()).ln() / *per_second;
                duration(due)
            }
            Self::Trace { speed } => duration(arrival.as_secs_f64() / *speed),
        }
    }
}

/// Beyond centuries it makes no difference when.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(u32::MAX.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_arrivals_do_not_drift() {
        let mut schedule = Schedule::new(3.0, Arrivals::Even, 0);
        let times: Vec<Duration> = (0..=3000).map(|_| schedule.next(Duration::ZERO)).collect();
        assert_eq!((times[0], times[3000]), (Duration::ZERO, Duration::from_secs(1000)));
        assert_eq!(times[1], Duration::from_secs_f64(1.0 / 3.0));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_its_spread() {
        let mut schedule = Schedule::new(100.0, Arrivals::Poisson, 7);
        let times: Vec<f64> = (0..20_001).map(|_| schedule.next(Duration::ZERO).as_secs_f64()).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        // Of an exponential distribution, the part 1/e is above the mean.
        let above = gaps.iter().filter(|gap| **gap > 0.01).count() as f64 / gaps.len() as f64;
        assert!((mean - 0.01).abs() < 0.0003, "{mean}");
        assert!((above - (-1f64).exp()).abs() < 0.01, "{above}");
    }

    #[test]
    fn a_trace_is_compressed() {
        let mut schedule = Schedule::Trace { speed: 12.0 };
        assert_eq!(schedule.next(Duration::from_secs(60)), Duration::from_secs(5));
    }
}
