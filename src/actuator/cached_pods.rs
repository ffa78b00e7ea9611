//! Cached pods of a policy's roles.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::pods::PodObject;
use crate::capacity::PodState;
use crate::capacity::policy::Role;
use crate::capacity::rollout::Placement;

/// Pods of each role, shared with their mirrors.
pub(super) type Objects = Arc<Vec<Vec<Arc<PodObject>>>>;

/// Pods of a policy's roles, cached while their mirrors are unchanged.
#[derive(Debug)]
pub(super) struct CachedPods {
    pub(super) roles: Vec<Role>,
    /// Change counts of the mirrors.
    pub(super) changes: Vec<u64>,
    pub(super) objects: Objects,
    /// Roles with pods at their gate, by index.
    pub(super) has_gated: Vec<bool>,
    /// Names of unschedulable pods.
    pub(super) unschedulable: BTreeSet<String>,
    /// States of the pods; `None` if they depend on more than the pods.
    pub(super) pods: Option<Arc<Vec<ObservedPod>>>,
}

/// Observed pod, in the pool or not.
#[derive(Clone, Debug)]
pub struct ObservedPod {
    /// Role, by index.
    pub role: usize,
    /// Name of the pod.
    pub name: String,
    /// `true` if its `Ready` condition is true.
    pub is_ready: bool,
    /// Startup progress.
    pub state: PodState,
}

/// Pods of a role that need another domain.
#[derive(Debug, Default)]
pub(super) struct Displaced {
    /// Closed domains.
    pub(super) closed: BTreeSet<Placement>,
    /// Pods that wait for a node there.
    pub(super) stranded: Vec<Arc<PodObject>>,
    /// Pods that need another domain: waiting, missing and still running ones. 0 if none waits or is missing.
    pub(super) pods: u32,
}
