//! Label selectors of the API server.

use std::collections::BTreeMap;

use crate::capacity::policy::label_selector;

/// Label selector of a role's pods within a pool.
pub(super) fn both(role: &BTreeMap<String, String>, pool: &str) -> String {
    let role = label_selector(role);
    if pool.is_empty() { role } else { format!("{role},{pool}") }
}
