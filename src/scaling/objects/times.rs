//! Times of statuses.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::endpoints::Clock;

/// Converts times of the monotonic clock to wall-clock times.
#[derive(Debug)]
pub(super) struct Times {
    pub(super) clock: Clock,
    /// Wall-clock time of the clock's zero. Taken once, so that a moment always has the same wall-clock time.
    pub(super) zero: Timestamp,
}

/// Wall-clock time of a clock's zero, given the current wall-clock time.
pub(super) fn at_zero(clock: &Clock, now: Timestamp) -> Timestamp {
    let since = SignedDuration::try_from(clock.elapsed()).unwrap_or_default();
    now.checked_sub(since).unwrap_or(now)
}

impl Times {
    /// Converter with the current wall-clock time.
    pub(super) fn start(clock: Clock) -> Self {
        Self { zero: at_zero(&clock, Timestamp::now()), clock }
    }

    /// RFC 3339 in UTC, whole seconds.
    pub(super) fn at(&self, time: Duration) -> String {
        let since = SignedDuration::try_from(time).unwrap_or_default();
        let at = self.zero.checked_add(since).unwrap_or(self.zero);
        Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
    }
}
