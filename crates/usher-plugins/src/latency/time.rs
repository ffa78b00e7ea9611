//! Times as atomics hold them: whole nanoseconds.

use std::time::Duration;

/// A time in nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A time in milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Converts seconds to nanoseconds, below `u64::MAX`, which stands for none.
pub(super) fn nanos_of(seconds: f64) -> u64 {
    // Saturates, as casts from floats do.
    ((seconds * 1e9).round() as u64).min(u64::MAX - 1)
}

/// Converts nanoseconds to seconds.
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
