//! A role of the group, and between how many pods it has.

use std::collections::BTreeMap;

use super::spec::{TargetRef, group};

/// A role of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// Between how many pods it has.
    pub range: Range,
    /// Relative cost of one pod of this role.
    pub cost: f64,
    /// Labels that its pods have.
    pub selector: BTreeMap<String, String>,
    /// Workload that the replicas belong to.
    pub target: Option<TargetRef>,
}

impl Role {
    /// Returns `true` if its pods are those of another version of it.
    pub fn has_pods_of(&self, other: &Self) -> bool {
        self.selector == other.selector && self.target == other.target
    }

    /// Label selector of its pods.
    pub fn label_selector(&self) -> String {
        label_selector(&self.selector)
    }

    /// Its target, as `kubectl` names it: `Deployment.apps/decode`.
    pub fn target_name(&self) -> Option<String> {
        let TargetRef { api_version, kind, name, .. } = self.target.as_ref()?;
        let group = group(api_version);
        Some(if group.is_empty() { format!("{kind}/{name}") } else { format!("{kind}.{group}/{name}") })
    }
}

/// Label selector of these labels, as the API server takes it.
pub fn label_selector(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// A range of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The fewest.
    pub min: u32,
    /// The most, at least `min`.
    pub max: u32,
}
