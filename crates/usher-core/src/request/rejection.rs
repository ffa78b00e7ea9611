//! Rejections: requests that are not sent to a model server, and the response that the client gets instead.

use std::borrow::Cow;

/// Kinds of refusal, with the names and statuses of llm-d-router's errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request can't be understood.
    BadRequest,
    /// A precondition of the request doesn't hold.
    PreconditionFailed,
    /// The body doesn't come. Ours: llm-d-router waits for it.
    RequestTimeout,
    /// The body is larger than allowed. Ours: llm-d-router has no limit.
    PayloadTooLarge,
    /// The pool is saturated.
    ResourceExhausted,
    /// No endpoint for the request.
    ServiceUnavailable,
    /// The request ran, and was given up for another.
    Evicted,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::BadRequest,
        Self::PreconditionFailed,
        Self::RequestTimeout,
        Self::PayloadTooLarge,
        Self::ResourceExhausted,
        Self::Evicted,
        Self::ServiceUnavailable,
    ];

    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::RequestTimeout => 408,
            Self::PreconditionFailed => 412,
            Self::PayloadTooLarge => 413,
            Self::ResourceExhausted | Self::Evicted => 429,
            Self::ServiceUnavailable => 503,
        }
    }

    /// The name in bodies and in the label `error_code`.
    pub fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::PreconditionFailed => "PreconditionFailed",
            Self::RequestTimeout => "RequestTimeout",
            Self::PayloadTooLarge => "PayloadTooLarge",
            Self::ResourceExhausted | Self::Evicted => "ResourceExhausted",
            Self::ServiceUnavailable => "ServiceUnavailable",
        }
    }
}

/// Value of the reason header when nothing can be picked.
pub const NO_ENDPOINTS: &str = "rejected-no-endpoints";

/// Value of the reason header when the pool has no room.
pub const SATURATED: &str = "rejected-saturated";

/// Value of the reason header when a running request was given up.
const EVICTED: &str = "evicted";

/// Response to a client whose request gets none from a model server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Kind of refusal.
    pub code: Code,
    /// Value of the header `x-llm-d-request-dropped-reason`.
    pub reason: Option<&'static str>,
    /// Value of the header `retry-after`, seconds.
    pub retry_after: Option<u32>,
    /// For the client; never any of its prompt.
    pub message: Cow<'static, str>,
}

impl Rejection {
    /// A refusal without headers.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, reason: None, retry_after: None, message: message.into() }
    }

    /// Rejection for lack of a candidate.
    pub fn no_endpoints() -> Self {
        Self {
            reason: Some(NO_ENDPOINTS),
            ..Self::new(
                Code::ServiceUnavailable,
                "failed to find endpoint candidates for serving the request",
            )
        }
    }

    /// No screener's candidate is every screener's.
    pub fn screened() -> Self {
        let message = "screeners eliminated all endpoint candidates";
        Self { reason: Some(NO_ENDPOINTS), ..Self::new(Code::ServiceUnavailable, message) }
    }

    /// Rejection for lack of capacity; the client may retry soon.
    pub fn saturated(message: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Some(SATURATED), retry_after: Some(1), ..Self::new(Code::ResourceExhausted, message) }
    }

    /// Rejection of a running request that was evicted for one of higher priority.
    pub fn evicted() -> Self {
        Self { reason: Some(EVICTED), ..Self::new(Code::Evicted, "request evicted by flow control") }
    }

    /// The body that the client gets; its prefix is llm-d-router's, who has none for evictions.
    pub fn body(&self) -> String {
        if self.code == Code::Evicted {
            return self.message.clone().into_owned();
        }
        format!("inference error: {} - {}", self.code.name(), self.message)
    }
}
