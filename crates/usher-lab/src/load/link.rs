//! A connection to an ext_proc server, made again when it broke.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Deref;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsConnector;

use super::batch::{Io, batched};
use super::error::LoadError;
use super::failure::Failure;
use super::settings::TlsMode;

/// HTTP/2 flow-control windows of a stream and of a connection, in bytes: so large that a server
/// never waits for us.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);

/// For a connection and its handshake.
const PATIENCE: Duration = Duration::from_secs(5);

type Requests = SendRequest<Bytes>;

/// Dialer of a server.
#[derive(Clone)]
pub(super) struct Dialer {
    target: String,
    tls: Option<TlsConnector>,
}

impl Dialer {
    /// Finds out whether the server speaks TLS, if that is asked for.
    ///
    /// # Errors
    /// `LoadError` if nothing listens there, or it doesn't speak HTTP/2.
    pub(super) async fn new(target: &str, mode: TlsMode) -> Result<Self, LoadError> {
        let failed =
            |failure: Failure| LoadError::Unreachable { target: target.to_owned(), reason: failure.detail };
        let plain = Self { target: target.to_owned(), tls: None };
        if mode == TlsMode::Off {
            return Ok(plain);
        }
        let tls =
            usher_wire::client::connector(&[b"h2"]).map_err(|error| failure_of(&error)).map_err(failed)?;
        let with_tls = Self { tls: Some(tls), ..plain.clone() };
        match with_tls.open().await {
            Ok(_) => Ok(with_tls),
            Err(refused) if refused.kind != TLS => Err(failed(refused)),
            Err(_) if mode == TlsMode::Auto => Ok(plain),
            Err(refused) => Err(LoadError::NoTls { target: target.to_owned(), reason: refused.detail }),
        }
    }

    /// Returns `true` if connections are encrypted.
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    async fn open(&self) -> Result<Box<dyn Io>, Failure> {
        let open = async {
            let stream = TcpStream::connect(&self.target).await.map_err(|error| Failure::of_io(&error))?;
            stream.set_nodelay(true).map_err(|error| Failure::of_io(&error))?;
            let Some(tls) = &self.tls else { return Ok(Box::new(stream) as Box<dyn Io>) };
            let host = self.target.rsplit_once(':').map_or(&*self.target, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(host.to_owned()).map_err(|error| failure_of(&error))?;
            // A server without TLS may also just wait for more.
            let handshake = timeout(PATIENCE / 2, tls.connect(name, stream)).await;
            let stream = handshake
                .map_err(|_| Failure::new(TLS, "no TLS handshake in time"))?
                .map_err(|error| failure_of(&error))?;
            Ok(Box::new(stream) as Box<dyn Io>)
        };
        timeout(PATIENCE, open).await.unwrap_or_else(|_| {
            Err(Failure::new("connection-lost", format!("no connection within {} s", PATIENCE.as_secs())))
        })
    }
}

/// The kind of a failed handshake.
const TLS: &str = "tls";

fn failure_of(error: &dyn std::error::Error) -> Failure {
    Failure::new(TLS, error.to_string())
}

/// Streams of a connection where the server doesn't say how many it takes, or has not yet.
const STREAMS: usize = 100;

/// One connection.
pub(super) struct Link {
    dialer: Dialer,
    /// Requests in progress.
    carried: Cell<usize>,
    /// The connection while it lives; its driver removes it.
    requests: Rc<RefCell<Option<Requests>>>,
    /// Held by who connects; the others wait for what comes of it.
    attempt: Mutex<Attempt>,
    attempts: Cell<u64>,
}

#[derive(Default)]
struct Attempt {
    last: Option<(Instant, Failure)>,
}

impl Link {
    pub(super) fn new(dialer: Dialer) -> Self {
        Self {
            dialer,
            carried: Cell::new(0),
            requests: Rc::default(),
            attempt: Mutex::new(Attempt::default()),
            attempts: Cell::new(0),
        }
    }

    /// Returns `true` if another request would wait for one of those in progress.
    pub(super) fn is_full(&self) -> bool {
        let most = self.requests.borrow().as_ref().map_or(STREAMS, SendRequest::current_max_send_streams);
        self.carried.get() >= most
    }

    /// The connection, ready for a request.
    ///
    /// # Errors
    /// `Failure` if there is no connection and none can be made. Reconnects are spaced, so repeated calls
    /// wait.
    pub(super) async fn ready(&self) -> Result<Requests, Failure> {
        loop {
            let living = self.requests.borrow().clone();
            let Some(requests) = living else {
                self.connect().await?;
                continue;
            };
            match requests.ready().await {
                Ok(requests) => return Ok(requests),
                // It is about to end: a server that stops takes no more requests.
                Err(_) => *self.requests.borrow_mut() = None,
            }
        }
    }

    async fn connect(&self) -> Result<(), Failure> {
        let seen = self.attempts.get();
        let mut attempt = self.attempt.lock().await;
        if self.requests.borrow().is_some() {
            return Ok(());
        }
        if let Some((at, failure)) = &attempt.last {
            if self.attempts.get() != seen {
                return Err(failure.clone());
            }
            sleep_until(*at + RETRY).await;
        }
        let opened = self.open().await;
        self.attempts.set(self.attempts.get() + 1);
        attempt.last = opened.as_ref().err().map(|failure| (Instant::now(), failure.clone()));
        opened
    }

    async fn open(&self) -> Result<(), Failure> {
        let (io, sender) = batched(self.dialer.open().await?);
        let mut builder = Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // Until the server has said how many it takes.
            .initial_max_send_streams(STREAMS)
            .enable_push(false);
        let handshake = builder.handshake(io).await;
        let (requests, mut connection) =
            handshake.map_err(|error| Failure::new("connection-lost", error.to_string()))?;
        *self.requests.borrow_mut() = Some(requests);
        let slot = self.requests.clone();
        tokio::task::spawn_local(async move {
            poll_fn(|context| match sender.poll(&mut connection, context) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            })
            .await;
            // The library ends the requests on it.
            drop(connection);
            *slot.borrow_mut() = None;
        });
        Ok(())
    }
}

/// A connection that carries a request until this is dropped.
pub(super) struct Carrier(Rc<Link>);

impl Carrier {
    pub(super) fn new(link: &Rc<Link>) -> Self {
        link.carried.set(link.carried.get() + 1);
        Self(Rc::clone(link))
    }
}

impl Deref for Carrier {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.0
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.0.carried.set(self.0.carried.get() - 1);
    }
}
