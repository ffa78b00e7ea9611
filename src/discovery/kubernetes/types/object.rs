//! What all objects have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::POOL_GROUP;
use crate::cluster::Watched;

/// An object with a specification of its own. Its status is neither read nor written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object<S> {
    /// Group and version. Objects in a list have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The kind. Objects in a list have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its name and what the API server keeps of every object.
    #[serde(default)]
    pub metadata: Metadata,
    /// What it says.
    pub spec: S,
}

/// What the API server keeps of every object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Unique among the objects of its kind in its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// When it was created: RFC 3339 in UTC, whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// When somebody asked to delete it; it is gone when its finalizers are done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Its version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

/// The pool that an object is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReference {
    /// API group of the pool. Default: that of InferencePool.
    #[serde(default = "pool_group")]
    pub group: String,
    /// Kind of the pool. Default: InferencePool.
    #[serde(default = "pool_kind")]
    pub kind: String,
    /// Name of the pool, in the namespace of the object.
    pub name: String,
}

fn pool_group() -> String {
    POOL_GROUP.to_owned()
}

fn pool_kind() -> String {
    "InferencePool".to_owned()
}

impl<S> Watched for Object<S>
where
    S: Clone + Send + serde::de::DeserializeOwned + 'static,
{
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}
