//! A role of the group, and between how many pods it has.

use std::collections::BTreeMap;

use super::spec::TargetRef;

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

/// A range of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The fewest.
    pub min: u32,
    /// The most, at least `min`.
    pub max: u32,
}
