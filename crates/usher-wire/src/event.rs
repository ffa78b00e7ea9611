//! Messages from a gateway, independent of their encoding.

use usher_core::endpoints::SubsetHint;
use usher_core::endpoints::health::ResponseStatus;
use usher_core::request::{Headers, Pieces, Served};

/// A message from the gateway.
#[derive(Clone, Debug)]
pub struct Message {
    /// Part of a request or of a response that the message carries.
    pub event: Event,
    /// Modes of the bodies; only in a stream's first message, and not by every gateway.
    pub modes: Option<Modes>,
    /// Endpoints that may be picked, where the message says so.
    pub subset: Option<SubsetHint>,
    /// Endpoint that served.
    pub served: Served,
}

/// A part of a request or of a response.
#[derive(Clone, Debug)]
pub enum Event {
    /// The request's headers.
    RequestHeaders {
        /// The headers.
        headers: Headers,
        /// `true` if no body follows.
        end_of_stream: bool,
    },
    /// A chunk of the request's body.
    RequestBody {
        /// The bytes; may be empty.
        data: Pieces,
        /// The body ends here.
        end_of_stream: bool,
    },
    /// The request's trailers; they end its body.
    RequestTrailers,
    /// The response's headers.
    ResponseHeaders {
        /// Status of the response.
        status: ResponseStatus,
        /// The response is a stream of server-sent events.
        event_stream: bool,
        /// `true` if the body is compressed, or encoded in another way that can't be read.
        encoded: bool,
        /// `true` if no body follows.
        end_of_stream: bool,
    },
    /// A chunk of the response's body.
    ResponseBody {
        /// The bytes; may be empty.
        data: Pieces,
        /// The body ends here.
        end_of_stream: bool,
    },
    /// The response's trailers; they end its body.
    ResponseTrailers,
}

/// Way in which a gateway sends a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Both directions at their own pace: what we are made for.
    FullDuplex,
    /// Not at all.
    None,
    /// Every message waits for its reply.
    OneToOne,
}

impl Mode {
    /// Name in metrics and in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::FullDuplex => "full-duplex",
            Self::None => "none",
            Self::OneToOne => "one-to-one",
        }
    }
}

/// Way in which a gateway sends both bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// The request's.
    pub request: Mode,
    /// The response's.
    pub response: Mode,
}
