//! The requests that the queue knows: those that wait, and those that left and aren't
//! done yet.

use super::flows::FlowRef;
use super::rank::Rank;
use super::time::Nanos;

/// A request that the queue knows. One that is done with is not known any more: its ticket
/// then names nobody, also when its place is taken again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(super) slot: u32,
    generation: u32,
}

impl Ticket {
    /// A small number that no other known request has.
    pub fn index(self) -> usize {
        self.slot as usize
    }
}

/// Stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In the queue.
    Waiting,
    /// Dispatched, and not yet visible in the pool's load.
    Granted,
    /// The room that it takes shows in the pool's numbers.
    Booked,
}

/// State of a request until its end.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) priority: i32,
    pub(super) flow: FlowRef,
    pub(super) bytes: u64,
    /// Bytes that leave with it beside those.
    pub(super) beside: u64,
    pub(super) rank: Rank,
    /// Since when it waits.
    pub(super) since: Nanos,
    /// Longest wait; [`NEVER`](super::NEVER): for ever.
    pub(super) ttl: Nanos,
    /// Time at which its waiting ends by itself.
    pub(super) expires: Nanos,
    pub(super) stage: Stage,
}

/// Requests by their tickets.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    held: Option<Held>,
}

impl Requests {
    /// The place that the next request takes; `None` when there are four billion already.
    pub(super) fn next(&self) -> Option<u32> {
        match self.free.last() {
            Some(slot) => Some(*slot),
            None => u32::try_from(self.slots.len()).ok(),
        }
    }

    /// Keeps a request at the [next](Self::next) place.
    pub(super) fn insert(&mut self, held: Held) -> Ticket {
        if let Some(slot) = self.free.pop()
            && let Some(place) = self.slots.get_mut(slot as usize)
        {
            place.held = Some(held);
            return Ticket { slot, generation: place.generation };
        }
        let slot = self.slots.len() as u32;
        self.slots.push(Slot { generation: 0, held: Some(held) });
        Ticket { slot, generation: 0 }
    }

    pub(super) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Held> {
        self.slots
            .get_mut(ticket.index())
            .filter(|place| place.generation == ticket.generation)
            .and_then(|place| place.held.as_mut())
    }

    /// The request at a place, if there is one.
    pub(super) fn at(&mut self, slot: u32) -> Option<(Ticket, &mut Held)> {
        let place = self.slots.get_mut(slot as usize)?;
        let ticket = Ticket { slot, generation: place.generation };
        place.held.as_mut().map(|held| (ticket, held))
    }

    /// Forgets a request.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Held> {
        let place = self.slots.get_mut(ticket.index())?;
        if place.generation != ticket.generation {
            return None;
        }
        let held = place.held.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(ticket.slot);
        Some(held)
    }

    /// All waiting requests with their places.
    pub(super) fn waiting(&mut self) -> impl Iterator<Item = (u32, &mut Held)> {
        (0u32..)
            .zip(&mut self.slots)
            .filter_map(|(slot, place)| Some((slot, place.held.as_mut()?)))
            .filter(|(_, held)| held.stage == Stage::Waiting)
    }
}
