//! Time since an origin of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time since an origin of this process. Ages of readings are differences of these, so
/// a stepping wall clock can't make data fresh. Clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Real(Instant),
    /// Nanoseconds set by the owner.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self(Kind::Real(Instant::now()))
    }

    /// A clock that stands still until [`set`](Self::set) moves it, for simulations.
    pub fn stopped() -> Self {
        Self(Kind::Virtual(Arc::default()))
    }

    /// Moves a stopped clock, and its clones, to this time since the start; never back.
    /// Does nothing to a running clock.
    pub fn set(&self, elapsed: Duration) {
        if let Kind::Virtual(nanos) = &self.0 {
            nanos.fetch_max(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    /// Returns `true` if it stands still until it is set.
    pub fn is_stopped(&self) -> bool {
        matches!(self.0, Kind::Virtual(_))
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Kind::Real(origin) => origin.elapsed(),
            Kind::Virtual(nanos) => Duration::from_nanos(nanos.load(Relaxed)),
        }
    }

    /// Milliseconds since the start, from 1, so that 0 can mean "never".
    pub fn now_ms(&self) -> u64 {
        milliseconds(self.elapsed())
    }

    /// Milliseconds from the start to an instant, from 1; a stopped clock knows only its own time.
    pub fn at(&self, instant: Instant) -> u64 {
        match &self.0 {
            Kind::Real(origin) => milliseconds(instant.saturating_duration_since(*origin)),
            Kind::Virtual(_) => self.now_ms(),
        }
    }
}

fn milliseconds(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX - 1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_clock_moves_when_it_is_set_and_never_back() {
        let clock = Clock::stopped();
        let same = clock.clone();
        assert_eq!((clock.elapsed(), clock.now_ms()), (Duration::ZERO, 1));
        clock.set(Duration::from_micros(2500));
        assert_eq!((same.elapsed(), same.now_ms()), (Duration::from_micros(2500), 3));
        clock.set(Duration::from_millis(1));
        assert_eq!(same.now_ms(), 3);
        assert_eq!(same.at(Instant::now()), 3);
    }

    #[test]
    fn a_running_clock_can_not_be_set() {
        let clock = Clock::start();
        clock.set(Duration::from_secs(3600));
        assert!(clock.now_ms() < 1_000_000);
    }
}
