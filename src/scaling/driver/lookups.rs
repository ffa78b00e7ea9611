//! Topologies and owners of targets to look up for policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use crate::capacity::policy::TargetRef;

/// Topologies and owners of targets to look up for policies.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    /// Names of topologies.
    pub(super) topologies: Arc<watch::Sender<BTreeSet<String>>>,
    /// Targets of policies without `poolRef`.
    pub(super) owners: watch::Sender<Vec<TargetRef>>,
}
