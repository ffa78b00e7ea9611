//! Errors of recordings that can't be read.

use std::io;
use std::time::Duration;

use usher_core::recording::VERSION;

use crate::replay::error::LONGEST;
use crate::replay::servers::MOST_SERVERS;

/// Reason why a recording can't be read. Its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system refuses it.
    #[error("cannot read {file}: {error}")]
    System {
        /// The file.
        file: String,
        /// Reason of the failure.
        error: io::Error,
    },
    /// The first line is no header.
    #[error("{0} is no recording: its first line is no header; give a file that usher serve --record wrote")]
    NoRecording(String),
    /// A later version wrote it.
    #[error(
        "{file}:{line}: version {version} of the format, and this usher reads versions up to {VERSION}; replay it with the version of usher that wrote it"
    )]
    Newer {
        /// The file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
        /// The version.
        version: u32,
    },
    /// More endpoints than a replay may have.
    #[error(
        "{file}:{line}: one endpoint more than the {MOST_SERVERS} that a replay has at most; give less of the recording"
    )]
    Endpoints {
        /// The file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
    },
    /// Longer than a replay may be.
    #[error(
        "{}:{}: this request comes {} hours after that of {}:{}, and a replay has {} hours at most; leave out the line that is wrong, or give less of the recording",
        last.0,
        last.1,
        span.as_secs() / 3600,
        first.0,
        first.1,
        LONGEST.as_secs() / 3600
    )]
    Span {
        /// File and number of the line of the first request.
        first: (String, usize),
        /// File and number of the line of the last request.
        last: (String, usize),
        /// Time between them.
        span: Duration,
    },
    /// No request.
    #[error("there is no request in {0}; let usher serve record for a while")]
    Empty(String),
}
