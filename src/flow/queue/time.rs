//! Time as the queue counts it.

use std::time::Duration;

/// Nanoseconds since the start of the clock of whoever owns the queue.
pub type Nanos = u64;

/// A time that never comes.
pub const NEVER: Nanos = u64::MAX;

/// A duration in the queue's unit; what is longer than 584 years is [`NEVER`].
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
