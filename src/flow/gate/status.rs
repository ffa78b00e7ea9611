//! Human-readable state of a gate.

use std::sync::PoisonError;

use super::Gate;
use crate::flow::queue::{BandLoad, Count};

/// State of a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct GateStatus {
    /// Requests that wait.
    pub waiting: Count,
    /// The most that may; `u64::MAX`: as many as bands allow.
    pub limit: Count,
    /// Saturation of the pool, with what was let go and doesn't show yet; 1 is full.
    pub saturation: f64,
    /// The bands, the highest priority first.
    pub bands: Vec<BandLoad>,
}

impl Gate {
    /// The state now.
    pub fn status(&self) -> GateStatus {
        let now_ms = self.clock.now_ms();
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = &inner.queue;
        GateStatus {
            waiting: queue.waiting(),
            limit: queue.limit(),
            saturation: inner.levels(now_ms).capacity().saturation(queue.granted()),
            bands: queue.bands().collect(),
        }
    }
}
