//! One connection: HTTP/2 settings, and its life from the first byte to the last
//! stream.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;

/// Time for a TLS handshake, or for the first byte in plain text.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes a gateway may send on one stream before we have read them. A prompt of 50k
/// tokens arrives without waiting for the window to open; what a stream can make us
/// hold unread stays small.
const STREAM_WINDOW: u32 = 256 * 1024;

/// Bytes a gateway may send on all streams of a connection before we have read them.
/// A gateway puts all its requests on few connections, so this is many streams' worth.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// Largest frame we take. Gateways send bodies in chunks of 32 KiB or 64 KiB: one frame
/// each, if the gateway makes use of it.
const MAX_FRAME: u32 = 64 * 1024;

/// Streams a connection may have open. The peer has no limit, and hyper's default of 200
/// would queue requests inside the gateway, where nobody sees them: every HTTP request
/// in progress holds a stream until its response ends. The gateway's own circuit
/// breaker (40,000 in the sample configurations) is meant to act first.
const MAX_STREAMS: u32 = 100_000;

/// Streams a gateway may open and reset before we have looked at them. h2's default of
/// 20 would end the connection, with all requests on it, when a few dozen users hang up
/// at once.
const MAX_RESET_UNSEEN: usize = 1024;

/// Size of the gRPC headers of a call, in bytes. The headers of the HTTP request travel
/// in a message, not here.
const MAX_HEADER_LIST: u32 = 16 * 1024;

/// Response bytes buffered per stream before its producer has to wait.
const SEND_BUFFER: usize = 256 * 1024;

/// What a connection listens to while it is served.
#[derive(Debug, Clone)]
pub struct Lifetime {
    /// Cancelled: no new streams (GOAWAY), finish the open ones.
    pub drain: CancellationToken,
    /// Cancelled: close now.
    pub close: CancellationToken,
}

impl Lifetime {
    /// Neither draining nor closing.
    #[must_use]
    pub fn new() -> Self {
        Self { drain: CancellationToken::new(), close: CancellationToken::new() }
    }

    /// A lifetime within this one. A connection looks at its lifetime whenever it is
    /// woken; with tokens of its own it shares no lock with other threads.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { drain: self.drain.child_token(), close: self.close.child_token() }
    }
}

impl Default for Lifetime {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The socket, or the TLS handshake.
    #[error("opening: {0}")]
    Open(#[from] io::Error),
    /// Neither a handshake nor a byte in time.
    #[error("said nothing for {OPEN_TIMEOUT:?}")]
    OpenTimeout,
    /// The client doesn't speak HTTP/2, breaks it, or went away.
    #[error("HTTP/2: {0}")]
    Http(#[from] hyper::Error),
}

/// Waits for `opening` (a handshake, the first byte), but not for long; `None` when the
/// lifetime ends first. Nothing is lost then: there is no stream yet.
///
/// # Errors
/// When the client sends nothing, or nonsense.
pub async fn open<T>(
    opening: impl Future<Output = io::Result<T>>,
    lifetime: &Lifetime,
) -> Result<Option<T>, ConnectionError> {
    tokio::select! {
        opened = tokio::time::timeout(OPEN_TIMEOUT, opening) => match opened {
            Ok(opened) => Ok(Some(opened?)),
            Err(_) => Err(ConnectionError::OpenTimeout),
        },
        () = lifetime.drain.cancelled() => Ok(None),
        () = lifetime.close.cancelled() => Ok(None),
    }
}

/// Serves HTTP/2 on `io` until the client leaves or the lifetime ends. Streams run as
/// tasks of the current runtime.
///
/// Clients may ping as often as they like: keepalive pings of Envoy and grpc-go are
/// answered, and never a reason to close.
///
/// # Errors
/// When the client doesn't speak HTTP/2, breaks it or goes away.
pub async fn serve<I, S>(io: I, service: S, lifetime: &Lifetime) -> Result<(), ConnectionError>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(MAX_FRAME)
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_RESET_UNSEEN)
            .max_header_list_size(MAX_HEADER_LIST)
            .max_send_buf_size(SEND_BUFFER)
            // gRPC has no use for a date.
            .auto_date_header(false)
            .serve_connection(TokioIo::new(io), service)
    );
    tokio::select! {
        result = connection.as_mut() => return Ok(result?),
        () = lifetime.drain.cancelled() => connection.as_mut().graceful_shutdown(),
        () = lifetime.close.cancelled() => return Ok(()),
    }
    tokio::select! {
        result = connection => Ok(result?),
        () = lifetime.close.cancelled() => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_given_up() {
        let opened = open(std::future::pending::<io::Result<()>>(), &Lifetime::new()).await;
        assert!(matches!(opened, Err(ConnectionError::OpenTimeout)));
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_silent_client() {
        for stop in
            [|lifetime: &Lifetime| lifetime.drain.cancel(), |lifetime: &Lifetime| lifetime.close.cancel()]
        {
            let lifetime = Lifetime::new();
            let connection = lifetime.child();
            stop(&lifetime);
            let opened = open(std::future::pending::<io::Result<()>>(), &connection).await;
            assert!(matches!(opened, Ok(None)));
        }
    }
}
