//! Selectors of labels, as the API server takes them.

use std::collections::BTreeMap;

use crate::capacity::policy::label_selector;

/// Label selector, for the API server, of the pods of a role that are of a pool.
pub(super) fn both(role: &BTreeMap<String, String>, pool: &str) -> String {
    let role = label_selector(role);
    if pool.is_empty() { role } else { format!("{role},{pool}") }
}
