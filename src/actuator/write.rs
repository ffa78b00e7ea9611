//! Record of a write of replicas.

use std::time::Duration;

/// A write of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Replicas before.
    pub from: u32,
    /// Replicas written.
    pub to: u32,
    /// Time since the start of the process.
    pub at: Duration,
    /// Reason.
    pub reason: String,
}
