//! Errors of a server that did not start, or did not end well.

use crate::extproc::server::StartError;

/// Error of a server that did not start, or did not end well. One line: problem, place, remedy.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings, the configuration or the endpoints file are wrong.
    #[error("{0}")]
    Config(String),
    /// Failure outside of the process.
    #[error("{0}")]
    Failed(String),
    /// A second stop came while streams were open.
    #[error("stopped twice, open streams were closed; one signal lets them finish")]
    Forced,
}

impl From<StartError> for RunError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Tls(_) => Self::Config(error.to_string()),
            StartError::System(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<prometheus::Error> for RunError {
    fn from(error: prometheus::Error) -> Self {
        Self::Failed(format!("cannot register metrics: {error}"))
    }
}

impl From<std::io::Error> for RunError {
    fn from(error: std::io::Error) -> Self {
        StartError::System(error).into()
    }
}
