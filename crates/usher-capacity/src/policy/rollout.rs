//! Rollout settings of a policy's specification.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::span::GoDuration;
use usher_core::config::layers::PLACE_LABELS;

/// Longest timeout of a step.
pub const LONGEST_STEP: Duration = Duration::from_secs(24 * 60 * 60);

/// Rollout steps, and their placement.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploySpec {
    /// Pods of each role per step, at least 1. Omitted roles are not coordinated.
    pub steps: BTreeMap<String, i64>,
    /// Condition under which a pod counts as up; `Ready` when absent.
    pub success: Option<SuccessSpec>,
    /// Timeout of a step without progress; 10 minutes when absent.
    pub batch_timeout: Option<GoDuration>,
    /// Time of a step in which the cluster may add nodes without counting; 15 minutes when absent.
    pub provisioning_timeout: Option<GoDuration>,
    /// Action on a step that times out.
    pub on_timeout: TimeoutSpec,
    /// Topology for the placement of steps; absent: the scheduler places pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologySpec>,
}

/// Condition under which a pod counts as up.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum SuccessSpec {
    /// Bound to a node.
    Scheduled,
    /// All containers run.
    Running,
    /// Ready by its condition.
    Ready,
    /// In the pool, with fresh metrics.
    Serving,
}

/// Action on a step that times out.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum TimeoutSpec {
    /// The step stays as it is.
    #[default]
    Hold,
    /// Pods beyond complete groups are deleted, and created again later.
    Trim,
    /// The step is abandoned until other sizes are asked for.
    Fail,
}

/// Topology for the placement of steps.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologySpec {
    /// Keys of node labels, from the smallest domains to the largest; [`PLACE_LABELS`], as for routing, when
    /// absent.
    pub layers: Vec<String>,
    /// ClusterTopology with the layers, in place of `layers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_topology: Option<String>,
    /// Layer whose domains should hold a step; the first when absent.
    pub layer: Option<String>,
    /// Strictness of the layer.
    pub constraint: ConstraintSpec,
}

impl TopologySpec {
    /// Layers, or those of routing.
    pub(super) fn layers(&self) -> Vec<String> {
        if self.layers.is_empty() { PLACE_LABELS.map(str::to_owned).to_vec() } else { self.layers.clone() }
    }
}

/// Strictness of a topology.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum ConstraintSpec {
    /// Wider layers are tried if no domain of the layer has room.
    #[default]
    Preferred,
    /// The step waits until a domain has room.
    Required,
}

/// Largest difference in progress between roles while the group's size changes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingSpec {
    /// Largest lead of a role over another, in percent of its goal, 0 to 100; 0: one pod at a time.
    pub max_skew_percent: Option<i64>,
    /// Condition for the next pods; `OrderReady` when absent.
    pub progression: Progression,
}

/// Condition for the next pods.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum Progression {
    /// Previous pods have nodes.
    OrderScheduled,
    /// Previous pods are ready.
    #[default]
    OrderReady,
}

/// Largest difference in progress between roles during rolling updates.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateSpec {
    /// Largest lead of a role over another, in percentage points, 0 to 100; 10 when absent.
    pub max_skew_percent: Option<i64>,
    /// Largest unavailable percentage of a role's pods, 0 to 100, at least one pod; 5 when absent.
    pub max_unavailable_percent: Option<i64>,
}
