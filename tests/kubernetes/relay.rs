//! A relay before the API server, so that one picker alone can lose it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Passes connections on to a port of loopback while it is open.
pub(crate) struct Relay {
    pub(crate) port: u16,
    /// The connections; `None`: cut.
    open: Arc<Mutex<Option<JoinSet<()>>>>,
    _accepting: AbortOnDropHandle<()>,
}

impl Relay {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(Mutex::new(Some(JoinSet::new())));
        let connections = Arc::clone(&open);
        let accepting = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                if let Some(connections) = &mut *connections.lock().unwrap() {
                    connections.spawn(async move {
                        let to = SocketAddr::from(([127, 0, 0, 1], port));
                        if let Ok(mut to) = TcpStream::connect(to).await {
                            let _ = copy_bidirectional(&mut from, &mut to).await;
                        }
                    });
                }
            }
        });
        Self { port: address.port(), open, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Closes all connections, and new ones at once.
    pub(crate) fn cut(&self) {
        *self.open.lock().unwrap() = None;
    }

    /// Passes connections on again.
    pub(crate) fn mend(&self) {
        *self.open.lock().unwrap() = Some(JoinSet::new());
    }
}
