//! ClusterTopologies: what they come to.

use serde_json::{Value, json};

use super::lines::Lines;
use crate::capacity::resource::topology_file::ClusterTopology;

/// A topology, for machines.
pub(super) fn json(topology: &ClusterTopology) -> Value {
    json!({"name": topology.name, "layers": topology.layers})
}

/// A topology as text for a terminal of so many columns: its name, then its layers.
pub(super) fn describe(topology: &ClusterTopology, width: Option<usize>) -> String {
    let ClusterTopology { name, layers } = topology;
    let many = if layers.len() == 1 { "layer" } else { "layers" };
    let mut lines = Lines::new(format!("{name} is valid: a topology of {} {many}", layers.len()), width);
    lines.add("layers", &format!("{}; from the smallest domains to the largest", layers.join(", ")));
    lines.into_text()
}
