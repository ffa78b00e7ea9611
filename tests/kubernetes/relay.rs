//! A relay before the API server, so that one picker alone can lose it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Passes connections on to a port of loopback while it is open.
pub(crate) struct Relay {
    pub(crate) port: u16,
    /// The connections; `None`: cut.
    open: Arc<Mutex<Option<JoinSet<()>>>>,
    /// Cancelled: the connections of now pass nothing on any more, and stay open.
    mute: Arc<Mutex<CancellationToken>>,
    _accepting: AbortOnDropHandle<()>,
}

impl Relay {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(Mutex::new(Some(JoinSet::new())));
        let mute = Arc::new(Mutex::new(CancellationToken::new()));
        let (connections, current) = (Arc::clone(&open), Arc::clone(&mute));
        let accepting = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let mute = current.lock().unwrap().clone();
                if let Some(connections) = &mut *connections.lock().unwrap() {
                    connections.spawn(async move {
                        let to = SocketAddr::from(([127, 0, 0, 1], port));
                        if let Ok(mut to) = TcpStream::connect(to).await {
                            let copying = copy_bidirectional(&mut from, &mut to);
                            if mute.run_until_cancelled(copying).await.is_none() {
                                std::future::pending::<()>().await;
                            }
                        }
                    });
                }
            }
        });
        Self { port: address.port(), open, mute, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Closes all connections, and new ones at once.
    pub(crate) fn cut(&self) {
        *self.open.lock().unwrap() = None;
    }

    /// Passes nothing on of the connections that are open, without a word to either end. New
    /// ones are passed on.
    pub(crate) fn mute(&self) {
        std::mem::take(&mut *self.mute.lock().unwrap()).cancel();
    }

    /// Passes connections on again.
    pub(crate) fn mend(&self) {
        *self.open.lock().unwrap() = Some(JoinSet::new());
    }
}
