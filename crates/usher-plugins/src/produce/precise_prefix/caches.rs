//! What engines tell of their caches. It outlives a configuration.

use std::sync::{Arc, Mutex, PoisonError};

use usher_core::endpoints::{Endpoint, Snapshot};
use usher_core::memory::Budget;
use usher_core::prefix::EngineIndex;
use usher_plugin::Persistent;

/// The index of engines' blocks, and what its writer needs to know of requests.
#[derive(Debug)]
pub struct EngineCaches {
    index: EngineIndex,
    budget: Arc<Budget>,
    /// Requests whose full blocks were not all cached, by slot, since this was taken last. Held for one addition.
    served: Mutex<Vec<u32>>,
}

impl EngineCaches {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self { index: EngineIndex::new(), budget: Arc::clone(budget), served: Mutex::default() }
    }

    /// The index.
    pub fn index(&self) -> &EngineIndex {
        &self.index
    }

    /// Memory budget that the index counts against.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// An endpoint is sent a request with full blocks that it lacks.
    pub(super) fn served(&self, endpoint: &Endpoint) {
        let slot = endpoint.slot().number() as usize;
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if served.len() <= slot {
            served.resize(slot + 1, 0);
        }
        served[slot] = served[slot].saturating_add(1);
    }

    /// Requests with full blocks that were lacking, by slot, since this was called last.
    pub fn take_served(&self) -> Vec<u32> {
        std::mem::take(&mut *self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Persistent for EngineCaches {
    fn sweep(&self, _snapshot: &Snapshot, now_ms: u64) {
        // Endpoints that are gone are dropped by who writes for them.
        self.index.expire(now_ms);
    }
}
