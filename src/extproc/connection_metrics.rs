//! Metrics of connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::conn::ConnectionError;

/// Time in which one line is logged per reason: whoever may connect may have us end or refuse connections as
/// often as they like, and a flood must not flood the log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Counters of connections, since the start.
#[derive(Debug, Default)]
pub struct ConnectionMetrics {
    /// Handed to a thread.
    pub accepted: AtomicU64,
    /// Closed before they were open: too many were open or being opened.
    pub refused: AtomicU64,
    /// TLS handshakes and HTTP/2 prefaces that failed or took too long.
    pub unopened: AtomicU64,
    /// Ended because the client broke HTTP/2, went away, or no longer responded.
    pub broken: AtomicU64,
    /// Ended by a GOAWAY frame of ours: of those, and of connections of small ports. The first of each
    /// reason in a minute is logged.
    pub goaway: AtomicU64,
    // Guard the reasons that were logged. Taken when a connection is refused or ended by us.
    logged_refused: Mutex<RateLimit<&'static str>>,
    logged_goaway: Mutex<RateLimit<u32>>,
}

impl ConnectionMetrics {
    /// A connection of this address was closed before it was open.
    pub fn refuse(&self, peer: SocketAddr, reason: &'static str) {
        let count = self.refused.fetch_add(1, Relaxed) + 1;
        if let Some(left_out) = RateLimit::pass(&self.logged_refused, reason) {
            tracing::warn!(%peer, reason, count, left_out, "connection refused");
        }
    }

    /// Counts a connection of this address that we ended with GOAWAY, if that is how it ended.
    pub fn note_goaway(&self, peer: SocketAddr, ended: &Result<(), ConnectionError>) {
        if let Some(reason) = ended.as_ref().err().and_then(ConnectionError::go_away) {
            let count = self.goaway.fetch_add(1, Relaxed) + 1;
            if let Some(left_out) = RateLimit::pass(&self.logged_goaway, reason.into()) {
                tracing::warn!(%peer, ?reason, count, left_out, "connection ended with GOAWAY");
            }
        }
    }
}

/// Limits log lines to one per reason and [`LOG_EVERY`]. There are few reasons.
#[derive(Debug)]
struct RateLimit<R> {
    /// Time of the last line of each, and events since.
    last: HashMap<R, (Instant, u64)>,
}

impl<R> Default for RateLimit<R> {
    fn default() -> Self {
        Self { last: HashMap::new() }
    }
}

impl<R: Eq + Hash> RateLimit<R> {
    fn pass(limit: &Mutex<Self>, reason: R) -> Option<u64> {
        limit.lock().unwrap_or_else(PoisonError::into_inner).event(reason, Instant::now())
    }

    /// Notes an event. If it is to be logged, returns the number of those before it that were not.
    fn event(&mut self, reason: R, now: Instant) -> Option<u64> {
        match self.last.entry(reason) {
            Entry::Vacant(first) => {
                first.insert((now, 0));
                Some(0)
            }
            Entry::Occupied(mut known) => {
                let (last, left_out) = known.get_mut();
                if now - *last < LOG_EVERY {
                    *left_out += 1;
                    return None;
                }
                *last = now;
                Some(std::mem::take(left_out))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_event_of_each_reason_in_a_minute_is_logged() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        // Seconds, reason, whether it is logged with how many that were left out.
        let table = [
            (0, "a", Some(0)),
            (1, "a", None),
            (2, "b", Some(0)),
            (59, "a", None),
            (60, "a", Some(2)),
            (61, "b", None),
            (119, "a", None),
            (500, "a", Some(1)),
            (501, "b", Some(1)),
        ];
        for (seconds, reason, logged) in table {
            let got = limit.event(reason, start + Duration::from_secs(seconds));
            assert_eq!(got, logged, "{reason} after {seconds} s");
        }
    }
}
