//! The order of requests.

use super::arrival::Arrival;
use super::time::{NEVER, Nanos};
use crate::schedule::flow_control::Ordering;

/// Place of a request in its order: the smaller goes first. No two are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    at: Nanos,
    tie: Nanos,
    sequence: u64,
}

impl Rank {
    /// The place of a request that came as the `sequence`-th of all.
    pub(super) fn of(ordering: Ordering, arrival: &Arrival<'_>, sequence: u64) -> Self {
        let (at, tie) = match ordering {
            Ordering::Fcfs => (arrival.since, 0),
            Ordering::Edf => {
                (arrival.ttl.map_or(NEVER, |ttl| arrival.since.saturating_add(ttl)), arrival.since)
            }
            Ordering::SloDeadline => (arrival.due.unwrap_or(NEVER), arrival.received),
        };
        Self { at, tie, sequence }
    }

    /// Number among all requests.
    pub(super) fn sequence(self) -> u64 {
        self.sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(since: Nanos, ttl: Option<Nanos>, received: Nanos, due: Option<Nanos>) -> Arrival<'static> {
        Arrival { flow: "f", priority: 0, bytes: 0, beside: 0, received, since, ttl, due }
    }

    #[test]
    fn each_order_has_its_own_key() {
        let requests = [
            arrival(10, Some(100), 9, None),
            arrival(20, Some(50), 19, Some(200)),
            arrival(30, None, 1, Some(150)),
            arrival(40, None, 0, None),
            arrival(10, Some(100), 9, Some(200)),
        ];
        let order = |ordering| {
            let mut ranks: Vec<(Rank, usize)> = requests
                .iter()
                .enumerate()
                .map(|(index, request)| (Rank::of(ordering, request, index as u64), index))
                .collect();
            ranks.sort_unstable();
            ranks.into_iter().map(|(_, index)| index).collect::<Vec<_>>()
        };
        assert_eq!(order(Ordering::Fcfs), [0, 4, 1, 2, 3]);
        assert_eq!(order(Ordering::Edf), [1, 0, 4, 2, 3], "those without an end last, by arrival");
        assert_eq!(order(Ordering::SloDeadline), [2, 4, 1, 3, 0], "ties by who was received first");
    }
}
