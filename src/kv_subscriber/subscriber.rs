//! Receives the events of one endpoint.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use usher_core::kv_events::{Input, Message, Socket};

use super::connection::{Connection, Received};
use super::event::{Event, Sender};

/// Address of a publisher and the topics to subscribe to.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    pub(super) source: u64,
    pub(super) connection: u64,
    pub(super) address: SocketAddr,
    pub(super) topic: Arc<str>,
    pub(super) after: Duration,
}

/// Connects, and hands over messages until the connection ends.
pub(super) async fn subscribe(subscription: Subscription, events: Sender) {
    tokio::time::sleep(subscription.after).await;
    if let Err(error) = receive(&subscription, &events).await {
        let Subscription { source, address, .. } = subscription;
        tracing::debug!(source, %address, %error, "subscription to KV events ended");
    }
    let Subscription { source, connection, .. } = subscription;
    let input = Input::Disconnected { connection };
    // The driver may be gone.
    let _ = events.send(Event::Endpoint { source, input, model: Bytes::new() }).await;
}

async fn receive(subscription: &Subscription, events: &Sender) -> io::Result<()> {
    let Subscription { source, connection, address, topic, .. } = subscription;
    let (source, connection) = (*source, *connection);
    let mut socket = Connection::open(*address, Socket::Subscriber, events.rooms()).await?;
    socket.subscribe(topic.as_bytes()).await?;
    let input = Input::Connected { connection, same_process: false };
    events
        .send(Event::Endpoint { source, input, model: Bytes::new() })
        .await
        .ok_or(io::ErrorKind::BrokenPipe)?;
    loop {
        let received = socket.next().await?;
        let Some((model, sequence, payload)) = message(&received, topic) else { continue };
        let input = Input::Message { connection, sequence, payload };
        let event = Event::Endpoint { source, input, model };
        let Received { frames, room } = received;
        drop(frames);
        events.send_in(room, event).await.ok_or(io::ErrorKind::BrokenPipe)?;
    }
}

/// Model, number and payload of a message with a topic that begins like this.
fn message(received: &Received, topic: &str) -> Option<(Bytes, u64, Bytes)> {
    let slices: Vec<&[u8]> = received.frames.iter().map(Bytes::as_ref).collect();
    let message = Message::read(&slices).filter(|_| {
        // Publishers may send more than was asked for.
        slices.first().is_some_and(|frame| frame.starts_with(topic.as_bytes()))
    })?;
    Some((Bytes::copy_from_slice(message.topic.model), message.sequence, received.payload()))
}
