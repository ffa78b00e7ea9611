//! Parts of end-to-end tests: simulated servers, the `usher` program, a real Envoy in front of
//! them, and HTTP clients. Everything listens on free ports of loopback and ends with the value
//! that holds it, also when the test panics.

pub(crate) mod client;
pub(crate) mod envoy;
pub(crate) mod log;
pub(crate) mod servers;
pub(crate) mod usher;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// After this a test gives up waiting. Long, because a loaded machine is not a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Repeats a question until it is answered with `Some`, for what notifies nobody when it
/// changes: Envoy's health checks, a simulated server's engine. What does notify is
/// awaited; see [`log::Log::find`].
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    let answered = async {
        loop {
            pause.tick().await;
            if let Some(response) = ask().await {
                return response;
            }
        }
    };
    match tokio::time::timeout(PATIENCE, answered).await {
        Ok(response) => response,
        Err(_) => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// A port of loopback that refuses connections, for a server that is down. It is taken
/// by a socket that never listens, so that nothing else can come to listen there.
pub(crate) fn nobody() -> SocketAddr {
    static TAKEN: OnceLock<Socket> = OnceLock::new();
    let taken = TAKEN.get_or_init(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket
    });
    taken.local_addr().unwrap().as_socket().unwrap()
}

/// A listener on a free port of loopback.
pub(crate) fn listener() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}
