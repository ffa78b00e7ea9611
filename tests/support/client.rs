//! HTTP clients: HTTP/1.1, and HTTP/2 without TLS.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use xxhash_rust::xxh64::xxh64;

/// The body of a request.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Protocol {
    Http1,
    /// With prior knowledge.
    Http2,
}

/// One connection.
pub(crate) enum Client {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr, protocol: Protocol) -> hyper::Result<Self> {
        let io = TokioIo::new(TcpStream::connect(to).await.unwrap());
        Ok(match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                tokio::spawn(connection);
                Self::Http1(sender)
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                tokio::spawn(connection);
                Self::Http2(sender)
            }
        })
    }

    /// Sends a request, and gives its response when the headers are there.
    pub(crate) async fn begin(&mut self, mut request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                request.headers_mut().insert("host", "models".parse().unwrap());
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                *request.uri_mut() = format!("http://models{}", request.uri().path()).parse().unwrap();
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Sends a request and reads its response to the end.
    pub(crate) async fn exchange(&mut self, request: Request<Body>) -> hyper::Result<HttpResponse> {
        let (parts, body) = self.begin(request).await?.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().cloned();
        Ok(HttpResponse { status: parts.status, headers: parts.headers, body: body.to_bytes(), trailers })
    }
}

/// One request on a connection of its own, which must be answered.
pub(crate) async fn send(to: SocketAddr, protocol: Protocol, request: Request<Body>) -> HttpResponse {
    let mut client = Client::connect(to, protocol).await.unwrap();
    client.exchange(request).await.unwrap()
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl HttpResponse {
    /// A header's text; empty when there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The number of the simulated server that responded.
    pub(crate) fn server(&self) -> usize {
        let name = self.header("x-inference-pod");
        let number = name.strip_prefix("sim-").and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("not from a simulated server: {self:?}"))
    }

    /// Asserts that the server got exactly these bytes as the body.
    #[track_caller]
    pub(crate) fn assert_received(&self, body: &[u8]) {
        assert_eq!(self.header("x-sim-body-bytes"), body.len().to_string());
        assert_eq!(self.header("x-sim-body-xxh64"), format!("{:016x}", xxh64(body, 0)));
    }
}

/// No body.
pub(crate) fn empty() -> Body {
    full("")
}

/// A body whose length is known.
pub(crate) fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed_unsync()
}

/// A body that ends with trailers.
pub(crate) fn with_trailers(body: impl Into<Bytes>, trailers: HeaderMap) -> Body {
    let frames = [Frame::data(body.into()), Frame::trailers(trailers)];
    StreamBody::new(stream::iter(frames.map(Ok))).boxed_unsync()
}
