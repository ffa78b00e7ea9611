//! A socket that engines connect to.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
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
pub(super) struct Peers(Arc<Mutex<HashMap<IpAddr, OfAddress>>>);

/// Connections of an address, the oldest first.
type OfAddress = Vec<Entry>;

#[derive(Debug)]
struct Entry {
    connection: u64,
    ended: CancellationToken,
    /// `true` if it has brought a message.
    is_heard: bool,
}

/// One of them, until this is dropped.
#[derive(Debug)]
struct Peer {
    peers: Peers,
    ip: IpAddr,
    connection: u64,
    ended: CancellationToken,
}

impl Peers {
    /// Adds a connection of an address where so many endpoints are. Without room it takes the place of the oldest that has
    /// brought no message. `None` if there is none, or no endpoint.
    fn enter(&self, connection: u64, ip: IpAddr, endpoints: usize) -> Option<Peer> {
        if endpoints == 0 {
            return None;
        }
        let mut peers = self.lock();
        let of_address = peers.entry(ip).or_default();
        if of_address.len() >= endpoints.saturating_mul(PER_ENDPOINT) + BESIDE {
            let oldest = of_address.iter().position(|entry| !entry.is_heard)?;
            of_address.remove(oldest).ended.cancel();
        }
        let ended = CancellationToken::new();
        of_address.push(Entry { connection, ended: ended.clone(), is_heard: false });
        Some(Peer { peers: self.clone(), ip, connection, ended })
    }

    /// Ends a connection, if it is there.
    pub(super) fn end(&self, connection: u64) {
        let peers = self.lock();
        let found = peers.values().flatten().find(|entry| entry.connection == connection);
        found.into_iter().for_each(|entry| entry.ended.cancel());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, OfAddress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    /// It has brought a message.
    fn heard(&self) {
        let mut peers = self.peers.lock();
        let of_address = peers.get_mut(&self.ip).into_iter().flatten();
        of_address
            .filter(|entry| entry.connection == self.connection)
            .for_each(|entry| entry.is_heard = true);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut peers = self.peers.lock();
        if let Some(of_address) = peers.get_mut(&self.ip) {
            of_address.retain(|entry| entry.connection != self.connection);
            if of_address.is_empty() {
                peers.remove(&self.ip);
            }
        }
    }
}

/// Listens at an address, and hands over what the engines of endpoints publish. Other peers are turned away.
pub(super) async fn listen(
    address: String,
    topic: Arc<str>,
    (peers, store): (Peers, Arc<Store>),
    events: Sender,
) {
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
                let Some(peer) = peers.enter(connection, ip, endpoints) else {
                    tracing::debug!(%ip, endpoints, "connection for KV events turned away");
                    continue;
                };
                let topic = Arc::clone(&topic);
                connections.spawn(serve(stream, topic, events.clone(), (peer, place)));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection for KV events can't be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, topic: Arc<str>, events: Sender, place: (Peer, OwnedSemaphorePermit)) {
    let peer = &place.0;
    let connection = peer.connection;
    tokio::select! {
        Err(error) = receive(peer, stream, &topic, &events) => {
            tracing::debug!(connection, %error, "connection for KV events ended");
        }
        () = peer.ended.cancelled() => tracing::debug!(connection, "connection for KV events closed"),
    }
    // The driver may be gone.
    let _ = events.send(Event::CentralEnded { connection }).await;
    drop(place);
}

async fn receive(peer: &Peer, stream: TcpStream, topic: &str, events: &Sender) -> io::Result<()> {
    let mut is_heard = false;
    let mut socket = Connection::accept(stream, Socket::Subscriber, events.rooms()).await?;
    socket.subscribe(topic.as_bytes()).await?;
    loop {
        let received = socket.next().await?;
        let slices: Vec<&[u8]> = received.frames.iter().map(Bytes::as_ref).collect();
        let fits = slices.first().is_some_and(|frame| frame.starts_with(topic.as_bytes()));
        let Some(message) = Message::read(&slices).filter(|_| fits) else { continue };
        if !std::mem::replace(&mut is_heard, true) {
            peer.heard();
        }
        let copy = Bytes::copy_from_slice;
        let event = Event::Central {
            connection: peer.connection,
            from: peer.ip,
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
    use usher_core::endpoints::EndpointSpec;
    use usher_core::memory::Budget;

    use super::super::event::queue;
    use super::*;

    #[test]
    fn an_address_has_a_few_connections() {
        let (peers, ip) = (Peers::default(), IpAddr::from([10, 0, 0, 1]));
        assert!(peers.enter(0, ip, 0).is_none(), "no endpoint is there");
        let mut entered: Vec<_> = (1..5).map(|number| peers.enter(number, ip, 1).unwrap()).collect();
        let ended = |entered: &[Peer]| {
            let ended = entered.iter().filter(|peer| peer.ended.is_cancelled());
            ended.map(|peer| peer.connection).collect::<Vec<_>>()
        };
        entered.push(peers.enter(5, ip, 2).unwrap());
        entered.push(peers.enter(6, [10, 0, 0, 2].into(), 1).unwrap());
        assert_eq!(ended(&entered), [0; 0], "another rank is there, and another address");
        entered[0].heard();
        entered.push(peers.enter(7, ip, 1).unwrap());
        assert_eq!(ended(&entered), [2], "the oldest without messages");
        entered.iter().for_each(Peer::heard);
        assert!(peers.enter(8, ip, 1).is_none(), "there is no such");
        peers.end(4);
        peers.end(9);
        assert_eq!(ended(&entered), [2, 4]);
        entered.retain(|peer| !peer.ended.is_cancelled() && peer.connection != 5);
        assert!(peers.enter(9, ip, 1).is_some());
        entered.clear();
        assert!(peers.lock().is_empty());
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest_of_its_address() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let store = Arc::new(Store::default());
        store.replace(vec![EndpointSpec::new("a", ([127, 0, 0, 1], 8000))]);
        let (events, mut receiver) = queue(&Arc::new(Budget::default()));
        let rooms = events.rooms().clone();
        let peers = Peers::default();
        tokio::spawn(listen(free.to_string(), "kv@".into(), (peers.clone(), store), events));
        let connect = async || loop {
            // The socket listens a moment later.
            if let Ok(connection) = Connection::open(free, Socket::Publisher, &rooms).await {
                return connection;
            }
            tokio::task::yield_now().await;
        };
        let mut connections = Vec::new();
        for _ in 0..=PER_ENDPOINT + BESIDE {
            connections.push(connect().await);
        }
        let is_of =
            |event, number| matches!(event, Event::CentralEnded { connection } if connection == number);
        assert!(is_of(receiver.recv().await.unwrap().event, 0));
        let first = &mut connections[0];
        // It may have subscribed before.
        while first.next().await.is_ok() {}
        peers.end(3);
        assert!(is_of(receiver.recv().await.unwrap().event, 3));
        assert_eq!(peers.lock().values().map(Vec::len).sum::<usize>(), PER_ENDPOINT + BESIDE - 1);
    }
}
