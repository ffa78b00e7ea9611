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
    let Request { source, replay, address, .. } = request;
    let input = match receive(&request, &turns, &events).await {
        Ok(()) => Input::ReplayEnded { replay },
        Err(error) => {
            tracing::debug!(source, %address, %error, "replay of KV events failed");
            Input::ReplayFailed { replay }
        }
    };
    // The driver may be gone.
    let _ = events.send(Event::Endpoint { source, input, model: Bytes::new() }).await;
}

async fn receive(request: &Request, turns: &Semaphore, events: &Sender) -> io::Result<()> {
    let Request { source, replay, from, address, .. } = *request;
    let gone = io::ErrorKind::BrokenPipe;
    // Before its turn: ports that don't answer would take all turns.
    let mut socket = Connection::open(address, Socket::Dealer, events.rooms()).await?;
    // Ends only with the driver.
    let _turn = turns.acquire().await.map_err(|_| gone)?;
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use usher_core::memory::Budget;

    use super::super::event::queue;
    use super::*;

    #[tokio::test]
    async fn replays_take_their_turn_once_they_are_connected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (events, mut receiver) = queue(&Arc::new(Budget::default()));
        let turns = Arc::new(Semaphore::new(0));
        let request = Request { source: 1, replay: 2, from: 3, address, after: Duration::ZERO };
        let task = tokio::spawn(replay(request, Arc::clone(&turns), events.clone()));
        let accepted = tokio::time::timeout(Duration::from_secs(30), listener.accept());
        let (stream, _) = accepted.await.expect("connects without a turn").unwrap();
        let mut engine = Connection::accept(stream, Socket::Router, events.rooms()).await.unwrap();
        assert!(receiver.try_recv().is_err(), "no request was sent");
        turns.add_permits(1);
        let request = engine.next().await.unwrap();
        assert_eq!(request.frames.last().unwrap()[..], 3u64.to_be_bytes());
        let began = receiver.recv().await.unwrap();
        assert!(matches!(began.event, Event::Endpoint { input: Input::ReplayBegan { replay: 2 }, .. }));
        assert_eq!(turns.available_permits(), 0);
        drop(engine);
        let failed = receiver.recv().await.unwrap();
        assert!(matches!(failed.event, Event::Endpoint { input: Input::ReplayFailed { replay: 2 }, .. }));
        task.await.unwrap();
        assert_eq!(turns.available_permits(), 1);
    }
}
