//! The threads that serve connections: one current-thread runtime each.
//!
//! A connection stays on the thread it was given, and so do its streams, unless that
//! thread carries more than its [share](super::spread).

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use futures_util::TryFutureExt;
use http::{Request, Response};
use http_body::Body;
use hyper::service::Service;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::BoxError;

use super::arrivals::RequestBody;
use super::conn::{self, ConnectionError, Lifetime};
use super::connection_metrics::ConnectionMetrics;
use super::opening::{Opening, OpeningSlot, Openings};
use super::spread::{Streams, Threads};
use crate::memory::{Budget, ConnectionRoom, Windows};

/// The worker threads of one port.
///
/// Dropping it closes every connection; [`Workers::drain`] and [`Workers::close`] do it
/// in order.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Worker>,
    threads: Arc<Threads>,
    lifetime: Lifetime,
    /// Counts the open connections of all threads, to wait for the last.
    open: TaskTracker,
    /// Connections of all threads that are being opened.
    opening: Arc<Openings>,
    budget: Arc<Budget>,
    metrics: Arc<ConnectionMetrics>,
}

#[derive(Debug)]
struct Worker {
    connections: mpsc::UnboundedSender<Connection>,
    thread: JoinHandle<()>,
}

/// A connection on its way to its thread.
struct Connection {
    stream: StdStream,
    peer: SocketAddr,
    /// Place among the connections that are being opened, until it is open.
    opening: OpeningSlot,
    budget: Arc<Budget>,
    streams: Streams,
    /// Counts it as open.
    open: TaskTrackerToken,
}

impl Workers {
    /// Starts `threads` threads (at least one), each with a clone of `service`. Without
    /// `tls` connections are plain text. They count against `budget`.
    ///
    /// # Errors
    /// `io::Error` if a thread or its runtime can't be made.
    pub fn start<S, B>(
        threads: usize,
        service: &S,
        tls: Option<Arc<ServerConfig>>,
        budget: Arc<Budget>,
    ) -> io::Result<Self>
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<BoxError>> + Unpin + Send + 'static,
    {
        let lifetime = Lifetime::new();
        let metrics = Arc::new(ConnectionMetrics::default());
        let acceptor = tls.map(TlsAcceptor::from);
        let runtime = |_| tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtimes = (0..threads.max(1)).map(runtime).collect::<io::Result<Vec<_>>>()?;
        let threads = runtimes.iter().map(|runtime| runtime.handle().clone()).collect();
        let threads = Arc::new(Threads::new(threads));
        let mut workers = Vec::new();
        for (index, runtime) in runtimes.into_iter().enumerate() {
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
            workers.push(Worker { connections: sender, thread });
        }
        let opening = Arc::new(Openings::new(&budget, &metrics));
        Ok(Self { workers, threads, lifetime, open: TaskTracker::new(), opening, budget, metrics })
    }

    /// Gives a connection to the thread with the fewest open streams, or closes it when too many
    /// are open. Those that are being opened make room for it. For one acceptor: the count is read, then raised.
    pub fn serve(&self, stream: StdStream, peer: SocketAddr) {
        let most = self.budget.max_connections();
        let Some(opening) = self.opening.begin(peer.ip(), self.open.len(), most) else {
            return self.metrics.refuse(peer, "too many connections");
        };
        let place = self.threads.idlest();
        let (streams, open) = (Streams::of(&self.threads, place), self.open.token());
        self.metrics.accepted.fetch_add(1, Relaxed);
        let connection = Connection { stream, peer, opening, budget: self.budget.clone(), streams, open };
        if self.workers[place].connections.send(connection).is_err() {
            self.metrics.refuse(peer, "its worker thread has ended");
        }
    }

    /// Streams of the threads.
    #[must_use]
    pub fn threads(&self) -> Arc<Threads> {
        self.threads.clone()
    }

    /// Metrics of connections.
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
                tracing::error!("worker thread panicked; please report this");
            }
        }
    }
}

/// Serves the connections of a worker thread.
struct ConnectionServer<S> {
    service: S,
    acceptor: Option<TlsAcceptor>,
    lifetime: Lifetime,
    metrics: Arc<ConnectionMetrics>,
}

impl<S> ConnectionServer<S> {
    /// Serves until the other end of `connections` is dropped. Tasks that are left then
    /// end with the runtime.
    async fn run<B>(self, mut connections: mpsc::UnboundedReceiver<Connection>)
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<BoxError>> + Unpin + Send + 'static,
    {
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

async fn serve<S, B>(
    connection: Connection,
    service: S,
    acceptor: Option<TlsAcceptor>,
    lifetime: &Lifetime,
    metrics: &ConnectionMetrics,
) -> Result<(), ConnectionError>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let Connection { stream, opening, budget, streams, open: _open, peer } = connection;
    let stream = Opening::new(TcpStream::from_std(stream)?, &opening);
    let windows = budget.process().map_or(Windows::LARGEST, Windows::within);
    let room = || ConnectionRoom::of_peer(&budget, windows, peer.ip());
    let opens = Opens { opening, lifetime, metrics };
    let served = match acceptor {
        None => {
            let transport = std::future::ready(Ok(stream));
            serve_on(transport, Opening::opened, opens, service, room, streams).await
        }
        Some(acceptor) => {
            let opened = |tls: &mut TlsStream<Opening<_>>| tls.get_mut().0.opened();
            let transport = acceptor.accept(stream).map_ok(|mut tls| {
                tls.get_mut().0.handshake_done();
                tls
            });
            serve_on(transport, opened, opens, service, room, streams).await
        }
    };
    metrics.note_end(peer, &served);
    served
}

/// A connection that is being opened.
struct Opens<'a> {
    opening: OpeningSlot,
    lifetime: &'a Lifetime,
    metrics: &'a ConnectionMetrics,
}

/// Opens the connection that `transport` becomes, gives its place among those being opened back, and
/// serves. `opened` is called with the open connection.
async fn serve_on<I, S, B>(
    transport: impl Future<Output = io::Result<I>>,
    opened: impl FnOnce(&mut I),
    Opens { opening, lifetime, metrics }: Opens<'_>,
    service: S,
    room: impl FnOnce() -> ConnectionRoom,
    streams: Streams,
) -> Result<(), ConnectionError>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let result = opening.closed().run_until_cancelled(conn::open(transport, lifetime)).await;
    drop(opening);
    // Whoever closed it for another has counted it.
    let Some(result) = result else { return Ok(()) };
    let result = result.inspect_err(|_| {
        metrics.unopened.fetch_add(1, Relaxed);
    });
    let Some(mut io) = result? else { return Ok(()) };
    let room = room();
    opened(io.io_mut());
    conn::serve(io, service, lifetime, room, streams).await.inspect_err(|_| {
        metrics.broken.fetch_add(1, Relaxed);
    })
}
