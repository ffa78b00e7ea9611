//! Replicas before one pool, each of which has a queue of its own.

use super::room::Band;
use super::service::Served;
use super::{Capacity, Nanos, Queue};
use crate::replicas::{FlowService, QueueState};
use crate::schedule::flow_control::Ceiling;

impl Queue {
    /// Requests that wait, by priority, and how many were let go so far, for other replicas.
    pub fn state(&self) -> QueueState {
        let count = |requests| u32::try_from(requests).unwrap_or(u32::MAX);
        let waits = self.bands.iter().filter(|band| band.waiting.requests > 0);
        let waiting = waits.map(|band| (band.priority, count(band.waiting.requests))).collect();
        QueueState { waiting, dispatched: self.shares.dispatched() }
    }

    /// Takes the queues of other replicas, each under a name of its own, in place of those that were reported before.
    /// Call [`dispatch`](Self::dispatch) after it.
    pub fn report_others(&mut self, now: Nanos, others: &[(u128, QueueState)]) {
        self.shares.report(now, others);
    }

    /// Computes the share of the room, where others compete for it.
    pub(super) fn begin_share(&mut self, now: Nanos, capacity: &Capacity) {
        if !self.shares.is_due(now) {
            return;
        }
        let saturation = capacity.saturation(self.granted);
        let bands = self.bands.iter().enumerate().filter(|(_, band)| band.waiting.requests > 0);
        let own: Vec<Band> = bands
            .filter_map(|(rank, band)| {
                let room = match self.usage_limit.ceiling(self.bands.position(rank)?, saturation) {
                    Ceiling::Below(ceiling) => capacity.room(self.granted, ceiling),
                    Ceiling::OneIn(_) => 1.0,
                };
                Some(Band { priority: band.priority, waiting: band.waiting.requests as f64, room })
            })
            .collect();
        self.shares.begin(now, &own);
    }

    /// Tokens that flows got here and that still count, in bands whose policy remembers them. The highest band is
    /// first.
    pub fn service(&self, now: Nanos) -> Vec<FlowService> {
        let of = |priority, (flow, tokens)| FlowService { priority, flow, tokens };
        let bands = self.bands.iter();
        bands
            .flat_map(|band| band.service(now).into_iter().map(move |flow| of(band.priority, flow)))
            .collect()
    }

    /// Number that rises whenever a flow gets something.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Takes service that flows got at other replicas, and its age, in place of what was reported before.
    pub fn report_service(&mut self, now: Nanos, others: &[(Nanos, &[FlowService])]) {
        let of = |age: Nanos, service: &FlowService| {
            (service.priority, Served { flow: service.flow, tokens: service.tokens, age })
        };
        let mut served: Vec<(i32, Served)> = others
            .iter()
            .flat_map(|(age, flows)| flows.iter().map(move |service| of(*age, service)))
            .collect();
        served.sort_unstable_by_key(|(priority, _)| *priority);
        for band in self.bands.iter_mut() {
            let from = served.partition_point(|(priority, _)| *priority < band.priority);
            let of_band = served.iter().skip(from).take_while(|(priority, _)| *priority == band.priority);
            let of_band: Vec<Served> = of_band.map(|(_, served)| *served).collect();
            band.report_service(&of_band, now);
        }
    }
}
