//! Sockets for subscribers and for replays.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use usher_core::kv_events::Socket;

use super::peer::Peer;
use super::publisher::Publisher;
use super::{SocketError, Target};

/// Time before another attempt to connect, or to accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Topics that a subscriber may ask for.
const MAX_TOPICS: usize = 64;
/// Number and payload behind the last message of a replay.
const END: [u8; 8] = u64::MAX.to_be_bytes();

/// Sockets of one server.
#[derive(Debug)]
pub(crate) enum Sockets {
    /// For subscribers, and for replays.
    Listen(TcpListener, Option<TcpListener>),
    /// To a subscriber.
    Connect(String),
}

impl Sockets {
    /// Binds the sockets of a server at an address, the `number`th from 0.
    ///
    /// # Errors
    /// `SocketError` if a port is taken or out of range.
    pub(crate) fn bind(target: &Target, ip: IpAddr, number: usize) -> Result<Self, SocketError> {
        let (port, replay_port, step) = match target {
            Target::Connect(to) => return Ok(Self::Connect(to.clone())),
            Target::Listen { port, replay_port, step } => (*port, *replay_port, *step),
        };
        let listen = |port: u16| {
            let number = u16::try_from(number).ok().and_then(|number| number.checked_mul(step));
            let own = number.and_then(|number| port.checked_add(number));
            let address = SocketAddr::new(ip, own.ok_or(SocketError::TooHigh { port })?);
            bind(address).map_err(|reason| SocketError::Refused { address, reason })
        };
        Ok(Self::Listen(listen(port)?, replay_port.map(listen).transpose()?))
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self, publisher: Arc<Publisher>) {
        match self {
            Self::Listen(subscribers, replays) => {
                let replays = async {
                    match replays {
                        Some(replays) => accept(&replays, &publisher, replay).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::join!(accept(&subscribers, &publisher, publish), replays);
            }
            Self::Connect(to) => loop {
                if let Ok(stream) = TcpStream::connect(&to).await {
                    match publish(Arc::clone(&publisher), stream).await {
                        Ok(()) => tracing::debug!(%to, "connection to a subscriber of KV events closed"),
                        Err(error) => {
                            tracing::debug!(%to, %error, "connection to a subscriber of KV events lost")
                        }
                    }
                }
                tokio::time::sleep(PAUSE).await;
            },
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = StdTcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn accept<F>(
    listener: &TcpListener,
    publisher: &Arc<Publisher>,
    serve: fn(Arc<Publisher>, TcpStream) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(serve(Arc::clone(publisher), stream));
            }
            Err(error) => {
                tracing::warn!(%error, "a simulated server could not accept a connection for KV events");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Sends what a subscriber asks for, until either ends.
async fn publish(publisher: Arc<Publisher>, stream: TcpStream) -> io::Result<()> {
    let mut restarts = publisher.restarts();
    let mut peer = Peer::new(stream, Socket::Publisher).await?;
    let mut messages = publisher.messages();
    let mut topics = Vec::new();
    let mut subscribed = None;
    loop {
        tokio::select! {
            biased;
            _ = restarts.changed() => return Ok(()),
            frames = peer.next() => {
                match frames?.first().and_then(|frame| Some((*frame.first()?, frame.slice(1..)))) {
                    Some((1, topic)) if topics.len() < MAX_TOPICS => topics.push(topic),
                    Some((0, topic)) => {
                        if let Some(at) = topics.iter().position(|known| *known == topic) {
                            topics.swap_remove(at);
                        }
                    }
                    _ => {}
                }
                subscribed.get_or_insert_with(|| publisher.subscribed());
            }
            message = messages.recv() => match message {
                Ok((number, payload)) => {
                    let topic = publisher.topic().as_bytes();
                    if topics.iter().any(|wanted| topic.starts_with(wanted)) {
                        peer.send(&[topic, &number.to_be_bytes(), &payload]).await?;
                    }
                }
                Err(RecvError::Lagged(lost)) => tracing::debug!(lost, "a subscriber of KV events is slow"),
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }
}

/// Answers requests for replays.
async fn replay(publisher: Arc<Publisher>, stream: TcpStream) -> io::Result<()> {
    let mut restarts = publisher.restarts();
    let mut peer = Peer::new(stream, Socket::Router).await?;
    loop {
        let frames = tokio::select! {
            _ = restarts.changed() => return Ok(()),
            frames = peer.next() => frames?,
        };
        let from = frames.last().and_then(|frame| frame[..].try_into().ok()).map(u64::from_be_bytes);
        let from = from.ok_or(io::ErrorKind::InvalidData)?;
        let Some(batches) = publisher.replay(from) else { continue };
        let topic = publisher.topic().as_bytes();
        for (number, payload) in batches {
            peer.send(&[b"", topic, &number.to_be_bytes(), &payload]).await?;
        }
        peer.send(&[b"", topic, &END, b""]).await?;
    }
}
