//! Sockets: a group of simulated servers, HTTP/1.1 and HTTP/2 without TLS on each port.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::config::{EngineConfig, SimConfig};
use super::disagg::Role;
use super::error::ConfigError;
use super::io::{Connection, Socket};
use super::kv_events::{Publisher, SocketError, Sockets};
use super::link::Place;
use super::live::Live;
use super::model::Engine;
use super::service::Service;
use super::timer::Timer;

// Streams per HTTP/2 connection. A gateway has one connection per worker for all its
// requests, and the waiting queue is to be ours.
const MAX_STREAMS: u32 = 4096;
const STREAM_WINDOW: u32 = 1 << 20;

/// Error of servers that did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener can't be used.
    #[error("simulated server: a listener can't be used: {0}")]
    Listener(#[from] io::Error),
    /// The socket for KV events can't be opened.
    #[error("simulated server: {0}")]
    KvEvents(#[from] SocketError),
}

/// Running servers. Dropped, it stops them.
#[derive(Debug)]
pub struct SimHandle {
    addresses: Vec<SocketAddr>,
    names: Vec<String>,
    roles: Vec<Option<Role>>,
    places: Vec<Place>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl SimHandle {
    /// Addresses of the servers, in the order of the listeners.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Names of the servers, in the same order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Roles of the servers, in the same order.
    pub fn roles(&self) -> &[Option<Role>] {
        &self.roles
    }

    /// Locations of the servers, in the same order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Ends all servers and their connections at once, and waits until they are gone.
    pub async fn shutdown(self) {
        drop(self.stop);
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Starts one server per listener on the tokio runtime of the caller. Server `i` is
/// called `{name_prefix}-{first_index + i}`.
///
/// # Errors
/// `StartError` if the configuration is not valid or a listener can't be used.
pub async fn start(config: SimConfig, listeners: Vec<StdTcpListener>) -> Result<SimHandle, StartError> {
    config.validate()?;
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let config = Arc::new(config);
    let mut servers = Vec::with_capacity(listeners.len());
    for (listener, index) in listeners.into_iter().zip(config.first_index..) {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let seed = config.engine.seed.wrapping_add(index as u64);
        let engine = Engine::new(EngineConfig { seed, ..config.engine.clone() })?;
        let live = Arc::new(Live::new(engine, config.time_scale, Timer::new()));
        let name = format!("{}-{index}", config.name_prefix);
        let events = match &config.kv_events {
            Some(events) => {
                let sockets = Sockets::bind(&events.target, address.ip(), index - config.first_index)?;
                let block_size = config.engine.block_size;
                let publisher = Arc::new(Publisher::new(events.form, address, &config.model, block_size));
                live.publish(Arc::clone(&publisher));
                Some((publisher, sockets))
            }
            None => None,
        };
        servers.push((listener, address, index, name, live, events));
    }
    // Nothing runs before everything is known to work.
    let (mut addresses, mut names, mut roles, mut places) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (listener, address, index, name, live, events) in servers {
        let (config, live) = (config.clone(), live.clone());
        let (publisher, sockets) = events.unzip();
        if let (Some(publisher), Some(sockets)) = (publisher.clone(), sockets) {
            let token = stop.clone();
            tasks.spawn(async move {
                token.run_until_cancelled(sockets.serve(publisher)).await;
            });
        }
        roles.push(config.disagg.role(index));
        places.push(config.disagg.place(index));
        addresses.push(address);
        names.push(name.clone());
        let service = Service::new(config, (index, name, address.port()), live.clone(), publisher, started);
        let token = stop.clone();
        tasks.spawn(async move { token.run_until_cancelled(live.drive()).await });
        tasks.spawn(accept(listener, Arc::new(service), tasks.clone(), stop.clone()));
    }
    Ok(SimHandle { addresses, names, roles, places, tasks, stop: stop.drop_guard() })
}

async fn accept(listener: TcpListener, service: Arc<Service>, tasks: TaskTracker, stop: CancellationToken) {
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                let connection = Connection::new(stop.child_token());
                tasks.spawn(serve(stream, service.clone(), connection));
            }
            Err(error) => {
                // Out of file descriptors, most likely: others must close first.
                tracing::warn!(%error, "a simulated server could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, service: Arc<Service>, connection: Connection) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a simulated server could not set TCP_NODELAY");
    }
    let socket = TokioIo::new(Socket::new(stream, &connection));
    let ends = connection.clone();
    let respond = service_fn(move |request| {
        let (service, connection) = (service.clone(), connection.clone());
        async move { service.respond(request, &connection).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http2()
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * 4);
    tokio::select! {
        served = builder.serve_connection(socket, respond) => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection to a simulated server ended");
            }
        }
        () = ends.closed() => {}
    }
}
