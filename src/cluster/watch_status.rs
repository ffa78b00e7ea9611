//! Age of the view of a watched collection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::endpoints::Clock;

/// Age and connection of a view of a collection. Written by whoever follows it.
#[derive(Debug)]
pub struct WatchStatus {
    clock: Clock,
    /// When the server was last heard of it, in the clock's milliseconds; 0: never.
    heard: AtomicU64,
    /// The server sends changes now, or when it defines objects of this kind.
    connected: AtomicBool,
}

impl WatchStatus {
    /// Status of a collection that was never heard of.
    pub fn new(clock: Clock) -> Self {
        Self { clock, heard: AtomicU64::new(0), connected: AtomicBool::new(false) }
    }

    /// The server said something of it just now.
    pub fn heard(&self) {
        self.heard.store(self.clock.now_ms(), Relaxed);
    }

    /// Records whether the server will send the next change.
    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Relaxed);
    }

    /// The server has just said that it defines no such kind, and is asked again soon: that is
    /// as good as a watch, and nothing that an alert should be about.
    pub fn undefined(&self) {
        self.heard();
        self.set_connected(true);
    }

    /// Returns `true` if the server sends changes now, as far as we know; of a kind that it
    /// does not define, if it says so when it is asked.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Time since the server was last heard of it; `None`: never. The server speaks at
    /// least every 24 seconds, also when nothing changes.
    pub fn age(&self) -> Option<Duration> {
        match self.heard.load(Relaxed) {
            0 => None,
            heard => Some(Duration::from_millis(self.clock.now_ms().saturating_sub(heard))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_counts_from_the_last_message() {
        let clock = Clock::stopped();
        let watch_status = WatchStatus::new(clock.clone());
        assert_eq!((watch_status.age(), watch_status.is_connected()), (None, false));
        watch_status.heard();
        clock.set(Duration::from_secs(3));
        assert_eq!(watch_status.age(), Some(Duration::from_secs(3)));
    }
}
