//! Caches of engines by their KV events; they outlive a configuration.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use usher_core::endpoints::{Endpoint, Snapshot};
use usher_core::memory::Budget;
use usher_core::prefix::EngineIndex;
use usher_plugin::Persistent;

use super::agreement::Agreement;

/// The index of engines' blocks, and what its writer needs to know of requests.
#[derive(Debug)]
pub struct EngineCaches {
    index: EngineIndex,
    budget: Arc<Budget>,
    /// Requests whose full blocks were not all cached, by slot, since this was taken last. Held for one addition.
    served: Mutex<Vec<u32>>,
    /// Tokens of a block of the engine, by slot, as it published last. Held to replace it or to read one number.
    block_tokens: Mutex<Vec<u16>>,
    /// Comparisons by slot, since they were taken last. Held for one addition.
    agreements: Mutex<Vec<Agreement>>,
    /// Blocks of the prompts under way that are compared.
    compared_blocks: AtomicUsize,
}

impl EngineCaches {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            index: EngineIndex::new(),
            budget: Arc::clone(budget),
            served: Mutex::default(),
            block_tokens: Mutex::default(),
            agreements: Mutex::default(),
            compared_blocks: AtomicUsize::new(0),
        }
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
        of_slot(&self.served, endpoint, |served| *served = served.saturating_add(1));
    }

    /// Replaces the tokens of engines' blocks, by slot; 0 where an engine has published none.
    pub fn set_block_tokens(&self, by_slot: Vec<u16>) {
        *self.block_tokens.lock().unwrap_or_else(PoisonError::into_inner) = by_slot;
    }

    /// Tokens of a block of an endpoint's engine, by its events or else by its metrics; `None` if neither says.
    pub(super) fn block_tokens(&self, endpoint: &Endpoint) -> Option<u32> {
        let by_slot = self.block_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let published = by_slot.get(endpoint.slot().number() as usize).copied().unwrap_or(0);
        drop(by_slot);
        let scraped = || endpoint.load().block_size.last() as u32;
        Some(if published > 0 { u32::from(published) } else { scraped() }).filter(|tokens| *tokens > 0)
    }

    /// A prompt was compared.
    pub(super) fn compared(&self, endpoint: &Endpoint, agreement: Agreement) {
        of_slot(&self.agreements, endpoint, |of| of.add(agreement));
    }

    pub(super) fn compared_blocks(&self) -> &AtomicUsize {
        &self.compared_blocks
    }

    /// Comparisons, by slot, since this was called last.
    pub fn take_agreements(&self) -> Vec<Agreement> {
        std::mem::take(&mut *self.agreements.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Requests with full blocks that were lacking, by slot, since this was called last.
    pub fn take_served(&self) -> Vec<u32> {
        std::mem::take(&mut *self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Changes what is kept for the slot of an endpoint.
fn of_slot<T: Clone + Default>(list: &Mutex<Vec<T>>, endpoint: &Endpoint, change: impl FnOnce(&mut T)) {
    let slot = endpoint.slot().number() as usize;
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() <= slot {
        list.resize(slot + 1, T::default());
    }
    change(&mut list[slot]);
}

impl Persistent for EngineCaches {
    fn sweep(&self, _snapshot: &Snapshot, now_ms: u64) {
        // Endpoints that are gone are dropped by who writes for them.
        self.index.expire(now_ms);
    }
}
