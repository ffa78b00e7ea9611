//! Requests missed messages from an engine.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use usher_core::kv_events::{Input, Reply, Socket, Topic, replay_request};

use super::connection::{Connection, Received};
use super::event::{Event, Sender};

/// Replays at a time, over all endpoints.
pub(super) const MAX_REPLAYS: usize = 8;

/// Address of a replay socket and the first sequence number to ask for.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) source: u64,
    pub(super) replay: u64,
    pub(super) from: u64,
    pub(super) address: SocketAddr,
    pub(super) after: Duration,
}

/// Sends the request, and hands over the replies until the last.
pub(super) async fn replay(request: Request, turns: Arc<Semaphore>, events: Sender) {
    tokio::time::sleep(request.after).await;
    // Ends only with the driver.
    let Ok(_turn) = turns.acquire().await else { return };
    let Request { source, replay, address, .. } = request;
    let input = match receive(&request, &events).await {
        Ok(()) => Input::ReplayEnded { replay },
        Err(error) => {
            tracing::debug!(source, %address, %error, "replay of KV events failed");
            Input::ReplayFailed { replay }
        }
    };
    // The driver may be gone.
    let _ = events.send(Event::Endpoint { source, input, model: Bytes::new() }).await;
}

async fn receive(request: &Request, events: &Sender) -> io::Result<()> {
    let Request { source, replay, from, address, .. } = *request;
    let gone = io::ErrorKind::BrokenPipe;
    let mut socket = Connection::open(address, Socket::Dealer, events.rooms()).await?;
    let [delimiter, number] = replay_request(from);
    socket.send(&[&delimiter, &number]).await?;
    let began = Event::Endpoint { source, input: Input::ReplayBegan { replay }, model: Bytes::new() };
    events.send(began).await.ok_or(gone)?;
    loop {
        let received = socket.next().await?;
        let slices: Vec<&[u8]> = received.frames.iter().map(Bytes::as_ref).collect();
        let sequence = match Reply::read(&slices) {
            Some(Reply::Batch { sequence, .. }) => sequence,
            Some(Reply::End) => return Ok(()),
            None => continue,
        };
        // The newer framing has the topic.
        let model = match &slices[..] {
            [_, topic, _, _] => Bytes::copy_from_slice(Topic::read(topic).model),
            _ => Bytes::new(),
        };
        let input = Input::Replayed { replay, sequence, payload: received.payload() };
        let Received { frames, room } = received;
        drop(frames);
        events.send_in(room, Event::Endpoint { source, input, model }).await.ok_or(gone)?;
    }
}
