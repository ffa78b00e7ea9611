//! Metrics of connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::conn::ConnectionError;

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
    /// Ended by a GOAWAY frame of ours: of those, and of connections of small ports.
    pub goaway: AtomicU64,
}

impl ConnectionMetrics {
    /// A connection of this address was closed before it was open.
    pub fn refuse(&self, peer: SocketAddr, reason: &str) {
        // One line per power of two: a flood must not flood the log.
        let count = self.refused.fetch_add(1, Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(%peer, reason, count, "connection refused");
        }
    }

    /// Counts a connection of this address that we ended with GOAWAY, if that is how it ended.
    pub fn note_goaway(&self, peer: SocketAddr, ended: &Result<(), ConnectionError>) {
        if let Some(reason) = ended.as_ref().err().and_then(ConnectionError::go_away) {
            let count = self.goaway.fetch_add(1, Relaxed) + 1;
            // As above: whoever may connect may have this done as often as they like.
            if count.is_power_of_two() {
                tracing::warn!(%peer, ?reason, count, "connection ended with GOAWAY");
            }
        }
    }
}
