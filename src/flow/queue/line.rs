//! The requests of a flow that wait, in their order.
//!
//! Most flows have a few at most. Those stand beside each other in the flow itself: a tree
//! would be half a kilobyte for each flow, made for its first request and gone with its last.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::rank::Rank;
use super::time::Nanos;

/// More than so many are kept as a tree, as any of them may leave.
const FEW: usize = 16;

/// A tree goes when no more than so many are left in it: less, so that one that comes and one
/// that goes don't move all.
const FEW_AGAIN: usize = 4;

/// A request in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    /// The place of the request.
    pub(super) slot: u32,
    /// The place of its flow.
    pub(super) flow: u32,
    /// Since when it waits.
    pub(super) since: Nanos,
}

/// Requests by rank, the first first.
#[derive(Debug)]
pub(super) enum Line {
    /// Sorted.
    Few(SmallVec<[(Rank, Waiter); 2]>),
    Many(BTreeMap<Rank, Waiter>),
}

impl Default for Line {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl Line {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one that goes next.
    pub(super) fn first(&self) -> Option<(Rank, Waiter)> {
        match self {
            Self::Few(few) => few.first().copied(),
            Self::Many(many) => many.first_key_value().map(|(rank, waiter)| (*rank, *waiter)),
        }
    }

    /// One more, whose rank nobody has.
    pub(super) fn insert(&mut self, rank: Rank, waiter: Waiter) {
        match self {
            Self::Few(few) if few.len() < FEW => {
                // Most come last.
                let position = few.iter().rposition(|(before, _)| *before < rank).map_or(0, |last| last + 1);
                few.insert(position, (rank, waiter));
            }
            Self::Few(few) => {
                let all = few.drain(..).chain([(rank, waiter)]);
                *self = Self::Many(all.collect());
            }
            Self::Many(many) => {
                many.insert(rank, waiter);
            }
        }
    }

    /// Removes an entry. Returns `true` if it was there.
    pub(super) fn remove(&mut self, rank: Rank) -> bool {
        match self {
            Self::Few(few) => {
                let position = few.iter().position(|(of, _)| *of == rank);
                position.map(|position| few.remove(position)).is_some()
            }
            Self::Many(many) => {
                let was_there = many.remove(&rank).is_some();
                self.shrink();
                was_there
            }
        }
    }

    /// Takes the one that goes next.
    pub(super) fn pop_first(&mut self) -> Option<Waiter> {
        match self {
            Self::Few(few) => (!few.is_empty()).then(|| few.remove(0).1),
            Self::Many(many) => {
                let first = many.pop_first().map(|(_, waiter)| waiter);
                self.shrink();
                first
            }
        }
    }

    fn shrink(&mut self) {
        if let Self::Many(many) = self
            && many.len() <= FEW_AGAIN
        {
            *self = Self::Few(std::mem::take(many).into_iter().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Arrival;
    use super::*;
    use crate::schedule::flow_control::Ordering;

    fn rank(since: u64, sequence: u64) -> Rank {
        let arrival =
            Arrival { flow: "f", priority: 0, bytes: 0, beside: 0, received: 0, since, ttl: None, due: None };
        Rank::of(Ordering::Fcfs, &arrival, sequence)
    }

    #[derive(Clone, Debug)]
    enum Event {
        Comes(u64),
        Goes,
        /// One of those that wait, and one that doesn't.
        Leaves(prop::sample::Index),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            5 => (0..50u64).prop_map(Event::Comes),
            2 => Just(Event::Goes),
            2 => any::<prop::sample::Index>().prop_map(Event::Leaves),
        ]
    }

    proptest! {
        /// A line is a sorted map, be it short or long.
        #[test]
        fn queue_line_matches_a_map(
            events in prop::collection::vec(event(), 1..200),
            emptied in any::<bool>(),
        ) {
            let (mut line, mut map) = (Line::default(), BTreeMap::new());
            let end = emptied.then_some(Event::Goes);
            let events = events.into_iter().chain(end.into_iter().cycle().take(200));
            for (sequence, event) in (0u32..).zip(events) {
                match event {
                    Event::Comes(since) => {
                        let waiter = Waiter { slot: sequence, flow: 7, since };
                        line.insert(rank(since, sequence.into()), waiter);
                        map.insert(rank(since, sequence.into()), waiter);
                    }
                    Event::Goes => {
                        prop_assert_eq!(line.pop_first(), map.pop_first().map(|(_, waiter)| waiter));
                    }
                    Event::Leaves(which) => {
                        if !map.is_empty() {
                            let rank = *map.keys().nth(which.index(map.len())).unwrap();
                            map.remove(&rank);
                            prop_assert!(line.remove(rank));
                            prop_assert!(!line.remove(rank));
                        }
                    }
                }
                let first = map.first_key_value().map(|(rank, waiter)| (*rank, *waiter));
                prop_assert_eq!(line.first(), first);
                prop_assert_eq!((line.len(), line.is_empty()), (map.len(), map.is_empty()));
                let is_tree = matches!(line, Line::Many(_));
                let bound = if is_tree { FEW_AGAIN + 1..usize::MAX } else { 0..FEW + 1 };
                prop_assert!(bound.contains(&map.len()), "{} in {line:?}", map.len());
            }
        }
    }
}
