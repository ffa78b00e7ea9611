//! Looks at the requests of all endpoints that wait for a first byte.

use std::sync::PoisonError;
use std::time::Duration;

use super::detector::OutlierDetector;
use super::pending::Bound;
use crate::endpoints::Snapshot;

/// Pause between two looks at requests that wait for a first byte.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

impl OutlierDetector {
    /// Looks at the requests that wait for a first byte: learns how long that takes, and
    /// counts those as failed that take too long. To be called every [`SWEEP_INTERVAL`].
    pub fn sweep(&self, snapshot: &Snapshot) {
        if self.params().first_byte.is_zero() {
            return;
        }
        let now_ms = self.now_ms();
        let mut times = self.first_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // Position and time of the one that was heard last, and the time of the next.
        let (mut last, mut next) = ((usize::MAX, 0), 0);
        for (position, endpoint) in snapshot.endpoints().iter().enumerate() {
            let heard_ms = endpoint.health().listen(&mut times, now_ms);
            if heard_ms > last.1 {
                (last, next) = ((position, heard_ms), last.1);
            } else {
                next = next.max(heard_ms);
            }
        }
        let usual = times.usual();
        drop(times);
        let floor_ms = self.params().first_byte.as_secs_f64() * 1e3;
        for (position, endpoint) in snapshot.endpoints().iter().enumerate() {
            let others_heard_ms = if position == last.0 { next } else { last.1 };
            let bound = Bound { usual: &usual, floor_ms, others_heard_ms };
            endpoint.health().judge(&bound, endpoint.load(), now_ms);
        }
    }
}
