//! Errors of a load that could not be made.

use std::path::PathBuf;

/// Error of a load that could not be made. Its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No server listens there.
    #[error("can't reach {target}: {reason}; is it running, and is the address right?")]
    Unreachable {
        /// Address or URL of the target.
        target: String,
        /// Error of the attempt to reach it.
        reason: String,
    },
    /// The server has no TLS.
    #[error("{target} doesn't speak TLS: {reason}; try --tls off")]
    NoTls {
        /// Address of the target.
        target: String,
        /// Error of the handshake.
        reason: String,
    },
    /// Another server listens there.
    #[error("{target} is no ext_proc server: {reason}; is it the gRPC port, and is --tls right?")]
    NotExtProc {
        /// Address of the target.
        target: String,
        /// Reason in its response.
        reason: String,
    },
    /// The trace is of no use.
    #[error("cannot use {}: {reason}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Error of reading or parsing it.
        reason: String,
    },
    /// The process doesn't exist, or the system can't measure it.
    #[error("can't watch process {pid}: {reason}")]
    Process {
        /// Process id.
        pid: u32,
        /// Reason.
        reason: String,
    },
    /// Interrupted during the warm-up.
    #[error("interrupted before anything was measured")]
    Interrupted,
}
