//! A small HTTP server for metrics and administration: fixed paths, GET only but for settings, over TLS and
//! only for those who may where it is so protected.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::access::Access;
use super::routes::Caller;
use super::tls::MetricsTls;
use crate::memory::{Budget, ConnectionSlots, Kind, Reservation, SmallPort, small};

pub use super::routes::{Asset, Routes};

/// Time for the handshake of TLS, and then to send the head of a request: half of what a request
/// has to be complete.
const HEAD_TIMEOUT: Duration = Duration::from_secs(small::COMPLETE.as_secs() / 2);

/// Time for a connection as a whole, until the last byte of the response is taken. Slow
/// readers hold a page and a place for no longer.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the requests in progress when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed accept, such as with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Memory that a request counts besides its connection, in bytes: what is written of its response.
const REQUEST: u64 = 40 << 10;

/// Protection of a server. By default: not at all, but for [limits](small).
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// TLS, or plain text.
    pub tls: Option<Arc<MetricsTls>>,
    /// Access check of clients; `None`: no check.
    pub access: Option<Arc<Access>>,
    /// Budget of the connections.
    pub budget: Arc<Budget>,
}

/// An HTTP/1.1 server that serves as long as it is kept.
#[derive(Debug)]
pub struct HttpServer {
    shutdown: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl HttpServer {
    /// Serves `routes` without an access check from now on, on this tokio runtime.
    ///
    /// # Errors
    /// `io::Error` if the runtime can't use the socket.
    pub fn start(listener: StdListener, routes: Routes) -> io::Result<Self> {
        Self::start_protected(listener, routes, Protection::default())
    }

    /// Starts a server with this protection.
    ///
    /// # Errors
    /// `io::Error` if the runtime can't use the socket.
    pub fn start_protected(
        listener: StdListener,
        routes: Routes,
        protection: Protection,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve(listener, ProtectedRoutes::new(routes, protection), shutdown.clone()));
        Ok(Self { shutdown, task: AbortOnDropHandle::new(task) })
    }

    /// Closes the socket and finishes the requests in progress, for at most five seconds.
    pub async fn stop(self) {
        self.shutdown.cancel();
        // The task only fails when the runtime itself is shut down.
        let _ = self.task.await;
    }
}

/// Routes of a server, and how they are protected.
#[derive(Clone)]
struct ProtectedRoutes {
    routes: Routes,
    protection: Protection,
    port: SmallPort,
}

impl ProtectedRoutes {
    fn new(routes: Routes, protection: Protection) -> Self {
        let port = SmallPort::new(&protection.budget);
        Self { routes, protection, port }
    }
}

async fn serve(listener: TcpListener, protected: ProtectedRoutes, shutdown: CancellationToken) {
    let mut open = JoinSet::new();
    tokio::select! {
        () = accept(&listener, &protected, &mut open, &shutdown) => {}
        () = shutdown.cancelled() => {}
    }
    drop(listener);
    let finish = async { while open.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, finish).await.is_err() {
        tracing::debug!(connections = open.len(), "closing HTTP connections that don't end");
        open.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    protected: &ProtectedRoutes,
    open: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) {
    let mut slots = ConnectionSlots::new(small::max_connections(1, &protected.protection.budget));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
        };
        // Nothing is kept of those that have ended since.
        while open.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                let client = Client::default();
                let has_begun = Arc::clone(&client.has_begun);
                let serving =
                    open.spawn(serve_client(stream, peer, client, protected.clone(), shutdown.clone()));
                if let Some(closed) = slots.add(peer.ip(), has_begun, serving) {
                    tracing::debug!(%peer, %closed, "HTTP connection closed for another, as there are too many");
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept HTTP connections, trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A client from the accept of its connection on.
#[derive(Clone, Debug, Default)]
struct Client {
    /// The head of its request has come.
    has_begun: Arc<AtomicBool>,
    /// Cancelled when its request has to make room for others.
    end: CancellationToken,
}

/// Serves a connection until it ends, has to make room or has taken too long.
async fn serve_client(
    stream: TcpStream,
    peer: SocketAddr,
    client: Client,
    protected: ProtectedRoutes,
    shutdown: CancellationToken,
) {
    let mut held = Reservation::new(&protected.protection.budget, Kind::SmallPorts);
    held.set(small::CONNECTION);
    let end = client.end.clone();
    let served = tokio::time::timeout(TOTAL_TIMEOUT, shake_hands(stream, client, protected, shutdown));
    match end.run_until_cancelled(served).await {
        Some(Ok(())) => {}
        Some(Err(_)) => tracing::debug!(%peer, "HTTP connection took too long"),
        None => tracing::debug!(%peer, "HTTP request ended to make room for others"),
    }
}

/// Serves one request, after the handshake of TLS if there is to be one.
async fn shake_hands(
    stream: TcpStream,
    client: Client,
    protected: ProtectedRoutes,
    shutdown: CancellationToken,
) {
    let Some(tls) = &protected.protection.tls else {
        return serve_connection(stream, None, client, protected, shutdown).await;
    };
    let accepting = TlsAcceptor::from(tls.config()).accept(stream);
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(HEAD_TIMEOUT, accepting) => accepted,
        () = shutdown.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let chain = stream.get_ref().1.peer_certificates();
            let certificate = chain.and_then(|chain| chain.first()).cloned().map(CertificateDer::into_owned);
            serve_connection(stream, certificate, client, protected, shutdown).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
}

/// Serves one request. Scrapers come every few seconds and reconnect; nobody keeps a
/// place in between.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    certificate: Option<CertificateDer<'static>>,
    client: Client,
    protected: ProtectedRoutes,
    shutdown: CancellationToken,
) {
    // Held until the last byte of the response is taken. There is one request at most.
    let (held, page) = (OnceLock::new(), OnceLock::new());
    let service = service_fn(async |request: Request<Incoming>| {
        client.has_begun.store(true, Relaxed);
        held.get_or_init(|| protected.port.begin(REQUEST, client.end.clone()));
        let access = protected.protection.access.as_deref();
        let caller = Caller { access, certificate: certificate.as_ref(), shutdown: &shutdown };
        let response = protected.routes.respond(request, caller).await;
        if let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > REQUEST) {
            page.get_or_init(|| protected.port.begin_page(bytes, client.end.clone()));
        }
        Ok::<_, Infallible>(response)
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service)
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "HTTP connection ended");
    }
}
