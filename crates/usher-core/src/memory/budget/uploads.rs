//! Requests of which some is missing, and streams that end as they were aborted.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::Budget;
use crate::memory::uploads::Upload;

/// Longest time between two checks of bodies that are coming.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Budget {
    /// A body has begun whose rest doesn't come at once, of a request with this priority; the current
    /// task reads it, which `stream` wakes.
    pub fn begin_upload(&self, received: u64, priority: i32, stream: &Waker) -> Arc<Upload> {
        self.uploads.begin(received, Some(priority), stream)
    }

    /// A stream is open and nothing of its request has come. It may make room for others as a body that
    /// comes slowly does, before all of those.
    pub fn begin_silent(&self, stream: &Waker) -> Arc<Upload> {
        self.uploads.begin(0, None, stream)
    }

    /// Checks all bodies, and aborts those of which nothing came for `timeout`.
    pub fn check_uploads(&self, now: Instant, timeout: Option<Duration>) {
        self.uploads.check(now, timeout);
    }

    /// Resets streams that were aborted some time ago and haven't ended.
    pub(in crate::memory) fn look_at_aborted(&self, now: Instant) {
        let aborted = &self.uploads.aborted;
        let new = aborted.take_new();
        // Without the lock, as there may be many.
        let found = if new.is_empty() { Vec::new() } else { self.streams_of(&new) };
        aborted.check(&found, now);
    }
}

/// Periodically checks incomplete bodies, streams that were refused or aborted, and those
/// whose replies nobody takes. Bodies of which nothing came for `timeout` are aborted; without it none is for that.
pub async fn watch_uploads(budget: Arc<Budget>, timeout: Option<Duration>) {
    let interval = timeout
        .map_or(CHECK_INTERVAL, |timeout| (timeout / 4).clamp(Duration::from_millis(10), CHECK_INTERVAL));
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Streams stall for a second, whatever the timeout of bodies.
    let mut seconds = tokio::time::interval(CHECK_INTERVAL);
    seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let now = Instant::now();
                budget.check_uploads(now, timeout);
                budget.abort_silent();
                budget.check_refusals(now);
                budget.look_at_aborted(now);
            }
            _ = seconds.tick() => budget.check_replies(),
        }
    }
}
