//! Events that sockets send to the driver.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use usher_core::kv_events::Input;

/// Events that wait at most, and bytes of their payloads and of the names in their topics.
const MAX_EVENTS: usize = 1024;
const MAX_BYTES: usize = 64 << 20;
/// Bytes that a permit is for.
const UNIT: usize = 1024;

/// Event of a socket.
#[derive(Debug)]
pub(super) enum Event {
    /// Input for the endpoint with this number.
    Endpoint {
        source: u64,
        input: Input,
        /// Model that the topic names; empty where none is.
        model: Bytes,
    },
    /// A message from an engine that connected by itself.
    Central { connection: u64, from: IpAddr, pod: Bytes, model: Bytes, sequence: u64, payload: Bytes },
    /// End of a connection to the central socket.
    CentralEnded { connection: u64 },
}

impl Event {
    fn bytes(&self) -> usize {
        match self {
            Self::Endpoint {
                input: Input::Message { payload, .. } | Input::Replayed { payload, .. },
                model,
                ..
            } => payload.len() + model.len(),
            Self::Central { pod, model, payload, .. } => payload.len() + pod.len() + model.len(),
            Self::Endpoint { .. } | Self::CentralEnded { .. } => 0,
        }
    }
}

/// An event with the room that it takes, until this is dropped.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) event: Event,
    _room: OwnedSemaphorePermit,
}

/// Sending side of the queue.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    events: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
}

/// A queue of events.
pub(super) fn queue() -> (Sender, mpsc::Receiver<Queued>) {
    let (events, receiver) = mpsc::channel(MAX_EVENTS);
    (Sender { events, room: Arc::new(Semaphore::new(MAX_BYTES / UNIT)) }, receiver)
}

impl Sender {
    /// Bytes that wait.
    pub(super) fn queued_bytes(&self) -> usize {
        (MAX_BYTES / UNIT).saturating_sub(self.room.available_permits()) * UNIT
    }

    /// Waits until there is room. `None`: the receiver is dropped.
    pub(super) async fn send(&self, event: Event) -> Option<()> {
        // At most all there is, so that it can be had.
        let units = event.bytes().div_ceil(UNIT).clamp(1, MAX_BYTES / UNIT);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(units).await.ok()?;
        self.events.send(Queued { event, _room: room }).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_events_count_the_bytes_of_topic_names() {
        let bytes = |len: usize| Bytes::from(vec![0; len]);
        let input = Input::Message { connection: 1, sequence: 0, payload: bytes(100) };
        assert_eq!(Event::Endpoint { source: 0, input, model: bytes(20) }.bytes(), 120);
        let (from, payload) = (IpAddr::from([10, 0, 0, 1]), bytes(100));
        let event =
            Event::Central { connection: 1, from, pod: bytes(3), model: bytes(20), sequence: 0, payload };
        assert_eq!(event.bytes(), 123);
    }

    #[tokio::test]
    async fn queued_events_count_their_bytes_until_handled() {
        let (sender, mut receiver) = queue();
        let input = Input::Message { connection: 1, sequence: 0, payload: Bytes::from(vec![0; 5000]) };
        sender.send(Event::Endpoint { source: 0, input, model: Bytes::new() }).await.unwrap();
        assert_eq!(sender.queued_bytes(), 5 * UNIT);
        drop(receiver.recv().await);
        assert_eq!(sender.queued_bytes(), 0);
    }
}
