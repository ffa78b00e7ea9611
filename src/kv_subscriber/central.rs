//! A socket that engines connect to.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use usher_core::endpoints::{Endpoint, Store};
use usher_core::kv_events::{Message, Socket};

use super::connection::{Connection, Received};
use super::event::{Event, Sender};

/// Connections at a time; further ones wait.
const MAX_CONNECTIONS: usize = 4096;
/// Time before another attempt where the system has no room for a connection, or the address is not free.
const PAUSE: Duration = Duration::from_millis(500);
/// Connections of an address at a time, for each endpoint there and beside these: new ones may come before old ones are
/// seen to be over.
const PER_ENDPOINT: usize = 2;
const BESIDE: usize = 2;

/// Connections by address.
#[derive(Clone, Debug, Default)]
struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One of them, until this is dropped.
#[derive(Debug)]
struct Peer {
    peers: Peers,
    ip: IpAddr,
}

impl Peers {
    /// Counts a connection of an address where so many endpoints are. `None` if it may have no more.
    fn enter(&self, ip: IpAddr, endpoints: usize) -> Option<Peer> {
        if endpoints == 0 {
            return None;
        }
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = peers.entry(ip).or_default();
        if *count >= endpoints.saturating_mul(PER_ENDPOINT) + BESIDE {
            return None;
        }
        *count += 1;
        Some(Peer { peers: self.clone(), ip })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut peers = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = peers.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&self.ip);
            }
        }
    }
}

/// Listens at an address, and hands over what the engines of endpoints publish. Other peers are turned away.
pub(super) async fn listen(address: String, topic: Arc<str>, store: Arc<Store>, events: Sender) {
    let listener = loop {
        match TcpListener::bind(&address).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::error!(%address, %error, "cannot listen for KV events; trying again");
                tokio::time::sleep(PAUSE * 10).await;
            }
        }
    };
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let peers = Peers::default();
    let mut connections = JoinSet::new();
    for connection in 0.. {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let ip = peer.ip().to_canonical();
                let snapshot = store.snapshot();
                let is_there = |endpoint: &&Arc<Endpoint>| endpoint.ip().to_canonical() == ip;
                let endpoints = snapshot.endpoints().iter().filter(is_there).count();
                // One that is not known yet connects once more.
                let Some(peer) = peers.enter(ip, endpoints) else {
                    tracing::debug!(%ip, endpoints, "connection for KV events turned away");
                    continue;
                };
                let topic = Arc::clone(&topic);
                connections.spawn(serve(connection, stream, topic, events.clone(), (peer, place)));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection for KV events can't be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve(
    connection: u64,
    stream: TcpStream,
    topic: Arc<str>,
    events: Sender,
    place: (Peer, OwnedSemaphorePermit),
) {
    let from = place.0.ip;
    if let Err(error) = receive((connection, from), stream, &topic, &events).await {
        tracing::debug!(connection, %error, "connection for KV events ended");
    }
    // The driver may be gone.
    let _ = events.send(Event::CentralEnded { connection }).await;
    drop(place);
}

async fn receive(
    (connection, from): (u64, IpAddr),
    stream: TcpStream,
    topic: &str,
    events: &Sender,
) -> io::Result<()> {
    let mut socket = Connection::accept(stream, Socket::Subscriber, events.rooms()).await?;
    socket.subscribe(topic.as_bytes()).await?;
    loop {
        let received = socket.next().await?;
        let slices: Vec<&[u8]> = received.frames.iter().map(Bytes::as_ref).collect();
        let fits = slices.first().is_some_and(|frame| frame.starts_with(topic.as_bytes()));
        let Some(message) = Message::read(&slices).filter(|_| fits) else { continue };
        let copy = Bytes::copy_from_slice;
        let event = Event::Central {
            connection,
            from,
            pod: copy(message.topic.pod),
            model: copy(message.topic.model),
            sequence: message.sequence,
            payload: received.payload(),
        };
        let Received { frames, room } = received;
        drop(frames);
        events.send_in(room, event).await.ok_or(io::ErrorKind::BrokenPipe)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_few_connections() {
        let (peers, ip) = (Peers::default(), IpAddr::from([10, 0, 0, 1]));
        assert!(peers.enter(ip, 0).is_none(), "no endpoint is there");
        let mut entered: Vec<_> = (0..4).map(|_| peers.enter(ip, 1).unwrap()).collect();
        assert!(peers.enter(ip, 1).is_none());
        assert!(peers.enter(ip, 2).is_some(), "another rank is there");
        assert!(peers.enter(IpAddr::from([10, 0, 0, 2]), 1).is_some());
        entered.pop();
        assert!(peers.enter(ip, 1).is_some());
        entered.clear();
        assert!(peers.0.lock().unwrap().is_empty());
    }
}
