//! Rollout: the order in which pods start and stop.
//!
//! Roles that serve together start together: in steps that keep their ratio, each of which begins when the
//! pods of the previous one serve. One state machine per group handles the first rollout, later changes of
//! size, and updates, one at a time. It does no I/O, and decides how many pods of each role may exist
//! ([`RolePlan::admitted`](super::plan::RolePlan)), the domain of a step, and the first updated ordinal.
//!
//! ```text
//! goals ─▶ update? ─▶ steps | skew ─▶ place ─▶ clock ─▶ admitted, layer, partition, state
//! ```
//!
//! The model is that of KEP-75 of RoleBasedGroup (sgl-project/rbg). With scheduling gates, pods past them
//! count as admitted; without, all existing ones.

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

/// Default timeout of a step without progress (loading a model takes 2 to 7 minutes).
pub const BATCH_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Default time of a step in which the cluster may add nodes without counting.
pub const PROVISIONING_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Trims without growth after which a group keeps its pods.
pub const MOST_TRIMS: u32 = 3;

/// Order in which the pods of a group start, stop and are updated.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// Size of a step; `None`: all at once.
    pub pace: Option<Pace>,
    /// Condition under which a pod counts as up.
    pub success: Success,
    /// Timeout of a step without progress.
    pub batch_timeout: Duration,
    /// Time of a step in which the cluster may add nodes without counting.
    pub provisioning_timeout: Duration,
    /// Action on a step that times out.
    pub on_timeout: OnTimeout,
    /// Topology for the placement of steps.
    pub topology: Option<Topology>,
    /// Rules for rolling updates; `None`: not managed.
    pub update: Option<Update>,
}

impl Rollout {
    /// Returns `true` if a role, by index, is coordinated with others.
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
    /// Pods per step of each role; 0: the role has no steps.
    Steps(Vec<u32>),
    /// Largest difference in progress between two roles, in percent.
    Skew(u32),
}

/// Condition under which a pod counts as up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Success {
    /// Bound to a node.
    Scheduled,
    /// Running containers.
    Running,
    /// Ready by its condition.
    #[default]
    Ready,
    /// In the pool, with fresh metrics.
    Serving,
}

/// Action on a step that times out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// The step stays, and continues when pods come up.
    #[default]
    Hold,
    /// Pods beyond complete groups are deleted, and created again later.
    Trim,
    /// The step is abandoned until other sizes are asked for.
    Fail,
}

/// Topology for the placement of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Keys of node labels, from the smallest domains to the largest.
    pub layers: Vec<String>,
    /// Layer whose domains should hold a step, by index.
    pub layer: usize,
    /// `true` if a step has to fit into one domain of the layer.
    pub is_required: bool,
}

/// Rules for rolling updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// Largest difference in progress between two roles, in percent.
    pub max_skew: u32,
    /// Largest unavailable percentage of a role, rounded down, at least one pod.
    pub max_unavailable: u32,
}
