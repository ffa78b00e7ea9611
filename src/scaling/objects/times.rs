//! Times of statuses.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::endpoints::Clock;

/// From the clock of the plans to that of people.
#[derive(Debug)]
pub(super) struct Times {
    pub(super) clock: Clock,
    /// Wall-clock time at which the clock began. Taken once, so that a moment is always shown as the same.
    pub(super) zero: Timestamp,
}

/// Wall-clock time at which a clock began, given that it is `now`.
pub(super) fn at_zero(clock: &Clock, now: Timestamp) -> Timestamp {
    let since = SignedDuration::try_from(clock.elapsed()).unwrap_or_default();
    now.checked_sub(since).unwrap_or(now)
}

impl Times {
    /// With the time of people that it is now.
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
