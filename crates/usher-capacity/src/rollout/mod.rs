//! Rollout: in which order pods come up, and go.
//!
//! Roles that serve together come up together: in steps, each of which keeps the ratio between them, and
//! the next one begins when the pods of the one before serve. One machine per group does this for the first
//! deploy, for every later change of size, and for updates, one at a time. It does no I/O: what it decides
//! is how many pods of each role may exist ([`RolePlan::admitted`](super::plan::RolePlan)), where the pods
//! of a step go, and from which ordinal on pods are updated.
//!
//! ```text
//! goals ─▶ update? ─▶ steps | skew ─▶ place ─▶ clock ─▶ admitted, layer, partition, state
//! ```
//!
//! The model is that of KEP-75 of RoleBasedGroup (sgl-project/rbg). With pods that wait at a scheduling gate,
//! those that are past it count as admitted; without, all that exist.

mod batch;
mod clock;
pub mod deadlock;
mod machine;
mod memory;
mod place;
mod role_counts;
mod skew;
mod update;

use std::time::Duration;

pub(super) use clock::Clock;
pub(super) use machine::roll;
pub use memory::Memory;
pub use place::{Domain, Layers, Placement, Shortfall};
pub use role_counts::RoleCounts;

/// Longest time that a step may go without a pod coming up (loading a model takes 2 to 7
/// minutes).
pub const BATCH_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// For how long of a step the cluster may add nodes without that counting.
pub const PROVISIONING_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// After so many trims without growth a group keeps what it has.
pub const MOST_TRIMS: u32 = 3;

/// Order in which the pods of a group come up, go, and are updated.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// Size of a step; `None`: all at once.
    pub pace: Option<Pace>,
    /// Condition under which a pod counts as up.
    pub success: Success,
    /// Longest time that a step may go without a pod coming up.
    pub batch_timeout: Duration,
    /// For how long of a step the cluster may add nodes without that counting.
    pub provisioning_timeout: Duration,
    /// Action on a step that takes longer.
    pub on_timeout: OnTimeout,
    /// Topology that the pods of a step are placed by.
    pub topology: Option<Topology>,
    /// Rules for updates of pods; `None`: updates are not managed.
    pub update: Option<Update>,
}

impl Rollout {
    /// Returns `true` if a role, by its place, keeps step with others.
    pub fn is_coordinated(&self, role: usize) -> bool {
        match &self.pace {
            None => false,
            Some(Pace::Steps(steps)) => steps.get(role).is_some_and(|step| *step > 0),
            Some(Pace::Skew(_)) => true,
        }
    }
}

/// Size of a group's steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Pods per step of each role, in the order of the roles; 0: the role isn't held to steps.
    Steps(Vec<u32>),
    /// Largest difference in progress between two roles, in percent.
    Skew(u32),
}

/// Condition under which a pod counts as up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Success {
    /// Bound to a node.
    Scheduled,
    /// Its containers run.
    Running,
    /// Ready by its condition.
    #[default]
    Ready,
    /// In the pool, with fresh metrics.
    Serving,
}

/// Action on a step that takes too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// The step stays as it is, and continues when pods come up.
    #[default]
    Hold,
    /// Pods beyond whole usable groups are deleted, and created again later.
    Trim,
    /// The step is given up until other sizes are asked for.
    Fail,
}

/// Topology that the pods of a step are placed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Keys of node labels, from the smallest domains to the largest.
    pub layers: Vec<String>,
    /// The layer in a domain of which a step should fit, by its place.
    pub layer: usize,
    /// `true` if a step has to fit into the layer.
    pub is_required: bool,
}

/// Rules for updates of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// By how many percent one role may be further along than another.
    pub max_skew: u32,
    /// Percentage of a role that may be unavailable, rounded down, at least one pod.
    pub max_unavailable: u32,
}
