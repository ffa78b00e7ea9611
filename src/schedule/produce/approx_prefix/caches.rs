//! What endpoints are taken to have in their prefix caches. It outlives a configuration.

use std::io;
use std::sync::Arc;

use crate::endpoints::{Endpoint, Snapshot};
use crate::memory::Budget;
use crate::prefix::{Adder, Blocks, Limits, PrefixIndex};
use crate::schedule::Kept;

use super::capacity::Capacities;

/// The index of prefixes, the thread that fills it, and the learned capacities.
#[derive(Debug)]
pub struct PrefixCaches {
    index: Arc<PrefixIndex>,
    adder: Adder,
    capacities: Capacities,
}

impl PrefixCaches {
    /// An empty index within these limits.
    ///
    /// # Errors
    /// When the system has no room for another thread.
    pub fn start(limits: Limits) -> io::Result<Self> {
        let index = Arc::new(PrefixIndex::new(limits));
        Ok(Self { adder: Adder::start(Arc::clone(&index))?, index, capacities: Capacities::default() })
    }

    /// An empty index that counts against a memory budget, within its share of that.
    ///
    /// # Errors
    /// When the system has no room for another thread.
    pub fn start_within(budget: &Arc<Budget>) -> io::Result<Self> {
        let share = usize::try_from(budget.prefix_index()).unwrap_or(usize::MAX);
        let index = Arc::new(PrefixIndex::new(Limits::of_bytes(share)));
        let adder = Adder::start_within(Arc::clone(&index), Arc::clone(budget))?;
        Ok(Self { adder, index, capacities: Capacities::default() })
    }

    /// The index.
    pub fn index(&self) -> &Arc<PrefixIndex> {
        &self.index
    }

    /// Learned shares of the endpoints' capacities.
    pub(super) fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    /// An endpoint that holds `capacity` blocks gets these. Never waits: they are found a
    /// moment later.
    pub fn learn(&self, endpoint: &Arc<Endpoint>, blocks: &Arc<Blocks>, capacity: usize) {
        self.adder.push(Arc::clone(endpoint), Arc::clone(blocks), capacity);
    }

    /// Waits until everything that was learned before is found.
    pub fn flush(&self) {
        self.adder.flush();
    }

    /// Requests that were not learned, as too many waited.
    pub fn dropped(&self) -> u64 {
        self.adder.counts().dropped
    }
}

impl Kept for PrefixCaches {
    fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        self.adder.sweep(snapshot, now_ms);
        self.capacities.sweep(snapshot);
    }

    fn settle(&self) {
        self.flush();
    }
}
