//! Replies of an exchange to the gateway.

use std::sync::Arc;

use bytes::Bytes;

use usher_core::request::{Attribute, Header, Pieces, Rejection};

/// A response to the gateway, independent of how it is encoded.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Destination of the request.
    RequestHeaders(Box<Route>),
    /// A chunk of the body to send upstream.
    RequestBody {
        /// At most [`CHUNK_LIMIT`] bytes.
        data: Pieces,
        /// Nothing follows.
        end_of_stream: bool,
    },
    /// Go on with the chunk that you have: outside of full duplex.
    RequestBodyAsIs,
    /// Go on with the trailers.
    RequestTrailers,
    /// Go on with the response's headers, these set.
    ResponseHeaders(Vec<Header>),
    /// A chunk of the response to send to the client.
    ResponseBody {
        /// At most [`CHUNK_LIMIT`] bytes.
        data: Pieces,
        /// Nothing follows.
        end_of_stream: bool,
        /// Numbers for the gateway's metadata; only with the last chunk.
        attributes: Vec<Attribute>,
    },
    /// Go on with the chunk that you have: outside of full duplex.
    ResponseBodyAsIs {
        /// Numbers for the gateway's metadata; only with the last chunk.
        attributes: Vec<Attribute>,
    },
    /// Go on with the trailers.
    ResponseTrailers {
        /// Numbers for the gateway's metadata.
        attributes: Vec<Attribute>,
    },
    /// Respond to the client yourself. Nothing follows.
    Immediate(Rejection),
}

/// Largest chunk of a body in a reply: gateways cap theirs at 64 KB, headers of
/// the message included.
pub const CHUNK_LIMIT: usize = 62_000;

/// The destination of a request and what else changes in its headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// `host:port` of the picks, the first choice first, separated by commas.
    pub destination: Bytes,
    /// A request id, where the client sent none.
    pub request_id: Option<String>,
    /// Headers that plugins set.
    pub headers: Vec<Header>,
    /// The response is read: the request accepts no encoding of it.
    pub plain: bool,
    /// Length of the body, where it changed.
    pub content_length: Option<usize>,
    /// Total score per candidate that was not filtered out, where asked for.
    pub scores: Option<Vec<(Arc<str>, f64)>>,
}
