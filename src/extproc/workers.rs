//! The threads that serve connections: one current-thread runtime each.
//!
//! A gateway opens few, long connections, so a connection stays on the thread it was
//! given, and nothing that belongs to it moves between cores.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use rustls::ServerConfig;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::body::Body;

use super::conn::{self, Lifetime};

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// TLS handshakes in progress. Whoever connects and says nothing holds one of these
/// until the timeout, and not a connection.
const MAX_HANDSHAKES: usize = 1024;

/// Open connections. A gateway needs one per worker thread; this is room for hundreds
/// of gateways, and below a usual limit of open files.
const MAX_CONNECTIONS: usize = 16_384;

/// What happened to connections, since the start.
#[derive(Debug, Default)]
pub struct ConnectionMetrics {
    /// Handed to a thread.
    pub accepted: AtomicU64,
    /// Closed at once, because too many were open or in a handshake.
    pub refused: AtomicU64,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: AtomicU64,
    /// Ended because the client didn't speak HTTP/2 or broke it, or went away.
    pub broken: AtomicU64,
}

/// The worker threads of one port.
///
/// Dropping it closes every connection; [`Workers::drain`] and [`Workers::close`] do it
/// in order.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Worker>,
    lifetime: Lifetime,
    /// Counts the open connections of all threads, to wait for the last.
    open: TaskTracker,
    /// Bounds the unfinished handshakes of all threads; `None` without TLS.
    handshakes: Option<Arc<Semaphore>>,
    metrics: Arc<ConnectionMetrics>,
}

#[derive(Debug)]
struct Worker {
    connections: mpsc::UnboundedSender<Connection>,
    open: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

/// A connection on its way to its thread.
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    handshake: Option<OwnedSemaphorePermit>,
    guard: ConnectionGuard,
}

/// Counts one open connection for as long as it lives.
struct ConnectionGuard {
    of_worker: Arc<AtomicUsize>,
    _of_all: TaskTrackerToken,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.of_worker.fetch_sub(1, Relaxed);
    }
}

impl Workers {
    /// Starts `threads` threads (at least one), each with a clone of `service`. Without
    /// `tls` connections are plain text.
    ///
    /// # Errors
    /// When a thread or its runtime can't be made.
    pub fn start<S>(threads: usize, service: &S, tls: Option<Arc<ServerConfig>>) -> io::Result<Self>
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let lifetime = Lifetime::new();
        let metrics = Arc::new(ConnectionMetrics::default());
        let acceptor = tls.map(TlsAcceptor::from);
        let handshakes = acceptor.as_ref().map(|_| Arc::new(Semaphore::new(MAX_HANDSHAKES)));
        let mut workers = Vec::new();
        for index in 0..threads.max(1) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (sender, receiver) = mpsc::unbounded_channel();
            let server = ConnectionServer {
                service: service.clone(),
                acceptor: acceptor.clone(),
                lifetime: lifetime.clone(),
                metrics: metrics.clone(),
            };
            let thread = std::thread::Builder::new()
                .name(format!("usher-worker-{index}"))
                .spawn(move || runtime.block_on(server.run(receiver)))?;
            workers.push(Worker { connections: sender, open: Arc::default(), thread });
        }
        Ok(Self { workers, lifetime, open: TaskTracker::new(), handshakes, metrics })
    }

    /// Gives a connection to the thread with the fewest, or closes it when there are too
    /// many. For one acceptor: the count is read, then raised.
    pub fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let handshake = match &self.handshakes {
            None => None,
            Some(handshakes) => match handshakes.clone().try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(_) => return self.refuse(peer, "too many unfinished TLS handshakes"),
            },
        };
        if self.open.len() >= MAX_CONNECTIONS {
            return self.refuse(peer, "too many connections");
        }
        let Some(worker) = self.workers.iter().min_by_key(|worker| worker.open.load(Relaxed)) else {
            return;
        };
        worker.open.fetch_add(1, Relaxed);
        let guard = ConnectionGuard { of_worker: worker.open.clone(), _of_all: self.open.token() };
        self.metrics.accepted.fetch_add(1, Relaxed);
        if worker.connections.send(Connection { stream, peer, handshake, guard }).is_err() {
            self.refuse(peer, "its worker thread has ended");
        }
    }

    fn refuse(&self, peer: SocketAddr, reason: &str) {
        // One line per power of two: a flood must not flood the log.
        let count = self.metrics.refused.fetch_add(1, Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(%peer, reason, count, "connection refused");
        }
    }

    /// Open connections per thread.
    #[must_use]
    pub fn connections(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.open.load(Relaxed)).collect()
    }

    /// What happened to connections.
    #[must_use]
    pub fn metrics(&self) -> Arc<ConnectionMetrics> {
        self.metrics.clone()
    }

    /// Sends GOAWAY on every connection and waits until their open streams have ended,
    /// however long that takes. Connections that come later are drained at once.
    ///
    /// Cancel safe; may be called again.
    pub async fn drain(&self) {
        self.lifetime.drain.cancel();
        self.open.close();
        self.open.wait().await;
    }

    /// Closes what is still open and ends the threads. Blocks until they have ended:
    /// they leave what they are doing at their next await.
    pub fn close(self) {
        self.lifetime.close.cancel();
        for Worker { connections, thread, .. } in self.workers {
            drop(connections);
            if thread.join().is_err() {
                tracing::error!("worker thread panicked");
            }
        }
    }
}

/// What a worker thread does with connections.
struct ConnectionServer<S> {
    service: S,
    acceptor: Option<TlsAcceptor>,
    lifetime: Lifetime,
    metrics: Arc<ConnectionMetrics>,
}

impl<S> ConnectionServer<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    /// Serves until the other end of `connections` is dropped. Tasks that are left then
    /// end with the runtime.
    async fn run(self, mut connections: mpsc::UnboundedReceiver<Connection>) {
        while let Some(connection) = connections.recv().await {
            let service = self.service.clone();
            let acceptor = self.acceptor.clone();
            let lifetime = self.lifetime.child();
            let metrics = self.metrics.clone();
            tokio::spawn(async move {
                let peer = connection.peer;
                if let Err(error) = serve(connection, service, acceptor, &lifetime, &metrics).await {
                    tracing::debug!(%peer, %error, "connection ended");
                }
            });
        }
    }
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("socket: {0}")]
    Socket(#[source] io::Error),
    #[error("TLS handshake: {0}")]
    Handshake(#[source] io::Error),
    #[error("TLS handshake took longer than {HANDSHAKE_TIMEOUT:?}")]
    HandshakeTimeout,
    #[error("HTTP/2: {0}")]
    Http(#[from] hyper::Error),
}

async fn serve<S>(
    connection: Connection,
    service: S,
    acceptor: Option<TlsAcceptor>,
    lifetime: &Lifetime,
    metrics: &ConnectionMetrics,
) -> Result<(), ConnectionError>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    let Connection { stream, handshake: permit, guard: _guard, .. } = connection;
    let stream = tokio::net::TcpStream::from_std(stream).map_err(ConnectionError::Socket)?;
    let result = match acceptor {
        None => conn::serve(stream, service, lifetime).await,
        Some(acceptor) => {
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)) => shaken,
                // Nothing is lost with a connection that has no stream yet.
                () = lifetime.drain.cancelled() => return Ok(()),
                () = lifetime.close.cancelled() => return Ok(()),
            };
            let shaken = match shaken {
                Ok(shaken) => shaken.map_err(ConnectionError::Handshake),
                Err(_) => Err(ConnectionError::HandshakeTimeout),
            };
            let stream = shaken.inspect_err(|_| {
                metrics.handshakes_failed.fetch_add(1, Relaxed);
            })?;
            drop(permit);
            conn::serve(stream, service, lifetime).await
        }
    };
    result.map_err(|error| {
        metrics.broken.fetch_add(1, Relaxed);
        error.into()
    })
}
