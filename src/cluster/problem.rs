//! Problems with requests to the API server.

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Error;
use kube::client::DynBody;
use kube::core::Status;
use tower::BoxError;

/// Failure of a request to the API server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No object of this name, or no such kind of objects.
    #[error("not found: {0}")]
    NotFound(String),
    /// The version to go on from is too old. What there is has to be listed again.
    #[error("the resource version of the watch is too old: {0}")]
    Expired(String),
    /// The account has no right to do it, or is not known.
    #[error("{0}")]
    Denied(String),
    /// Another client changed the object first, or created it.
    #[error("another writer changed the object first: {0}")]
    Conflict(String),
    /// The server refuses for another reason, or is not able to.
    #[error("the API server responds with {code}: {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// The server's message.
        message: String,
    },
    /// The server has too much to do, or is not able to, and says when to ask again.
    #[error("the API server responds with {code}, and asks to wait {} s: {message}", .after.as_secs())]
    Busy {
        /// The HTTP status.
        code: u16,
        /// The server's message.
        message: String,
        /// `Retry-After`.
        after: Duration,
    },
    /// No response in time.
    #[error("the API server did not respond within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// Not sent: earlier requests took up the time for all of them together.
    #[error("not sent yet: earlier requests took up the time")]
    Unsent,
    /// The server can't be reached, or the connection broke.
    #[error("the API server can't be reached: {0}")]
    Unreachable(String),
    /// A response that makes no sense.
    #[error("the API server's response can't be read: {0}")]
    Unreadable(String),
}

impl Problem {
    /// Returns `true` if the server itself said no, so that asking for the same again is futile.
    pub fn is_response(&self) -> bool {
        !matches!(self, Self::TimedOut(_) | Self::Unsent | Self::Unreachable(_))
    }

    /// Returns `true` if the server may have carried out what it was asked for, or may do so yet.
    pub fn is_unsure(&self) -> bool {
        match self {
            // Without any time nothing was sent.
            Self::TimedOut(after) => !after.is_zero(),
            Self::Unreachable(_) | Self::Unreadable(_) => true,
            Self::Refused { code, .. } | Self::Busy { code, .. } => (500..600).contains(code),
            Self::NotFound(_) | Self::Expired(_) | Self::Denied(_) | Self::Conflict(_) | Self::Unsent => {
                false
            }
        }
    }

    /// Returns `true` if it is a PodDisruptionBudget that keeps a pod from being evicted.
    pub fn is_of_a_budget(&self) -> bool {
        let (Self::Busy { message, .. } | Self::Refused { message, .. }) = self else { return false };
        // The server's words, with one and with several budgets:
        // "... would violate the pod's disruption budget", "This pod has more than one PodDisruptionBudget".
        self.is_of_the_server()
            && (message.contains("disruption budget") || message.contains("PodDisruptionBudget"))
    }

    /// For how long the server asks to wait; zero: it doesn't say.
    pub fn retry_after(&self) -> Duration {
        if let Self::Busy { after, .. } = self { *after } else { Duration::ZERO }
    }

    /// Returns `true` if the server is overloaded or fails, which has nothing to do with what was asked.
    pub fn is_of_the_server(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Refused { code: 429 | 500..=599, .. })
    }
}

/// Turns a refusal with a `Retry-After` into a [`Problem::Busy`]; the client would drop the header.
pub(super) async fn keep_retry_after(
    response: Response<Box<DynBody>>,
) -> Result<Response<Box<DynBody>>, BoxError> {
    let (code, after) = (response.status(), retry_after(response.headers()));
    let Some(after) = after.filter(|_| code == StatusCode::TOO_MANY_REQUESTS || code.is_server_error())
    else {
        return Ok(response);
    };
    let body = response.into_body().collect().await?.to_bytes();
    Err(Problem::Busy { code: code.as_u16(), message: said(&body), after }.into())
}

/// Seconds. A date, which only a proxy might send, says nothing.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The message of a Status, or the text of what is none.
fn said(body: &Bytes) -> String {
    let status = serde_json::from_slice::<Status>(body).ok().map(|status| status.message);
    status.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned())
}

impl From<&Status> for Problem {
    fn from(status: &Status) -> Self {
        // A response that is not a Status has neither, for example a proxy's page.
        let said = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
        let message = said.cloned().unwrap_or_else(|| "no reason given".to_owned());
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        match status.code {
            404 => Self::NotFound(message),
            410 => Self::Expired(message),
            401 => Self::Denied(format!(
                "the API server does not know us: {message}; check the service account's token"
            )),
            403 => Self::Denied(message),
            409 => Self::Conflict(message),
            code @ (429 | 500..=599) if seconds > 0 => {
                Self::Busy { code, message, after: Duration::from_secs(seconds.into()) }
            }
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
            Error::Service(error) => match error.downcast::<Self>() {
                Ok(problem) => *problem,
                Err(error) => Self::Unreachable(innermost(&*error)),
            },
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
    fn problems_follow_the_response_status() {
        let of = |code| Problem::from(&Status { code, message: "m".to_owned(), ..Status::default() });
        assert_eq!(of(404), Problem::NotFound("m".to_owned()));
        assert_eq!(of(410), Problem::Expired("m".to_owned()));
        assert_eq!(of(409), Problem::Conflict("m".to_owned()));
        assert_eq!(of(403), Problem::Denied("m".to_owned()));
        assert!(matches!(of(401), Problem::Denied(_)));
        assert_eq!(of(503), Problem::Refused { code: 503, message: "m".to_owned() });
        let page =
            Problem::from(&Status { code: 502, reason: "Bad Gateway".to_owned(), ..Status::default() });
        assert_eq!(page.to_string(), "the API server responds with 502: Bad Gateway");
        assert!(page.is_response() && !Problem::Unreachable(String::new()).is_response());
        assert!(page.is_of_the_server() && of(429).is_of_the_server() && of(500).is_of_the_server());
        assert!(!of(400).is_of_the_server() && !of(410).is_of_the_server() && !of(403).is_of_the_server());
    }

    #[test]
    fn status_details_give_the_retry_delay() {
        let text = r#"{"kind":"Status","code":429,"message":"m","details":{"retryAfterSeconds":3}}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        let after = Duration::from_secs(3);
        assert_eq!(Problem::from(&status), Problem::Busy { code: 429, message: "m".to_owned(), after });
    }

    #[test]
    fn retry_after_accepts_seconds_only() {
        for (written, expected) in
            [("7", Some(7)), (" 0 ", Some(0)), ("-1", None), ("Wed, 21 Oct 2026", None)]
        {
            let headers = [(RETRY_AFTER, http::HeaderValue::from_static(written))].into_iter().collect();
            assert_eq!(retry_after(&headers), expected.map(Duration::from_secs), "{written}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
