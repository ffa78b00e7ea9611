//! Failures of requests.

use std::borrow::Cow;

/// A request that had no good end: a kind, which is counted, and what was said about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Failure {
    /// Name under which it is counted, such as `http-503`, `grpc-14` or `timeout`.
    pub kind: Cow<'static, str>,
    /// One line for a human: what the server or the system said.
    pub detail: String,
}

impl Failure {
    /// A failure of a kind, and what is known about it.
    pub fn new(kind: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        let mut detail: String = detail.into();
        detail = detail.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some((end, _)) = detail.char_indices().nth(MOST_DETAIL) {
            detail.truncate(end);
        }
        Self { kind: kind.into(), detail }
    }

    /// A connection that could not be made, or broke.
    pub fn of_io(error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::ConnectionRefused => "connection-refused",
            _ => "connection-lost",
        };
        Self::new(kind, error.to_string())
    }

    /// A reply that the protocol does not allow here.
    pub fn protocol(detail: impl Into<String>) -> Self {
        Self::new("protocol", detail)
    }
}

impl From<h2::Error> for Failure {
    /// The failure of an HTTP/2 stream or of its connection.
    fn from(error: h2::Error) -> Self {
        let kind = if error.is_reset() { "stream-reset" } else { "connection-lost" };
        match error.get_io() {
            Some(io) => Self::new("connection-lost", io.to_string()),
            None => Self::new(kind, error.to_string()),
        }
    }
}

/// Characters of a detail that are kept: a server may respond with a page.
const MOST_DETAIL: usize = 200;
