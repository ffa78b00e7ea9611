//! Metrics of connections.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::conn::ConnectionError;
use super::counted::TOO_MANY_TRAILERS;

/// Time in which one line is logged per reason and address: whoever may connect may have us end or refuse connections as
/// often as they like, and a flood must not flood the log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Reasons and addresses of which lines are logged in this time at most.
const LOG_MOST: usize = 64;

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
    /// reason and address in a minute is logged.
    pub goaway: AtomicU64,
    // Guard the reasons that were logged. Taken when a connection is refused or ended by us.
    logged_refused: Mutex<RateLimit<(&'static str, IpAddr)>>,
    logged_ended: Mutex<RateLimit<(Option<u32>, IpAddr)>>,
}

impl ConnectionMetrics {
    /// A connection of this address was closed before it was open.
    pub fn refuse(&self, peer: SocketAddr, reason: &'static str) {
        let count = self.refused.fetch_add(1, Relaxed) + 1;
        if let Some(left_out) = RateLimit::pass(&self.logged_refused, (reason, peer.ip())) {
            tracing::warn!(%peer, reason, count, left_out, "connection refused");
        }
    }

    /// Counts a connection of this address that we ended with GOAWAY, if that is how it ended, and logs it and one
    /// that we closed for its trailers.
    pub fn note_end(&self, peer: SocketAddr, ended: &Result<(), ConnectionError>) {
        let Err(error) = ended else { return };
        if let Some(reason) = error.go_away() {
            let count = self.goaway.fetch_add(1, Relaxed) + 1;
            if let Some(left_out) = RateLimit::pass(&self.logged_ended, (Some(reason.into()), peer.ip())) {
                tracing::warn!(%peer, ?reason, count, left_out, "connection ended with GOAWAY");
            }
        } else if error.is_trailers()
            && let Some(left_out) = RateLimit::pass(&self.logged_ended, (None, peer.ip()))
        {
            tracing::warn!(%peer, error = TOO_MANY_TRAILERS, left_out, "connection closed");
        }
    }
}

/// Limits log lines to one per reason and [`LOG_EVERY`], and to [`LOG_MOST`] in that time.
#[derive(Debug)]
struct RateLimit<R> {
    /// Time of the last line of each.
    last: HashMap<R, Instant>,
    /// Events since the last line.
    left_out: u64,
}

impl<R> Default for RateLimit<R> {
    fn default() -> Self {
        Self { last: HashMap::new(), left_out: 0 }
    }
}

impl<R: Eq + Hash> RateLimit<R> {
    fn pass(limit: &Mutex<Self>, reason: R) -> Option<u64> {
        limit.lock().unwrap_or_else(PoisonError::into_inner).event(reason, Instant::now())
    }

    /// Notes an event. If it is to be logged, returns the number of those before it that were not.
    fn event(&mut self, reason: R, now: Instant) -> Option<u64> {
        self.last.retain(|_, last| now - *last < LOG_EVERY);
        if self.last.len() == LOG_MOST || self.last.contains_key(&reason) {
            self.left_out += 1;
            return None;
        }
        self.last.insert(reason, now);
        Some(std::mem::take(&mut self.left_out))
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
            (2, "b", Some(1)),
            (59, "a", None),
            (60, "a", Some(1)),
            (61, "b", None),
            (119, "a", None),
            (500, "a", Some(2)),
            (501, "b", Some(0)),
        ];
        for (seconds, reason, logged) in table {
            let got = limit.event(reason, start + Duration::from_secs(seconds));
            assert_eq!(got, logged, "{reason} after {seconds} s");
        }
    }

    #[test]
    fn many_addresses_are_a_bounded_number_of_lines() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        let logged = |limit: &mut RateLimit<u32>, now| {
            (0..1000).filter(|address| limit.event(*address, now).is_some()).count()
        };
        assert_eq!(logged(&mut limit, start), LOG_MOST);
        assert_eq!(limit.event(5000, start + LOG_EVERY), Some(1000 - LOG_MOST as u64));
    }
}
