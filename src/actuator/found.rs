//! Pods of a policy's roles, as they were found last.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::pods::PodObject;
use crate::capacity::PodState;
use crate::capacity::policy::Role;
use crate::capacity::rollout::Placement;

/// Pods of each role, shared with the mirrors that they are of.
pub(super) type Objects = Arc<Vec<Vec<Arc<PodObject>>>>;

/// Pods of a policy's roles, as they were found last.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) roles: Vec<Role>,
    /// Changes of their mirrors by then.
    pub(super) changes: Vec<u64>,
    pub(super) objects: Objects,
    /// Roles with pods that wait at their gate, by place.
    pub(super) has_gated: Vec<bool>,
    /// Names of pods that no node takes.
    pub(super) unschedulable: BTreeSet<String>,
    /// Their states; `None` where those depend on more than the pods.
    pub(super) pods: Option<Arc<Vec<ObservedPod>>>,
}

/// A pod, whether it serves or not.
#[derive(Clone, Debug)]
pub struct ObservedPod {
    /// Its role, by place.
    pub role: usize,
    /// Its name.
    pub name: String,
    /// `true` if it says that it is ready.
    pub is_ready: bool,
    /// Progress on its way up.
    pub state: PodState,
}

/// Pods of a role whose domain takes none any more.
#[derive(Debug, Default)]
pub(super) struct Displaced {
    /// Domains that take no more pods.
    pub(super) closed: BTreeSet<Placement>,
    /// Pods that wait for a node there.
    pub(super) stranded: Vec<Arc<PodObject>>,
    /// Number that need another domain, with those that are missing and those that run there yet. 0: none
    /// waits or is missing.
    pub(super) pods: u32,
}
