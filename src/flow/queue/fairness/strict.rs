//! `global-strict-fairness-policy`: all flows are one queue.

use std::collections::BTreeMap;

use super::super::line::Waiter;
use super::super::rank::Rank;

/// The requests of all flows, in their order.
#[derive(Debug, Default)]
pub(in crate::flow::queue) struct Strict {
    queue: BTreeMap<Rank, Waiter>,
}

impl Strict {
    pub(super) fn push(&mut self, rank: Rank, waiter: Waiter) {
        self.queue.insert(rank, waiter);
    }

    pub(super) fn remove(&mut self, rank: Rank) {
        self.queue.remove(&rank);
    }

    pub(super) fn pop(&mut self) -> Option<Waiter> {
        self.queue.pop_first().map(|(_, waiter)| waiter)
    }
}
