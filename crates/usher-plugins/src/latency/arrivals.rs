//! Requests per second, and their work.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::time::nanos;

/// Time after which an arrival counts a third (1/e) in the rate of arrivals, in seconds.
const RATE_WINDOW: f64 = 20.0;

/// Share of the window that counts as seen at least: the first requests of a process say
/// little about how many come per second.
const LEAST_SEEN: f64 = 0.25;

/// Requests per second and their work: tokens to compute, or the seconds that these take. Older ones count
/// less and less.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Time of the last update of the sums, in nanoseconds of the clock.
    at: AtomicU64,
    since: AtomicU64,
    requests: AtomicU64,
    work: AtomicU64,
    // Guards that the three change together.
    writer: Mutex<()>,
}

impl Arrivals {
    /// A request came with so much work.
    pub(super) fn add(&self, work: f64, now: Duration) {
        let _writing = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = nanos(now);
        let passed = Duration::from_nanos(now_ns.saturating_sub(self.at.load(Relaxed))).as_secs_f64();
        if self.since.load(Relaxed) == 0 {
            self.since.store(now_ns.max(1), Relaxed);
        }
        let keep = (-passed / RATE_WINDOW).exp();
        let more = |sum: &AtomicU64, value: f64| {
            sum.store((f64::from_bits(sum.load(Relaxed)) * keep + value).to_bits(), Relaxed);
        };
        more(&self.requests, 1.0);
        more(&self.work, work);
        self.at.store(now_ns.max(self.at.load(Relaxed)), Relaxed);
    }

    /// Requests and work per second.
    pub(super) fn rates(&self, now: Duration) -> (f64, f64) {
        let now = nanos(now);
        let since = |at: &AtomicU64| Duration::from_nanos(now.saturating_sub(at.load(Relaxed))).as_secs_f64();
        let keep = (-since(&self.at) / RATE_WINDOW).exp();
        // The weight of the time that there was.
        let seen = RATE_WINDOW * (1.0 - (-since(&self.since) / RATE_WINDOW).exp()).max(LEAST_SEEN);
        let rate = |sum: &AtomicU64| f64::from_bits(sum.load(Relaxed)) * keep / seen;
        (rate(&self.requests), rate(&self.work))
    }
}
