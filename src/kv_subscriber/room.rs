//! Memory of messages that arrive.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use usher_core::memory::{Budget, Kind, Reservation};

/// Bytes of a message at most: the blocks of some million tokens.
pub(super) const MAX_MESSAGE: usize = 16 << 20;
/// Bytes of a message from which on it is large: it needs a turn, and room in the budget for more.
pub(super) const LARGE: usize = 64 << 10;
/// Large messages at a time at most.
const MOST_LARGE: usize = 16;
/// Bytes of events that wait in a queue at most, and at least for a small budget.
const MOST_QUEUED: usize = 64 << 20;
const LEAST_QUEUED: usize = 1 << 20;
/// Parts of the process' budget: for large messages that arrive, and for the queue.
const LARGE_PART: usize = 8;
const QUEUED_PART: usize = 16;
/// Time until a full budget is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// Budget of messages, and turns of large ones: as many as an eighth of the budget has room for, at least one and at
/// most 16. Fewer would take turns in growing and end by none having enough.
#[derive(Clone, Debug)]
pub(super) struct Rooms {
    budget: Arc<Budget>,
    turns: Arc<Semaphore>,
}

impl Rooms {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        let turns =
            part(budget, LARGE_PART).map_or(MOST_LARGE, |bytes| (bytes / MAX_MESSAGE).clamp(1, MOST_LARGE));
        Self { budget: Arc::clone(budget), turns: Arc::new(Semaphore::new(turns)) }
    }

    /// Bytes of events that may wait in the queue.
    pub(super) fn most_queued(&self) -> usize {
        part(&self.budget, QUEUED_PART).map_or(MOST_QUEUED, |bytes| bytes.clamp(LEAST_QUEUED, MOST_QUEUED))
    }

    /// Room for nothing yet.
    pub(super) fn room(&self) -> Room {
        Room { rooms: self.clone(), held: Reservation::new(&self.budget, Kind::PrefixIndex), turn: None }
    }
}

/// A part of what the process may take, where that is given.
fn part(budget: &Budget, of: usize) -> Option<usize> {
    budget.process().map(|process| usize::try_from(process).unwrap_or(usize::MAX) / of)
}

/// Memory of a message, counted until this is dropped.
#[derive(Debug)]
pub(super) struct Room {
    rooms: Rooms,
    held: Reservation,
    /// The turn of a large message.
    turn: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Makes it so many bytes. With `large` it waits for a turn, and until seven eighths of the budget have room;
    /// what is small counts without waiting.
    pub(super) async fn grow(&mut self, bytes: usize, large: bool) {
        if !large {
            self.fit(bytes);
            return;
        }
        if self.turn.is_none() {
            // Never closed.
            self.turn = Arc::clone(&self.rooms.turns).acquire_owned().await.ok();
        }
        while self.held.grow_optional(bytes as u64).is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Makes it the bytes of what is there already.
    pub(super) fn fit(&mut self, bytes: usize) {
        self.held.set(bytes as u64);
    }

    /// Returns `true` if it has a turn.
    pub(super) fn is_large(&self) -> bool {
        self.turn.is_some()
    }

    /// Gives the turn back, and keeps the memory.
    pub(super) fn into_held(self) -> Reservation {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_budgets_have_fewer_turns_and_a_shorter_queue() {
        for (process, turns, queued) in [
            (64 << 10, 16, 64 << 20),
            (1024, 8, 64 << 20),
            (256, 2, 16 << 20),
            (96, 1, 6 << 20),
            (1, 1, 1 << 20),
        ] {
            let rooms = Rooms::new(&Arc::new(Budget::of_process(process << 20, None)));
            assert_eq!(
                (rooms.turns.available_permits(), rooms.most_queued()),
                (turns, queued),
                "{process} MiB"
            );
        }
        let rooms = Rooms::new(&Arc::default());
        assert_eq!((rooms.turns.available_permits(), rooms.most_queued()), (16, 64 << 20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_message_waits_while_the_budget_is_full() {
        let budget = Arc::new(Budget::new(8 << 20, 0));
        let rooms = Rooms::new(&budget);
        let mut others = Reservation::new(&budget, Kind::Bodies);
        others.set(4 << 20);
        let mut room = rooms.room();
        let grown = room.grow(4 << 20, true);
        assert!(tokio::time::timeout(Duration::from_secs(1), grown).await.is_err());
        assert!(room.is_large() && budget.used(Kind::PrefixIndex) == 0);
        others.set(3 << 20);
        room.grow(4 << 20, true).await;
        assert_eq!(budget.used(Kind::PrefixIndex), 4 << 20);
        // What is small is no reason to stop.
        let mut small = rooms.room();
        small.grow(LARGE, false).await;
        assert!(!small.is_large());
        let held = room.into_held();
        assert_eq!(rooms.turns.available_permits(), MOST_LARGE);
        drop((held, small));
        assert_eq!(budget.used(Kind::PrefixIndex), 0);
    }
}
