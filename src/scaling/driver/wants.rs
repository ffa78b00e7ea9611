//! Topologies and owners of targets that are to be looked up for policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use crate::capacity::policy::TargetRef;

/// Topologies and owners of targets that are to be looked up for policies.
#[derive(Debug, Default)]
pub(super) struct Wants {
    /// Names of topologies.
    pub(super) topologies: Arc<watch::Sender<BTreeSet<String>>>,
    /// Targets of policies that name no pool.
    pub(super) owners: watch::Sender<Vec<TargetRef>>,
}
