//! Conditions of Kubernetes objects.

use serde::Deserialize;

/// Condition of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ObjectCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: String,
}
