//! The policy in effect: what a configuration says about decisions, replaced as a whole.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use crate::schedule::{Record, Scheduler, Stages};

/// Choice of destinations.
#[derive(Debug)]
pub struct Policy {
    /// Chooses among candidates.
    pub scheduler: Scheduler,
    /// Plugins around that choice.
    pub stages: Arc<Stages>,
    /// Age from which metrics count as missing.
    pub max_age: Duration,
    /// Part of a decision that is kept.
    pub record: Record,
}

/// The policy in effect. A reader loads it once for a decision and keeps to it; whoever loads it later
/// may get the next one. Clones share it.
#[derive(Clone, Debug)]
pub struct ActivePolicy(Arc<ArcSwap<Policy>>);

impl ActivePolicy {
    /// The first policy.
    pub(super) fn new(policy: Policy) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(policy)))
    }

    /// The policy, for a decision that does not wait.
    pub fn load(&self) -> Guard<Arc<Policy>> {
        self.0.load()
    }

    /// The policy, for a decision that waits.
    pub(super) fn load_full(&self) -> Arc<Policy> {
        self.0.load_full()
    }

    pub(super) fn replace(&self, policy: Policy) {
        self.0.store(Arc::new(policy));
    }
}
