//! Replicas before one pool, each of which has a queue of its own.

use super::service::ServedElsewhere;
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

    /// Takes service that flows got at other replicas, in place of what was reported before.
    pub fn report_service(&mut self, now: Nanos, others: &ServedElsewhere) {
        for band in self.bands.iter_mut() {
            band.report_service(others.of(band.priority), now);
        }
    }
}
