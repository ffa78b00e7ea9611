//! Replicas before one pool, each of which has a queue of its own.

use super::service::Served;
use super::{Nanos, Queue};
use crate::replicas::FlowService;

impl Queue {
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
