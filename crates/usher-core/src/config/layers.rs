//! Location by labels of nodes: for routing, and for where pods go.

/// Labels that say where a pod or a node is, from the narrowest place to the widest. Nodes of most clouds
/// have all of them but the rack's.
pub const PLACE_LABELS: [&str; 4] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];
