//! Rollout settings of a policy's specification.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::span::Span;
use usher_core::config::layers::PLACE_LABELS;

/// Longest timeout of a step.
pub const LONGEST_STEP: Duration = Duration::from_secs(24 * 60 * 60);

/// Steps in which pods come up, and their placement.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploySpec {
    /// Pods of each role that come up together, at least 1. A role that isn't named goes its own way.
    pub steps: BTreeMap<String, i64>,
    /// When a pod counts as up; `Ready` when absent.
    pub success: Option<SuccessSpec>,
    /// Time that a step may go without a pod coming up; 10 minutes when absent.
    pub batch_timeout: Option<Span>,
    /// For how long of a step the cluster may add nodes without that counting; 15 minutes when absent.
    pub provisioning_timeout: Option<Span>,
    /// Action on a step that takes longer.
    pub on_timeout: TimeoutSpec,
    /// Topology that the pods of a step are placed by; absent: the scheduler places them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologySpec>,
}

/// When a pod counts as up.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum SuccessSpec {
    /// Bound to a node.
    Scheduled,
    /// Its containers run.
    Running,
    /// Ready by its condition.
    Ready,
    /// In the pool, with fresh metrics.
    Serving,
}

/// Action on a step that takes too long.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum TimeoutSpec {
    /// The step stays as it is.
    #[default]
    Hold,
    /// Pods beyond whole usable groups are deleted, and created again later.
    Trim,
    /// The step is given up until other sizes are asked for.
    Fail,
}

/// Topology that the pods of a step are placed by.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologySpec {
    /// Keys of node labels, from the smallest domains to the largest; [`PLACE_LABELS`], those of routing, when absent.
    pub layers: Vec<String>,
    /// The ClusterTopology that has the layers, in place of `layers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_topology: Option<String>,
    /// The layer in one domain of which a step should fit; the first when absent.
    pub layer: Option<String>,
    /// Strength of that constraint on the layer.
    pub constraint: ConstraintSpec,
}

impl TopologySpec {
    /// Its layers, or those of routing.
    pub(super) fn layers(&self) -> Vec<String> {
        if self.layers.is_empty() { PLACE_LABELS.map(str::to_owned).to_vec() } else { self.layers.clone() }
    }
}

/// Strictness of a topology: whether a step has to fit into one domain.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum ConstraintSpec {
    /// Wider layers are tried where none of the layer's domains has room.
    #[default]
    Preferred,
    /// The step waits until one has.
    Required,
}

/// Limit of the distance between roles while the group's size changes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingSpec {
    /// By how many percent of its goal one role may be further along than another, 0 to 100; 0: a pod at a
    /// time.
    pub max_skew_percent: Option<i64>,
    /// When the next pods may come; `OrderReady` when absent.
    pub progression: Progression,
}

/// When the next pods may come.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum Progression {
    /// When those before have nodes.
    OrderScheduled,
    /// When those before are ready.
    #[default]
    OrderReady,
}

/// Limit of the distance between roles while pods are updated.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateSpec {
    /// Percentage points by which one role may be further along than another, 0 to 100; 10 when absent.
    pub max_skew_percent: Option<i64>,
    /// Percentage of a role's pods that may be unavailable, 0 to 100, at least one pod; 5 when absent.
    pub max_unavailable_percent: Option<i64>,
}
