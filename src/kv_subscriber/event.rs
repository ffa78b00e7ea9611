//! Events that sockets send to the driver.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use usher_core::kv_events::Input;
use usher_core::memory::{Budget, Reservation};

use super::room::{Room, Rooms};

/// Events that wait at most.
const MAX_EVENTS: usize = 1024;
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
    _place: OwnedSemaphorePermit,
    _held: Reservation,
}

/// Sending side of the queue.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    events: mpsc::Sender<Queued>,
    rooms: Rooms,
    /// Permits for payloads, and for the names in topics.
    places: Arc<Semaphore>,
    /// Number of permits.
    most: usize,
}

/// A queue of events.
pub(super) fn queue(budget: &Arc<Budget>) -> (Sender, mpsc::Receiver<Queued>) {
    let (events, receiver) = mpsc::channel(MAX_EVENTS);
    let rooms = Rooms::new(budget);
    let most = rooms.most_queued() / UNIT;
    (Sender { events, rooms, places: Arc::new(Semaphore::new(most)), most }, receiver)
}

impl Sender {
    /// Memory of messages that arrive.
    pub(super) fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// Waits until there is a place. `None`: the receiver is dropped.
    pub(super) async fn send(&self, event: Event) -> Option<()> {
        self.send_in(self.rooms.room(), event).await
    }

    /// The same for an event that came in this room.
    pub(super) async fn send_in(&self, mut room: Room, event: Event) -> Option<()> {
        room.fit(event.bytes());
        // At most all there is, so that it can be had.
        let units = event.bytes().div_ceil(UNIT).clamp(1, self.most);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let place = Arc::clone(&self.places).acquire_many_owned(units).await.ok()?;
        let next = self.events.reserve().await.ok()?;
        next.send(Queued { event, _place: place, _held: room.into_held() });
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use usher_core::memory::Kind;

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
        let budget = Arc::new(Budget::of_process(96 << 20, None));
        let (sender, mut receiver) = queue(&budget);
        let event = || {
            let input = Input::Message { connection: 1, sequence: 0, payload: Bytes::from(vec![0; 4 << 20]) };
            Event::Endpoint { source: 0, input, model: Bytes::new() }
        };
        sender.send(event()).await.unwrap();
        assert_eq!(budget.used(Kind::PrefixIndex), 4 << 20);
        // There is no place for two.
        let mut second = pin!(sender.send(event()));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(receiver.recv().await);
        assert_eq!(second.await, Some(()));
        drop(receiver.recv().await);
        assert_eq!(budget.used(Kind::PrefixIndex), 0);
    }
}
