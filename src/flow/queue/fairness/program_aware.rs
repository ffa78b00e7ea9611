//! `program-aware-fairness`: the flow that got least so far goes next, and who waits long
//! gets there in the end.
//!
//! A flow's score is `weight · (1 − service) + weight · wait`, with the service that it
//! got and the wait of its first request each scaled to 0..=1 over the flows that wait; a
//! range without width counts as one half. Service halves within a half-life.
//!
//! Comparing needs no clock. The decay divides the service of all flows alike, so new
//! service is multiplied instead and old one stays as it is; and waits differ by when they
//! began. The ranges change with each flow that comes or goes, and with them the order of
//! all others, so nothing can be kept sorted. But a block of flows is never better than its
//! least service and its longest wait together: blocks are compared by that, and only the
//! flows of those that can win are looked at.
//!
//! Service that a flow got at other replicas counts like that of its own.

use std::collections::HashMap;

use super::super::flows::{Flow, FlowRef, Flows, Memory};
use super::super::line::Waiter;
use super::super::rank::Rank;
use super::super::service::Served;
use super::super::time::{Nanos, nanos};
use crate::schedule::flow_control::ProgramAwareParams;

/// Half-lives after which all service is scaled down, far from where an `f64` overflows.
const MAX_HALF_LIVES: f64 = 64.0;

/// Service below this is none: after a thousand half-lives numbers are so small that
/// nothing can be divided by them.
const NOTHING: f64 = 1e-100;

/// The flows that wait, a column for each number that a choice compares.
#[derive(Debug)]
pub(in crate::flow::queue) struct ProgramAware {
    weight_service: f64,
    weight_wait: f64,
    half_life: Nanos,
    memory: Memory,
    /// Service is in units of what it was worth then.
    epoch: Nanos,
    service: Vec<f64>,
    /// Service of flows at other replicas, by the names that replicas have in common.
    elsewhere: HashMap<u64, f64>,
    /// Since when the first request of each waits, nanoseconds.
    since: Vec<f64>,
    /// Bounds of each [`BLOCK`] of those columns.
    blocks: Vec<Bounds>,
    /// First request of each flow, and the flow.
    heads: Vec<(Rank, u32)>,
    /// By the place of a flow: its position in the columns, where it is there.
    positions: Vec<u32>,
}

impl ProgramAware {
    pub(super) fn new(params: &ProgramAwareParams) -> Self {
        Self {
            weight_service: params.las_weight_service,
            weight_wait: params.las_weight_head_wait,
            half_life: nanos(params.half_life()).max(1),
            memory: Memory { ttl: nanos(params.eviction_ttl()), sweep: nanos(params.eviction_sweep()) },
            epoch: 0,
            service: Vec::new(),
            elsewhere: HashMap::new(),
            since: Vec::new(),
            blocks: Vec::new(),
            heads: Vec::new(),
            positions: Vec::new(),
        }
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory
    }

    pub(super) fn push(&mut self, flows: &mut Flows, rank: Rank, waiter: Waiter) {
        let Some(flow) = flows.get_mut(waiter.flow) else { return };
        flow.line.insert(rank, waiter);
        if flow.line.len() == 1 {
            let service = sum(flow, &self.elsewhere);
            let position = self.heads.len() as u32;
            self.service.push(service);
            self.since.push(waiter.since as f64);
            self.heads.push((rank, waiter.flow));
            let place = waiter.flow as usize;
            if self.positions.len() <= place {
                self.positions.resize(place + 1, u32::MAX);
            }
            self.positions[place] = position;
            self.bound(position as usize);
        } else if let Some(position) = self.position(waiter.flow)
            && rank < self.heads[position].0
        {
            self.set_head(waiter.flow, Some((rank, waiter.since)));
        }
    }

    pub(super) fn remove(&mut self, flows: &mut Flows, flow: u32, rank: Rank) {
        if let Some(held) = flows.get_mut(flow)
            && held.line.remove(rank)
        {
            let head = held.line.first().map(|(rank, waiter)| (rank, waiter.since));
            self.set_head(flow, head);
        }
    }

    pub(super) fn pop(&mut self, flows: &mut Flows) -> Option<Waiter> {
        let index = self.best()?;
        let flow = flows.get_mut(index)?;
        let waiter = flow.line.pop_first()?;
        let head = flow.line.first().map(|(rank, waiter)| (rank, waiter.since));
        self.set_head(index, head);
        Some(waiter)
    }

    pub(super) fn served(&mut self, flows: &mut Flows, flow: FlowRef, cost: f64, now: Nanos) {
        if !cost.is_finite() || cost <= 0.0 {
            return;
        }
        let half_lives = self.half_lives(flows, now);
        let Some(held) = flows.find(flow, now) else { return };
        held.service += cost * half_lives.exp2();
        let service = sum(held, &self.elsewhere);
        if let Some(position) = self.position(flow.index) {
            self.service[position] = service;
            self.bound(position);
        }
    }

    /// Flows that got something here, and their tokens as far as they aren't forgotten.
    pub(super) fn service(&self, flows: &Flows, now: Nanos) -> Vec<(u64, u32)> {
        let scale = (-self.half_lives_since(self.epoch, now)).exp2();
        let of = flows.iter().map(|flow| (flow.shared, (flow.service * scale) as u32));
        of.filter(|(_, tokens)| *tokens > 0).collect()
    }

    /// Takes service of flows at other replicas, in place of what was reported before.
    pub(super) fn report_service(&mut self, flows: &mut Flows, others: &[Served], now: Nanos) {
        let half_lives = self.half_lives(flows, now);
        self.elsewhere.clear();
        for other in others {
            let age = other.age as f64 / self.half_life as f64;
            let service = f64::from(other.tokens) * (half_lives - age).exp2();
            *self.elsewhere.entry(other.flow).or_default() += service;
        }
        for ((_, flow), service) in self.heads.iter().zip(&mut self.service) {
            if let Some(flow) = flows.get_mut(*flow) {
                *service = sum(flow, &self.elsewhere);
            }
        }
        (0..self.blocks.len()).for_each(|block| self.bound(block * BLOCK));
    }

    /// Half-lives since the epoch, which is moved when it is long ago.
    fn half_lives(&mut self, flows: &mut Flows, now: Nanos) -> f64 {
        let half_lives = self.half_lives_since(self.epoch, now);
        if half_lives <= MAX_HALF_LIVES {
            return half_lives;
        }
        let scale = (-half_lives).exp2();
        flows.iter_mut().for_each(|flow| flow.service *= scale);
        self.service.iter_mut().chain(self.elsewhere.values_mut()).for_each(|service| *service *= scale);
        (0..self.blocks.len()).for_each(|block| self.bound(block * BLOCK));
        self.epoch = now;
        0.0
    }

    fn half_lives_since(&self, since: Nanos, now: Nanos) -> f64 {
        now.saturating_sub(since) as f64 / self.half_life as f64
    }

    /// The flow with the highest score; of equal ones that whose first request is first.
    fn best(&self) -> Option<u32> {
        let all = self.blocks.iter().copied().reduce(Bounds::and)?;
        let ((least, most), (oldest, newest)) = (all.service, all.since);
        // Where all are equal the dimension gives everybody the same.
        let of_service = if most - least > NOTHING { self.weight_service / (most - least) } else { 0.0 };
        let of_wait = if newest > oldest { self.weight_wait / (newest - oldest) } else { 0.0 };
        let score = |service: f64, since: f64| (newest - since) * of_wait - (service - least) * of_service;
        let (mut highest, mut best) = (f64::NEG_INFINITY, None);
        for (block, bounds) in self.blocks.iter().enumerate() {
            if score(bounds.service.0, bounds.since.0) < highest {
                continue;
            }
            let of = block * BLOCK..self.heads.len().min((block + 1) * BLOCK);
            let columns = (self.service.get(of.clone())?, self.since.get(of.clone())?, self.heads.get(of)?);
            for ((service, since), (rank, flow)) in columns.0.iter().zip(columns.1).zip(columns.2) {
                let score = score(*service, *since);
                let is_better = match best {
                    Some((first, _)) if score == highest => *rank < first,
                    _ => score > highest,
                };
                if is_better {
                    (highest, best) = (score, Some((*rank, *flow)));
                }
            }
        }
        best.map(|(_, flow)| flow)
    }

    /// Position of a flow in the columns.
    fn position(&self, flow: u32) -> Option<usize> {
        let position = *self.positions.get(flow as usize)? as usize;
        (position < self.heads.len()).then_some(position)
    }

    /// Notes which request of a flow is the first now.
    fn set_head(&mut self, flow: u32, head: Option<(Rank, Nanos)>) {
        let Some(position) = self.position(flow) else { return };
        if let Some((rank, since)) = head {
            self.heads[position].0 = rank;
            self.since[position] = since as f64;
            self.bound(position);
            return;
        }
        self.positions[flow as usize] = u32::MAX;
        self.service.swap_remove(position);
        self.since.swap_remove(position);
        self.heads.swap_remove(position);
        if let Some((_, moved)) = self.heads.get(position) {
            self.positions[*moved as usize] = position as u32;
            self.bound(position);
        }
        self.bound(self.heads.len());
    }

    /// Looks again at the block of a position, where the columns may have ended.
    fn bound(&mut self, position: usize) {
        let block = position / BLOCK;
        let of = block * BLOCK..self.heads.len().min((block + 1) * BLOCK);
        let Some(service) = self.service.get(of.clone()).filter(|service| !service.is_empty()) else {
            return self.blocks.truncate(block);
        };
        let Some((service, since)) = range(service).zip(self.since.get(of).and_then(range)) else { return };
        let bounds = Bounds { service, since };
        match self.blocks.get_mut(block) {
            Some(known) => *known = bounds,
            None => self.blocks.push(bounds),
        }
    }
}

/// Service of a flow at all replicas.
fn sum(flow: &Flow, elsewhere: &HashMap<u64, f64>) -> f64 {
    flow.service + elsewhere.get(&flow.shared).copied().unwrap_or_default()
}

/// Flows that are looked at together.
const BLOCK: usize = 32;

/// The least and the most of a block's columns.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    service: (f64, f64),
    since: (f64, f64),
}

impl Bounds {
    /// Bounds of both together.
    fn and(self, other: Self) -> Self {
        let both = |a: (f64, f64), b: (f64, f64)| (smaller(a.0, b.0), greater(a.1, b.1));
        Self { service: both(self.service, other.service), since: both(self.since, other.since) }
    }
}

/// Numbers that are compared at a time: columns are read in steps of so many, which a
/// processor does at once.
const LANES: usize = 4;

fn greater(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
}

fn smaller(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

/// The smallest and the largest number of a column.
fn range(column: &[f64]) -> Option<(f64, f64)> {
    let first = *column.first()?;
    let (mut least, mut most) = ([first; LANES], [first; LANES]);
    let (steps, rest) = column.as_chunks::<LANES>();
    for step in steps {
        for ((least, most), value) in least.iter_mut().zip(&mut most).zip(step) {
            *least = smaller(*least, *value);
            *most = greater(*most, *value);
        }
    }
    let least = least.into_iter().chain(rest.iter().copied()).fold(first, smaller);
    let most = most.into_iter().chain(rest.iter().copied()).fold(first, greater);
    Some((least, most))
}

#[cfg(test)]
#[path = "program_aware_tests.rs"]
mod tests;
