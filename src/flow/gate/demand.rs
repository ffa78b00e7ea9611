//! Requests that wait, for autoscalers that decide how many model servers there should be. With
//! an empty pool they are the only sign that any are wanted.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::watch;

use super::Gate;

/// Requests that wait at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// By priority and model, the highest priority first.
    pub waiting: Vec<DemandOf>,
}

/// Requests of one priority for one model that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandOf {
    /// The priority.
    pub priority: i32,
    /// The model that clients asked for; empty: they named none, or it was not read.
    pub model: String,
    /// The model that is asked for upstream.
    pub target_model: String,
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

impl Demand {
    /// Requests of all priorities and models.
    pub fn requests(&self) -> u64 {
        self.waiting.iter().map(|demand| demand.requests).sum()
    }

    /// Bytes of their bodies.
    pub fn bytes(&self) -> u64 {
        self.waiting.iter().map(|demand| demand.bytes).sum()
    }

    /// Returns `true` if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Gate {
    /// Requests and bytes that wait, by priority and model.
    pub fn demand(&self) -> Demand {
        let count = |gauge: &prometheus::IntGauge| u64::try_from(gauge.get()).unwrap_or(0);
        let read = self.metrics.demand.read().into_iter();
        let mut waiting: Vec<DemandOf> = read
            .map(|(key, gauges)| DemandOf {
                priority: key.priority,
                model: key.model,
                target_model: key.target,
                requests: count(&gauges.requests),
                bytes: count(&gauges.bytes),
            })
            .collect();
        waiting.sort_unstable_by(|a, b| {
            (b.priority, &a.model, &a.target_model).cmp(&(a.priority, &b.model, &b.target_model))
        });
        Demand { waiting }
    }

    /// Requests that wait now, here and at the replicas that share their load.
    pub fn waiting(&self) -> u64 {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.queue.waiting().requests.saturating_add(self.waiting_elsewhere.load(Relaxed))
    }

    /// Wakes when the first request begins to wait, here or at another replica.
    pub fn demanded(&self) -> watch::Receiver<()> {
        self.demanded.subscribe()
    }
}
