//! Errors of replays.

use std::time::Duration;

use usher_core::config::ConfigError;

/// Longest time in which requests come.
pub(super) const LONGEST: Duration = Duration::from_secs(720 * 3600);

/// Error of a replay. Its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A configuration is not valid.
    #[error("{}", error.in_file(policy))]
    Config {
        /// Name that the user gave it.
        policy: String,
        /// Error in it.
        error: Box<ConfigError>,
    },
    /// A server is not valid.
    #[error("{0}")]
    Server(#[from] crate::sim::ConfigError),
    /// No requests.
    #[error("a replay needs at least one {0}")]
    Nothing(&'static str),
    /// Requests over more hours than a replay may have.
    #[error(
        "the last request comes {} hours after the first, and a replay has {} hours at most; give less of the trace, or let it come faster",
        .0.as_secs() / 3600,
        LONGEST.as_secs() / 3600
    )]
    TooLong(Duration),
    /// A capacity policy can't be compared.
    #[error("{0}")]
    Sizing(String),
    /// Bug of the simulation.
    #[error("{0}")]
    Metrics(String),
}
