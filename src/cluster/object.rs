//! Metadata that all objects have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Metadata that the API server keeps of every object, as far as it is read here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Unique among the objects of its kind in its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Another object of the same name has another one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Goes up when its specification changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Time of its creation: RFC 3339 in UTC, whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// Time of the deletion request; the object is removed when its finalizers are done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Resource version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Objects that it belongs to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
}

/// An object that another belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// `true` if it made the object, and would replace it.
    pub controller: bool,
}
