//! Fairness policies, a file each: which request of a band goes next.

mod program_aware;
mod round_robin;
mod strict;

use super::flows::{FlowRef, Flows, Memory};
use super::line::Waiter;
use super::rank::Rank;
use super::service::Served;
use super::time::Nanos;
use crate::schedule::flow_control::Fairness;
use program_aware::ProgramAware;
use round_robin::RoundRobin;
use strict::Strict;

/// The state of a policy, and the requests where they are not kept by flow.
#[derive(Debug)]
pub(super) enum Turns {
    Strict(Strict),
    RoundRobin(RoundRobin),
    ProgramAware(ProgramAware),
}

impl Turns {
    /// Policy without waiting requests.
    pub(super) fn new(fairness: &Fairness) -> Self {
        match fairness {
            Fairness::GlobalStrict => Self::Strict(Strict::default()),
            Fairness::RoundRobin => Self::RoundRobin(RoundRobin::default()),
            Fairness::ProgramAware(params) => Self::ProgramAware(ProgramAware::new(params)),
        }
    }

    /// Memory that flows need.
    pub(super) fn memory(&self) -> Option<Memory> {
        match self {
            Self::Strict(_) | Self::RoundRobin(_) => None,
            Self::ProgramAware(policy) => Some(policy.memory()),
        }
    }

    /// A request begins to wait.
    pub(super) fn push(&mut self, flows: &mut Flows, rank: Rank, waiter: Waiter) {
        match self {
            Self::Strict(policy) => policy.push(rank, waiter),
            Self::RoundRobin(policy) => policy.push(flows, rank, waiter),
            Self::ProgramAware(policy) => policy.push(flows, rank, waiter),
        }
    }

    /// A request stops waiting out of turn.
    pub(super) fn remove(&mut self, flows: &mut Flows, flow: u32, rank: Rank) {
        match self {
            Self::Strict(policy) => policy.remove(rank),
            Self::RoundRobin(policy) => policy.remove(flows, flow, rank),
            Self::ProgramAware(policy) => policy.remove(flows, flow, rank),
        }
    }

    /// Takes the request that goes next.
    pub(super) fn pop(&mut self, flows: &mut Flows) -> Option<Waiter> {
        match self {
            Self::Strict(policy) => policy.pop(),
            Self::RoundRobin(policy) => policy.pop(flows),
            Self::ProgramAware(policy) => policy.pop(flows),
        }
    }

    /// A flow got something.
    pub(super) fn served(&mut self, flows: &mut Flows, flow: FlowRef, cost: f64, now: Nanos) {
        match self {
            Self::Strict(_) | Self::RoundRobin(_) => {}
            Self::ProgramAware(policy) => policy.served(flows, flow, cost, now),
        }
    }

    /// Flows that got something, and their tokens; none where a policy remembers nothing.
    pub(super) fn service(&self, flows: &Flows, now: Nanos) -> Vec<(u64, u32)> {
        match self {
            Self::Strict(_) | Self::RoundRobin(_) => Vec::new(),
            Self::ProgramAware(policy) => policy.service(flows, now),
        }
    }

    /// Takes service of flows at other replicas.
    pub(super) fn report_service(&mut self, flows: &mut Flows, others: &[Served], now: Nanos) {
        match self {
            Self::Strict(_) | Self::RoundRobin(_) => {}
            Self::ProgramAware(policy) => policy.report_service(flows, others, now),
        }
    }
}
