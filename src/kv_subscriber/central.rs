//! A socket that engines connect to.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use usher_core::kv_events::{Message, Socket};

use super::connection::Connection;
use super::event::{Event, Sender};

/// Connections at a time; further ones wait.
const MAX_CONNECTIONS: usize = 4096;
/// Time before another attempt where the system has no room for a connection, or the address is not free.
const PAUSE: Duration = Duration::from_millis(500);

/// Listens at an address, and hands over what engines publish.
pub(super) async fn listen(address: String, topic: Arc<str>, events: Sender) {
    let listener = loop {
        match TcpListener::bind(&address).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::error!(%address, %error, "no socket for KV events");
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
            Ok((stream, _)) => {
                connections.spawn(serve(connection, stream, Arc::clone(&topic), events.clone(), place));
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
    place: OwnedSemaphorePermit,
) {
    if let Err(error) = receive(connection, stream, &topic, &events).await {
        tracing::debug!(connection, %error, "connection for KV events ended");
    }
    // The driver may be gone.
    let _ = events.send(Event::CentralEnded { connection }).await;
    drop(place);
}

async fn receive(connection: u64, stream: TcpStream, topic: &str, events: &Sender) -> io::Result<()> {
    let mut socket = Connection::accept(stream, Socket::Subscriber).await?;
    socket.subscribe(topic.as_bytes()).await?;
    loop {
        let frames = socket.next().await?;
        let slices: Vec<&[u8]> = frames.iter().map(Bytes::as_ref).collect();
        let fits = slices.first().is_some_and(|frame| frame.starts_with(topic.as_bytes()));
        let Some(message) = Message::read(&slices).filter(|_| fits) else { continue };
        let copy = Bytes::copy_from_slice;
        let event = Event::Central {
            connection,
            pod: copy(message.topic.pod),
            model: copy(message.topic.model),
            sequence: message.sequence,
            payload: copy(message.payload),
        };
        events.send(event).await.ok_or(io::ErrorKind::BrokenPipe)?;
    }
}
