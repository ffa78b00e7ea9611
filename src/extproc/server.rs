//! The gRPC server as a whole: accepts, serves, and stops in order.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tonic::body::Body as TonicBody;

use super::accept::accept;
use super::conn::{self, Lifetime};
use super::connection_metrics::ConnectionMetrics;
use super::grpc::GrpcService;
use super::health::{self, HealthState};
use super::router::Router;
use super::small::Small;
use super::spread::{Streams, Threads};
use super::stop::{Stop, StopSignals};
use super::tls::Tls;
use super::workers::Workers;
use crate::memory::{Budget, ConnectionRoom, ConnectionSlots, Windows, small};
use crate::settings::TlsSettings;
use crate::tls::{CertError, RELOAD_INTERVAL};

/// Time for which a server that drains still says that it is ready, if a third of its drain
/// window is not less. A gateway that checks health stops sending at the first other
/// response, and may not yet know of the one that takes this one's place: the cluster told it
/// of that one only just before it told us to stop. Nobody else needs to hear it sooner: to
/// Kubernetes a pod that is being deleted is not ready, whatever it says.
const STILL_READY: Duration = Duration::from_secs(10);

/// Options of a server, besides its listeners and its service.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Threads that serve connections.
    pub threads: usize,
    /// TLS of the ext_proc port, or plain text.
    pub tls: Option<TlsSettings>,
    /// Time for which connections are accepted after [`Stop::Drain`].
    pub drain_timeout: Duration,
    /// Budget of the connections of the ext_proc port; it says how large their windows are.
    pub budget: Arc<Budget>,
}

/// Error of a server that didn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The certificate or the TLS settings: a mistake in what was given.
    #[error(transparent)]
    Tls(#[from] CertError),
    /// The system refused a thread or a socket.
    #[error("cannot start the server: {0}; check the limits on threads and open files")]
    System(#[from] io::Error),
}

/// Way in which a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every open stream was served to its end.
    Gracefully,
    /// A second stop closed the streams that were left.
    Forced,
}

/// A server that listens, and serves when it is [run](Server::run).
#[derive(Debug)]
pub struct Server {
    extproc: TcpListener,
    health_port: TcpListener,
    health: Arc<HealthState>,
    workers: Workers,
    tls: Option<Tls>,
    options: ServerOptions,
    finishing: CancellationToken,
}

impl Server {
    /// Prepares everything that can fail. Must be called within a tokio runtime: the one
    /// that accepts, answers the health port and looks after the certificate.
    ///
    /// `service` is the ext_proc service as tonic generates it; each worker thread gets a
    /// clone. Health is served beside it, and in plain text on `health_port`.
    ///
    /// # Errors
    /// `StartError` if the certificate is unusable, or the system is out of resources.
    pub fn start<E>(
        extproc: StdListener,
        health_port: StdListener,
        service: E,
        health: Arc<HealthState>,
        options: ServerOptions,
    ) -> Result<Self, StartError>
    where
        E: GrpcService + Clone + Send + 'static,
        E::Future: Send + 'static,
    {
        let tls = options.tls.as_ref().map(Tls::new).transpose()?;
        let router = Router::new(service, health::service(health.clone()), &options.budget);
        let config = tls.as_ref().map(|tls| tls.config.clone());
        let workers = Workers::start(options.threads, &router, config, Arc::clone(&options.budget))?;
        Ok(Self {
            extproc: asynchronous(extproc)?,
            health_port: asynchronous(health_port)?,
            health,
            workers,
            tls,
            options,
            finishing: CancellationToken::new(),
        })
    }

    /// Cancelled when the server begins to finish its open streams: no request comes any
    /// more, and none should wait for long.
    #[must_use]
    pub fn finishing(&self) -> CancellationToken {
        self.finishing.clone()
    }

    /// Metrics of the connections of the ext_proc port.
    #[must_use]
    pub fn connection_metrics(&self) -> Arc<ConnectionMetrics> {
        self.workers.metrics()
    }

    /// Streams of the threads that serve the ext_proc port.
    #[must_use]
    pub fn threads(&self) -> Arc<Threads> {
        self.workers.threads()
    }

    /// Serves until told to stop, then stops as asked: after a part of the drain window, if
    /// there is one, health says so; after the whole of it no connection is accepted and
    /// open streams are finished. A further stop closes them.
    ///
    /// All threads and tasks of the server have ended when this returns.
    pub async fn run(self, stops: &mut StopSignals) -> Ended {
        let Self { extproc, health_port, health, workers, tls, options, finishing } = self;
        let health_lifetime = Lifetime::new();
        let health_port = AbortOnDropHandle::new(tokio::spawn(serve_small(
            health_port,
            health::service(health.clone()),
            health_lifetime.clone(),
            {
                let lifetime = health_lifetime.clone();
                move || lifetime.child()
            },
            (Arc::clone(&options.budget), Windows::SMALLEST),
            workers.metrics(),
        )));
        let reload = tls
            .filter(|_| options.tls.as_ref().is_some_and(|tls| tls.reload))
            .map(|tls| AbortOnDropHandle::new(tokio::spawn(tls.keep_fresh(RELOAD_INTERVAL))));

        let stopped = accept_until_stopped(extproc, &workers, &health, options.drain_timeout, stops).await;
        finishing.cancel();
        let ended = match stopped {
            Ended::Forced => Ended::Forced,
            Ended::Gracefully => {
                tracing::info!(streams = open(&workers), "finishing open streams");
                tokio::select! {
                    () = workers.drain() => Ended::Gracefully,
                    _ = stops.next() => Ended::Forced,
                }
            }
        };
        if ended == Ended::Forced {
            tracing::warn!(streams = open(&workers), "second stop signal, closing open streams");
        }
        health_lifetime.close.cancel();
        if let Some(reload) = &reload {
            reload.abort();
        }
        // Joining blocks, and this runtime has other things to do.
        let workers = tokio::task::spawn_blocking(move || workers.close());
        // These tasks only fail when they were aborted, or the runtime itself is shut down.
        let _ = tokio::join!(workers, health_port, async { Some(reload?.await) });
        ended
    }
}

/// Open streams of all threads.
fn open(workers: &Workers) -> usize {
    workers.threads().open().iter().sum()
}

/// Accepts until the first stop, and through the drain window if it asks for one.
/// The socket is closed on return.
async fn accept_until_stopped(
    listener: TcpListener,
    workers: &Workers,
    health: &HealthState,
    drain_timeout: Duration,
    stops: &mut StopSignals,
) -> Ended {
    let mut accepting = pin!(accept(&listener, |stream, peer| hand_over(workers, stream, peer)));
    let stop = tokio::select! {
        stop = stops.next() => stop,
        () = accepting.as_mut() => Stop::Now,
    };
    if stop == Stop::Now || drain_timeout.is_zero() {
        health.set_draining();
        return Ended::Gracefully;
    }
    tracing::info!(?drain_timeout, "draining: still accepting");
    let ready = (drain_timeout / 3).min(STILL_READY);
    let draining = async {
        tokio::time::sleep(ready).await;
        health.set_draining();
        tracing::info!("draining: no longer ready");
        tokio::time::sleep(drain_timeout - ready).await;
    };
    tokio::select! {
        () = draining => {}
        () = accepting => {}
        _ = stops.next() => return Ended::Forced,
    }
    Ended::Gracefully
}

/// Takes a connection off this runtime and gives it to a worker thread.
fn hand_over(workers: &Workers, stream: tokio::net::TcpStream, peer: SocketAddr) {
    match stream.into_std() {
        Ok(stream) => workers.serve(stream, peer),
        Err(error) => tracing::debug!(%peer, %error, "connection dropped"),
    }
}

/// A gRPC service of [small] requests in plain text on this runtime, which responds even when the
/// workers are busy. `each` makes the lifetime of a connection; those that we end with GOAWAY count in
/// `metrics`. Returns once `lifetime` and all connections have ended.
pub async fn serve_small<S>(
    listener: TcpListener,
    service: S,
    lifetime: Lifetime,
    each: impl Fn() -> Lifetime,
    (budget, windows): (Arc<Budget>, Windows),
    metrics: Arc<ConnectionMetrics>,
) where
    S: GrpcService<Body = TonicBody, Future: Send + 'static> + Clone + Send + 'static,
{
    let service = Small::new(service, &budget);
    let open = TaskTracker::new();
    let mut slots = ConnectionSlots::new(small::max_connections(windows.streams, &budget));
    let accepting = accept(&listener, |stream, peer| {
        let service = service.clone();
        let lifetime = each();
        let (begun, budget) = (Arc::new(AtomicBool::new(false)), Arc::clone(&budget));
        let metrics = Arc::clone(&metrics);
        let begins = Arc::clone(&begun);
        let serving = open.spawn(async move {
            let served = match conn::open(std::future::ready(Ok(stream)), &lifetime).await {
                Ok(Some(stream)) => {
                    begins.store(true, Relaxed);
                    let room = ConnectionRoom::of_peer(&budget, windows, peer.ip());
                    conn::serve(stream, service, &lifetime, room, Streams::here()).await
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            metrics.note_end(peer, &served);
            if let Err(error) = served {
                tracing::debug!(%peer, %error, "connection ended");
            }
        });
        if let Some(closed) = slots.add(peer.ip(), begun, serving.abort_handle()) {
            tracing::debug!(%peer, %closed, "connection closed for another, as there are too many");
        }
    });
    tokio::select! {
        () = accepting => {}
        () = lifetime.close.cancelled() => {}
    }
    open.close();
    open.wait().await;
}

fn asynchronous(listener: StdListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
