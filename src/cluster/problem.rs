//! What can go wrong with a request to the API server.

use std::time::Duration;

use kube::Error;
use kube::core::Status;

/// Why the API server did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There is no such object, or no such kind of objects.
    #[error("not found: {0}")]
    NotFound(String),
    /// The version to go on from is too old. What there is has to be listed again.
    #[error("the version to go on from is too old: {0}")]
    Expired(String),
    /// The account has no right to do it, or is not known.
    #[error("{0}")]
    Denied(String),
    /// Somebody else changed the object first, or created it.
    #[error("somebody else was first: {0}")]
    Conflict(String),
    /// The server refuses for another reason, or is not able to.
    #[error("the API server answers {code}: {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// What the server says.
        message: String,
    },
    /// No answer in time.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The server can't be reached, or the connection broke.
    #[error("the API server can't be reached: {0}")]
    Unreachable(String),
    /// An answer that makes no sense.
    #[error("the API server's answer can't be read: {0}")]
    Unreadable(String),
}

impl Problem {
    /// Whether the server itself said no, so that asking for the same again is futile.
    pub fn is_answer(&self) -> bool {
        !matches!(self, Self::TimedOut(_) | Self::Unreachable(_))
    }
}

impl From<&Status> for Problem {
    fn from(status: &Status) -> Self {
        // An answer that is not a Status has neither, for example a proxy's page.
        let said = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
        let message = said.cloned().unwrap_or_else(|| "no reason given".to_owned());
        match status.code {
            404 => Self::NotFound(message),
            410 => Self::Expired(message),
            401 => Self::Denied(format!(
                "the API server does not know us: {message}; check the service account's token"
            )),
            403 => Self::Denied(message),
            409 => Self::Conflict(message),
            code => Self::Refused { code, message },
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Api(status) => Self::from(&*status),
            Error::SerdeError(error) => Self::Unreadable(error.to_string()),
            Error::FromUtf8(error) => Self::Unreadable(error.to_string()),
            other => Self::Unreachable(innermost(&other)),
        }
    }
}

/// The cause of a chain of errors that each repeat the one below: the operating
/// system's words.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart_by_their_status() {
        let of = |code| Problem::from(&Status { code, message: "m".to_owned(), ..Status::default() });
        assert_eq!(of(404), Problem::NotFound("m".to_owned()));
        assert_eq!(of(410), Problem::Expired("m".to_owned()));
        assert_eq!(of(409), Problem::Conflict("m".to_owned()));
        assert_eq!(of(403), Problem::Denied("m".to_owned()));
        assert!(matches!(of(401), Problem::Denied(_)));
        assert_eq!(of(503), Problem::Refused { code: 503, message: "m".to_owned() });
        let page =
            Problem::from(&Status { code: 502, reason: "Bad Gateway".to_owned(), ..Status::default() });
        assert_eq!(page.to_string(), "the API server answers 502: Bad Gateway");
        assert!(page.is_answer() && !Problem::Unreachable(String::new()).is_answer());
    }
}
