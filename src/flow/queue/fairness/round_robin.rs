//! `round-robin-fairness-policy`: flows take turns, a request each.

use std::collections::BTreeSet;

use super::super::flows::Flows;
use super::super::line::Waiter;
use super::super::rank::Rank;

/// The flows with requests, by whose turn comes first. A flow that has just begun to wait
/// comes last.
#[derive(Debug, Default)]
pub(in crate::flow::queue) struct RoundRobin {
    turns: BTreeSet<(u64, u32)>,
    next: u64,
}

impl RoundRobin {
    pub(super) fn push(&mut self, flows: &mut Flows, rank: Rank, waiter: Waiter) {
        let Some(flow) = flows.get_mut(waiter.flow) else { return };
        if flow.line.is_empty() {
            flow.turn = self.next;
            self.turns.insert((self.next, waiter.flow));
            self.next += 1;
        }
        flow.line.insert(rank, waiter);
    }

    pub(super) fn remove(&mut self, flows: &mut Flows, flow: u32, rank: Rank) {
        let Some(held) = flows.get_mut(flow) else { return };
        if held.line.remove(rank) && held.line.is_empty() {
            self.turns.remove(&(held.turn, flow));
        }
    }

    pub(super) fn pop(&mut self, flows: &mut Flows) -> Option<Waiter> {
        let (_, index) = self.turns.pop_first()?;
        let flow = flows.get_mut(index)?;
        let waiter = flow.line.pop_first()?;
        if !flow.line.is_empty() {
            flow.turn = self.next;
            self.turns.insert((self.next, index));
            self.next += 1;
        }
        Some(waiter)
    }
}
