//! A role of the group, and its range of pods.

use std::collections::BTreeMap;

use super::spec::{TargetRef, group};

/// A role of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// Name of the role.
    pub name: String,
    /// Range of pods.
    pub range: Range,
    /// Relative cost of a pod.
    pub cost: f64,
    /// Labels of its pods.
    pub selector: BTreeMap<String, String>,
    /// Workload with the replicas.
    pub target: Option<TargetRef>,
}

impl Role {
    /// Returns `true` if another version of the role selects the same pods.
    pub fn has_pods_of(&self, other: &Self) -> bool {
        self.selector == other.selector && self.target == other.target
    }

    /// Label selector of its pods.
    pub fn label_selector(&self) -> String {
        label_selector(&self.selector)
    }

    /// Target as `kubectl` names it: `Deployment.apps/decode`.
    pub fn target_name(&self) -> Option<String> {
        let TargetRef { api_version, kind, name, .. } = self.target.as_ref()?;
        let group = group(api_version);
        Some(if group.is_empty() { format!("{kind}/{name}") } else { format!("{kind}.{group}/{name}") })
    }
}

/// Label selector of these labels, for the API server.
pub fn label_selector(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// A range of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Minimum.
    pub min: u32,
    /// Maximum, at least `min`.
    pub max: u32,
}
