//! A number of replicas that was written.

use std::time::Duration;

/// A number of replicas that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Number that was there.
    pub from: u32,
    /// Number that was written.
    pub to: u32,
    /// Time since the server's start.
    pub at: Duration,
    /// Reason.
    pub reason: String,
}
