//! One connection: HTTP/2 settings, and its life from the first byte to the last
//! stream.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::arrivals::{self, Replies, RequestBody};
use super::counted::{Counted, TOO_MANY_TRAILERS, Turns};
use super::executor::StreamExecutor;
use super::preface::WithPreface;
use super::spread::Streams;
use crate::memory::{ConnectionRoom, Unread};

/// Time for the TLS handshake, if any, and the client's HTTP/2 preface.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Silence after which a client is asked whether it is still there, and the time it has
/// to respond. Every HTTP/2 client answers pings, also one without a call, so an idle
/// gateway stays; who only sent a preface, or stopped reading, is gone after 80 s.
/// The gateway's event loop may stand still for seconds, hence not less.
const PING_AFTER: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for an idle connection to end that has to make room: for the client to answer the ping that
/// follows GOAWAY, after which no new stream can be on its way, and to take the last replies. Its
/// event loop may stand still for seconds.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest frame we take. Gateways send bodies in chunks of 32 KiB or 64 KiB: one frame
/// each, if the gateway makes use of it.
const MAX_FRAME: u32 = 64 * 1024;

/// Streams a gateway may open and reset before we have looked at them. h2's default of
/// 20 would end the connection, with all requests on it, when a few dozen users hang up
/// at once.
const MAX_RESET_UNSEEN: usize = 1024;

/// Size of the gRPC headers of a call, in bytes. The headers of the HTTP request travel
/// in a message, not here.
const MAX_HEADER_LIST: u32 = 16 * 1024;

/// Tokens that drain or close a connection while it is served.
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

/// Error that ended a connection early.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The socket, or the TLS handshake.
    #[error("opening: {0}")]
    Open(#[from] io::Error),
    /// No handshake, or no HTTP/2 preface, in time.
    #[error("did not start HTTP/2 within {OPEN_TIMEOUT:?}")]
    OpenTimeout,
    /// The client breaks HTTP/2, went away, or no longer responds.
    #[error("HTTP/2: {0}")]
    Http(#[from] hyper::Error),
    /// Unread data took too much memory.
    #[error("too much unread data")]
    Evicted,
    /// Idle connection closed to free memory after it ignored GOAWAY.
    #[error("idle when connections took too much memory")]
    Retired,
}

impl ConnectionError {
    /// The reason of the GOAWAY frame with which we ended the connection, if we did.
    #[must_use]
    pub fn go_away(&self) -> Option<h2::Reason> {
        let Self::Http(error) = self else { return None };
        let error = error.source()?.downcast_ref::<h2::Error>()?;
        error.reason().filter(|_| error.is_go_away() && error.is_library())
    }

    /// Returns `true` if we closed the connection for its trailers, without a GOAWAY frame.
    #[must_use]
    pub fn is_trailers(&self) -> bool {
        let Self::Http(error) = self else { return false };
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        // h2 keeps the text of an error of the socket.
        source.is_some_and(|error| error.to_string() == TOO_MANY_TRAILERS)
    }
}

/// Waits for `transport` (a TLS handshake, or nothing) and for the client's HTTP/2
/// preface on it, but not for long; `None` when the lifetime ends first. Nothing is lost
/// then: there is no stream yet.
///
/// # Errors
/// `ConnectionError` if the client sends no valid HTTP/2 preface in time.
pub async fn open<I: AsyncRead + Unpin>(
    transport: impl Future<Output = io::Result<I>>,
    lifetime: &Lifetime,
) -> Result<Option<WithPreface<I>>, ConnectionError> {
    let opening = async { WithPreface::read(transport.await?).await };
    tokio::select! {
        opened = tokio::time::timeout(OPEN_TIMEOUT, opening) => match opened {
            Ok(opened) => Ok(Some(opened?)),
            Err(_) => Err(ConnectionError::OpenTimeout),
        },
        () = lifetime.drain.cancelled() => Ok(None),
        () = lifetime.close.cancelled() => Ok(None),
    }
}

/// Serves HTTP/2 on `io` until the client leaves or the lifetime ends. `executor` runs the
/// streams. Their unread data counts in `room`.
///
/// Clients may ping as often as they like: keepalive pings of Envoy and grpc-go are
/// answered, and never a reason to close. A client that has been silent for a minute is
/// pinged, and given up if it doesn't respond.
///
/// # Errors
/// `ConnectionError` if the client violates HTTP/2, disconnects or stops responding.
pub async fn serve<I, S, B>(
    io: WithPreface<I>,
    service: S,
    lifetime: &Lifetime,
    room: ConnectionRoom,
    executor: Streams,
) -> Result<(), ConnectionError>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let (windows, evicted) = (*room.windows(), room.evicted());
    let unread = Arc::clone(room.unread());
    let (streams, lingering) = arrivals::streams(&room);
    let executor = StreamExecutor::new(executor, &streams);
    let service = service_fn(move |request: Request<Incoming>| {
        let stream_state = streams.begin();
        let response =
            service.call(request.map(|incoming| RequestBody::new(incoming, &streams, &stream_state)));
        response.map(|result| result.map(|response| response.map(|body| Replies::new(body, stream_state))))
    });
    let turns = Turns::default();
    let mut connection = pin!(
        http2::Builder::new(executor)
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .initial_stream_window_size(windows.stream)
            .initial_connection_window_size(windows.connection)
            .max_frame_size(MAX_FRAME)
            // The client is told of `windows.streams`, by `Counted`.
            .max_concurrent_streams(windows.most_streams)
            .max_pending_accept_reset_streams(MAX_RESET_UNSEEN)
            // What a gateway still sends on streams that ended early counts here: a connection
            // would be closed on which many requests were refused, and all the others with it. `Counted`
            // bounds the resets that wait to be sent.
            .max_local_error_reset_streams(None)
            .max_header_list_size(MAX_HEADER_LIST)
            .max_send_buf_size(windows.unsent as usize)
            // gRPC has no use for a date.
            .auto_date_header(false)
            .serve_connection(TokioIo::new(Counted::new(io, room, turns.clone())), service)
    );
    tokio::select! {
        result = turns.of(connection.as_mut()) => return Ok(result?),
        () = lingering.read(&lifetime.drain) => connection.as_mut().graceful_shutdown(),
        () = lifetime.close.cancelled() => return Ok(()),
        () = evicted.cancelled() => return Err(ConnectionError::Evicted),
        () = unread.retired().cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        // First, so that what streams have said is sent before the connection is found idle.
        biased;
        result = turns.of(connection) => Ok(result?),
        () = lifetime.close.cancelled() => Ok(()),
        () = evicted.cancelled() => Err(ConnectionError::Evicted),
        () = overdue(&unread) => Err(ConnectionError::Retired),
    }
}

/// Waits until a connection was told to end, and should have: no stream is open when
/// [`LEAVE_TIMEOUT`] is over, or earlier where memory is needed at once.
async fn overdue(connection: &Unread) {
    connection.retired().cancelled().await;
    // Either is the end of its time.
    let _ = tokio::time::timeout(LEAVE_TIMEOUT, connection.close_now().cancelled()).await;
    loop {
        while !connection.is_idle() {
            tokio::time::sleep(LEAVE_TIMEOUT).await;
        }
        // A stream of another thread may have ended since the connection looked, which then sends what it
        // has said. It may accept another one as it does.
        tokio::task::yield_now().await;
        if connection.is_idle() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Empty;
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;
    use crate::extproc::preface::PREFACE;
    use crate::memory::{OpenStream, Windows};

    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const RST_STREAM: u8 = 3;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    const ACK: u8 = 1;

    type Served = tokio::task::JoinHandle<Result<(), ConnectionError>>;

    /// Opens and serves a connection whose requests are never answered; the other end of it.
    fn connect() -> (DuplexStream, Served, Arc<Unread>) {
        connect_to(false)
    }

    /// The same, whose requests are answered at once or never.
    fn connect_to(responds: bool) -> (DuplexStream, Served, Arc<Unread>) {
        let (client, server) = duplex(64 * 1024);
        let room = ConnectionRoom::new(&Arc::default(), Windows::LARGEST);
        let unread = Arc::clone(room.unread());
        let served = tokio::spawn(async move {
            let lifetime = Lifetime::new();
            let Some(io) = open(std::future::ready(Ok(server)), &lifetime).await? else { return Ok(()) };
            let service = service_fn(move |_| async move {
                if !responds {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            });
            serve(io, service, &lifetime, room, Streams::here()).await
        });
        (client, served, unread)
    }

    /// Type, flags and payload of the next frame; `None` at the end.
    async fn frame(client: &mut DuplexStream) -> Option<(u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.ok()?;
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        client.read_exact(&mut payload).await.ok()?;
        Some((head[3], head[4], payload))
    }

    #[tokio::test(start_paused = true)]
    async fn idle_client_that_answers_pings_stays_connected() {
        let (mut client, served, _) = connect();
        client.write_all(&[PREFACE, &SETTINGS].concat()).await.unwrap();
        let start = Instant::now();
        let mut pings = 0;
        while start.elapsed() < Duration::from_secs(3600) {
            let (kind, flags, payload) = frame(&mut client).await.unwrap();
            if (kind, flags) == (PING, 0) {
                pings += 1;
                client.write_all(&[0, 0, 8, PING, ACK, 0, 0, 0, 0]).await.unwrap();
                client.write_all(&payload).await.unwrap();
            }
        }
        assert!(pings > 50, "{pings}");
        drop(client);
        served.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn client_without_ping_replies_is_disconnected() {
        // HEADERS without the flag that ends them: no PING may be answered before the rest.
        let headers = [0, 0, 1, 1, 0, 0, 0, 0, 1, 0x83];
        let greetings =
            [PREFACE.to_vec(), [PREFACE, &SETTINGS].concat(), [PREFACE, &SETTINGS, &headers].concat()];
        for greeting in greetings {
            let (mut client, served, _) = connect();
            client.write_all(&greeting).await.unwrap();
            let start = Instant::now();
            while frame(&mut client).await.is_some() {}
            assert!(matches!(served.await.unwrap(), Err(ConnectionError::Http(_))));
            assert!(
                start.elapsed() >= PING_AFTER && start.elapsed() < 2 * PING_AFTER,
                "{:?}",
                start.elapsed()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn partial_preface_times_out() {
        for length in [0, 1, PREFACE.len() - 1] {
            let (mut client, served, _) = connect();
            client.write_all(&PREFACE[..length]).await.unwrap();
            assert!(matches!(served.await.unwrap(), Err(ConnectionError::OpenTimeout)), "{length}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn retired_idle_connection_is_closed_in_time() {
        // Whether the client answers pings, whether there is a hurry; the seconds that it takes.
        for (responds, is_urgent, seconds) in [(true, false, 0), (false, false, 10), (false, true, 0)] {
            let (mut client, served, unread) = connect();
            client.write_all(&[PREFACE, &SETTINGS].concat()).await.unwrap();
            let start = Instant::now();
            unread.retired().cancel();
            if is_urgent {
                unread.close_now().cancel();
            }
            let mut has_goaway = false;
            while let Some((kind, flags, payload)) = frame(&mut client).await {
                has_goaway |= kind == GOAWAY;
                if (kind, flags) == (PING, 0) && responds {
                    client.write_all(&[0, 0, 8, PING, ACK, 0, 0, 0, 0]).await.unwrap();
                    client.write_all(&payload).await.unwrap();
                }
            }
            assert!(has_goaway || is_urgent);
            let ended = served.await.unwrap();
            assert!(if responds { ended.is_ok() } else { matches!(ended, Err(ConnectionError::Retired)) });
            assert_eq!(start.elapsed().as_secs(), seconds);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_stream_is_not_closed() {
        let (mut client, served, unread) = connect();
        client.write_all(&[PREFACE, &SETTINGS].concat()).await.unwrap();
        // POST / over http, without a body.
        client.write_all(&[0, 0, 3, 1, 5, 0, 0, 0, 1, 0x83, 0x86, 0x84]).await.unwrap();
        while unread.is_idle() {
            tokio::task::yield_now().await;
        }
        unread.retired().cancel();
        unread.close_now().cancel();
        tokio::time::sleep(3 * LEAVE_TIMEOUT).await;
        assert!(!served.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn replies_are_sent_before_an_idle_connection_ends() {
        // Which of several events is seen first is random without an order.
        for _ in 0..20 {
            let (mut client, served, unread) = connect_to(true);
            client.write_all(&[PREFACE, &SETTINGS].concat()).await.unwrap();
            while frame(&mut client).await.is_some_and(|(kind, flags, _)| (kind, flags) != (4, ACK)) {}
            unread.retired().cancel();
            // Two GOAWAYs, and a PING between them that isn't answered.
            while frame(&mut client).await.is_some_and(|(kind, ..)| kind != PING) {}
            client.write_all(&[0, 0, 3, 1, 5, 0, 0, 0, 1, 0x83, 0x86, 0x84]).await.unwrap();
            unread.close_now().cancel();
            let mut is_answered = false;
            while let Some((kind, ..)) = frame(&mut client).await {
                is_answered |= kind == 1;
            }
            assert!(is_answered);
            assert!(served.await.unwrap().is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stream_reset_is_sent_at_once() {
        let (mut client, server) = duplex(64 * 1024);
        let room = ConnectionRoom::new(&Arc::default(), Windows::LARGEST);
        let (unread, end) = (Arc::clone(room.unread()), CancellationToken::new());
        let cancelled = end.clone();
        let service = service_fn(move |request: Request<RequestBody>| {
            request.body().ends(arrivals::StreamEnd { cancelled: cancelled.clone(), is_small: false });
            async move {
                std::future::pending::<()>().await;
                drop(request);
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        });
        tokio::spawn(async move {
            let lifetime = Lifetime::new();
            let Some(io) = open(std::future::ready(Ok(server)), &lifetime).await? else { return Ok(()) };
            serve(io, service, &lifetime, room, Streams::here()).await
        });
        client.write_all(&[PREFACE, &SETTINGS].concat()).await.unwrap();
        // POST / over http, whose body is still to come.
        client.write_all(&[0, 0, 3, 1, 4, 0, 0, 0, 1, 0x83, 0x86, 0x84]).await.unwrap();
        while unread.is_idle() {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        end.cancel();
        while frame(&mut client).await.is_some_and(|(kind, ..)| kind != RST_STREAM) {}
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(unread.bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_on_a_connection_just_found_idle_is_served() {
        let room = ConnectionRoom::new(&Arc::default(), Windows::LARGEST);
        let unread = room.unread();
        unread.retired().cancel();
        unread.close_now().cancel();
        let mut overdue = pin!(overdue(unread));
        assert!(futures_util::poll!(overdue.as_mut()).is_pending(), "the connection has a turn");
        let stream = OpenStream::new(unread);
        assert!(futures_util::poll!(overdue.as_mut()).is_pending());
        drop(stream);
        overdue.await;
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_silent_client() {
        for stop in
            [|lifetime: &Lifetime| lifetime.drain.cancel(), |lifetime: &Lifetime| lifetime.close.cancel()]
        {
            let lifetime = Lifetime::new();
            let connection = lifetime.child();
            stop(&lifetime);
            let opened = open(std::future::pending::<io::Result<DuplexStream>>(), &connection).await;
            assert!(matches!(opened, Ok(None)));
        }
    }
}
