//! What is to be found out for policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use crate::capacity::policy::TargetRef;

/// What is to be found out for policies.
#[derive(Debug, Default)]
pub(super) struct Wants {
    /// Names of topologies.
    pub(super) topologies: Arc<watch::Sender<BTreeSet<String>>>,
    /// Targets of policies that name no pool.
    pub(super) owners: watch::Sender<Vec<TargetRef>>,
}
