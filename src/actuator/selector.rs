//! Selectors of labels, as the API server takes them.

use std::collections::BTreeMap;

/// The labels of a role, as the API server takes them.
pub(super) fn selector(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Label selector, for the API server, of the pods of a role that are of a pool.
pub(super) fn both(role: &BTreeMap<String, String>, pool: &str) -> String {
    let role = selector(role);
    if pool.is_empty() { role } else { format!("{role},{pool}") }
}
