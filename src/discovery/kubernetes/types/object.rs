//! Fields that all objects have.

use serde::{Deserialize, Serialize};

use super::POOL_GROUP;
use crate::cluster::{Metadata, Watched};

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
    /// Name and what the API server keeps of every object.
    #[serde(default)]
    pub metadata: Metadata,
    /// Specification of the object.
    pub spec: S,
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
