//! CapacityPolicy and ClusterTopology as the API server keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::capacity::resource::status::PolicyStatus;
use crate::capacity::resource::topology::{TopologyObjectSpec, TopologyStatus};
use crate::cluster::Watched;

/// A CapacityPolicy. Its specification is read later: one that can't be must not keep others from being
/// seen.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PolicyObject {
    /// Which one it is.
    pub metadata: Meta,
    /// What it says.
    pub spec: Value,
    /// What was said of it before.
    #[serde(deserialize_with = "lenient")]
    pub status: PolicyStatus,
}

/// A ClusterTopology.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TopologyObject {
    /// Which one it is.
    pub metadata: Meta,
    /// What it says.
    #[serde(deserialize_with = "lenient")]
    pub spec: TopologyObjectSpec,
    /// What was said of it before.
    #[serde(deserialize_with = "lenient")]
    pub status: TopologyStatus,
}

/// A node, as far as its place is concerned.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) metadata: Meta,
}

/// What of an object's metadata counts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Its name.
    pub name: String,
    /// Another object of the same name has another one.
    pub uid: String,
    /// Goes up when its specification changes.
    pub generation: Option<i64>,
    /// When it was created: RFC 3339 in UTC, whole seconds.
    pub creation_timestamp: String,
    /// When somebody asked to delete it.
    pub deletion_timestamp: Option<String>,
    /// Its version.
    pub resource_version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl Watched for PolicyObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Watched for TopologyObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Watched for Node {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// What can't be read is as good as absent.
fn lenient<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + serde::de::DeserializeOwned,
    D: Deserializer<'de>,
{
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}
