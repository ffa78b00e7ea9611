//! `program-aware-fairness`: the flow that got least so far goes next, and who waits long
//! gets there in the end.
//!
//! A flow's score is `weight · (1 − service) + weight · wait`, with the service that it
//! got and the wait of its first request each scaled to 0..=1 over the flows that wait; a
//! range without width counts as one half. Service halves within a half-life.
//!
//! Comparing needs no clock. The decay divides the service of all flows alike, so new
//! service is multiplied instead and old one stays as it is; and waits differ by when they
//! began. What is left is a scan over numbers that lie side by side, as the range of the
//! flows that wait changes with each of them: linear, and shorter than the hops of a tree
//! for as many flows as wait in a band.

use super::super::Nanos;
use super::super::flows::{FlowRef, Flows, Memory, Waiter};
use super::super::rank::Rank;
use crate::schedule::waiting::ProgramAwareParams;

/// Half-lives after which all service is scaled down, far from where an `f64` overflows.
const MAX_HALF_LIVES: f64 = 64.0;

/// The flows that wait.
#[derive(Debug)]
pub(in crate::flow::queue) struct ProgramAware {
    weight_service: f64,
    weight_wait: f64,
    half_life: Nanos,
    memory: Memory,
    /// Service is in units of what it was worth then.
    epoch: Nanos,
    waiting: Vec<Candidate>,
    /// By the place of a flow: its position in `waiting`, where it is there.
    positions: Vec<u32>,
}

/// What a choice needs to know of a flow.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    service: f64,
    /// Since when its first request waits.
    since: Nanos,
    head: Rank,
    flow: u32,
}

impl ProgramAware {
    pub(super) fn new(params: &ProgramAwareParams) -> Self {
        let nanos = super::super::nanos;
        Self {
            weight_service: params.las_weight_service,
            weight_wait: params.las_weight_head_wait,
            half_life: nanos(params.half_life()).max(1),
            memory: Memory { ttl: nanos(params.eviction_ttl()), sweep: nanos(params.eviction_sweep()) },
            epoch: 0,
            waiting: Vec::new(),
            positions: Vec::new(),
        }
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory
    }

    pub(super) fn push(&mut self, flows: &mut Flows, rank: Rank, waiter: Waiter) {
        let Some(flow) = flows.get_mut(waiter.flow) else { return };
        flow.queue.insert(rank, waiter);
        let (service, is_first) = (flow.service, flow.queue.len() == 1);
        if is_first {
            let position = self.waiting.len() as u32;
            self.waiting.push(Candidate { service, since: waiter.since, head: rank, flow: waiter.flow });
            let place = waiter.flow as usize;
            if self.positions.len() <= place {
                self.positions.resize(place + 1, u32::MAX);
            }
            self.positions[place] = position;
        } else if let Some(candidate) = self.candidate(waiter.flow)
            && rank < candidate.head
        {
            (candidate.head, candidate.since) = (rank, waiter.since);
        }
    }

    pub(super) fn remove(&mut self, flows: &mut Flows, flow: u32, rank: Rank) {
        if let Some(held) = flows.get_mut(flow)
            && held.queue.remove(&rank).is_some()
        {
            let head = held.queue.first_key_value().map(|(rank, waiter)| (*rank, waiter.since));
            self.set_head(flow, head);
        }
    }

    pub(super) fn pop(&mut self, flows: &mut Flows) -> Option<Waiter> {
        let index = self.best()?;
        let flow = flows.get_mut(index)?;
        let (_, waiter) = flow.queue.pop_first()?;
        let head = flow.queue.first_key_value().map(|(rank, waiter)| (*rank, waiter.since));
        self.set_head(index, head);
        Some(waiter)
    }

    pub(super) fn served(&mut self, flows: &mut Flows, flow: FlowRef, cost: f64, now: Nanos) {
        if !cost.is_finite() || cost <= 0.0 {
            return;
        }
        let mut half_lives = now.saturating_sub(self.epoch) as f64 / self.half_life as f64;
        if half_lives > MAX_HALF_LIVES {
            let scale = (-half_lives).exp2();
            flows.iter_mut().for_each(|flow| flow.service *= scale);
            self.waiting.iter_mut().for_each(|candidate| candidate.service *= scale);
            self.epoch = now;
            half_lives = 0.0;
        }
        let Some(held) = flows.find(flow, now) else { return };
        held.service += cost * half_lives.exp2();
        let service = held.service;
        if let Some(candidate) = self.candidate(flow.index) {
            candidate.service = service;
        }
    }

    /// The flow with the highest score; of equal ones that whose first request is first.
    fn best(&self) -> Option<u32> {
        let first = self.waiting.first()?;
        let (mut least, mut most) = (first.service, first.service);
        let (mut oldest, mut newest) = (first.since, first.since);
        for candidate in &self.waiting {
            least = least.min(candidate.service);
            most = most.max(candidate.service);
            oldest = oldest.min(candidate.since);
            newest = newest.max(candidate.since);
        }
        // Where all are equal the dimension gives everybody the same.
        let of_service = if most > least { self.weight_service / (most - least) } else { 0.0 };
        let of_wait = if newest > oldest { self.weight_wait / (newest - oldest) as f64 } else { 0.0 };
        let score = |candidate: &Candidate| {
            (newest - candidate.since) as f64 * of_wait - (candidate.service - least) * of_service
        };
        let (mut best, mut highest) = (first, score(first));
        for candidate in &self.waiting {
            let score = score(candidate);
            if score > highest || (score == highest && candidate.head < best.head) {
                (best, highest) = (candidate, score);
            }
        }
        Some(best.flow)
    }

    fn candidate(&mut self, flow: u32) -> Option<&mut Candidate> {
        let position = *self.positions.get(flow as usize)?;
        self.waiting.get_mut(position as usize)
    }

    /// Notes which request of a flow is the first now.
    fn set_head(&mut self, flow: u32, head: Option<(Rank, Nanos)>) {
        if let Some((rank, since)) = head {
            if let Some(candidate) = self.candidate(flow) {
                (candidate.head, candidate.since) = (rank, since);
            }
            return;
        }
        let Some(position) = self.positions.get_mut(flow as usize) else { return };
        let position = std::mem::replace(position, u32::MAX) as usize;
        if position < self.waiting.len() {
            self.waiting.swap_remove(position);
            if let Some(moved) = self.waiting.get(position)
                && let Some(place) = self.positions.get_mut(moved.flow as usize)
            {
                *place = position as u32;
            }
        }
    }
}

#[cfg(test)]
#[path = "program_aware_tests.rs"]
mod tests;
