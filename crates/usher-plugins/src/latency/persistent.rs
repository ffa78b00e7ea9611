//! The model among what outlives a configuration.

use std::sync::Arc;

use usher_core::endpoints::Snapshot;
use usher_plugin::{Learned, Persistent, State};

use super::model::Model;
use super::rate::InitialRate;

/// Name of a pool's only [`Model`] in its [`State`].
const STATE_KEY: &str = "latency-model";

impl Model {
    /// The model that all plugins of a pool share; one that knows nothing when it is asked for
    /// first.
    pub fn of(state: &State) -> Arc<Self> {
        let clock = state.clock().clone();
        state.of(STATE_KEY, || Self::new(InitialRate::default().get(), clock))
    }

    /// The model of a pool, if a plugin asked for it.
    pub fn find(state: &State) -> Option<Arc<Self>> {
        state.find(STATE_KEY)
    }
}

impl Persistent for Model {
    fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        self.warn_of_constants();
        self.follow(snapshot);
        self.groups.sweep(snapshot, now_ms);
    }

    fn learned(&self) -> Option<&dyn Learned> {
        Some(self)
    }
}
