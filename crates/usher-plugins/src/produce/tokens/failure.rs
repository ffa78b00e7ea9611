//! Reasons why there are no tokens.

use std::fmt;

use http::StatusCode;

/// Why a server told no tokens.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request has a body that no call can be made of, or the response one that has no tokens.
    Unreadable(&'static str),
    Unreachable(hyper_util::client::legacy::Error),
    Refused(StatusCode),
    /// The response ended early, or is too long.
    Cut,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(what) => write!(f, "the {what} can't be read"),
            Self::Unreachable(error) => write!(f, "{error}"),
            Self::Refused(status) => write!(f, "status {status}"),
            Self::Cut => f.write_str("the response ended early or is too long"),
        }
    }
}
