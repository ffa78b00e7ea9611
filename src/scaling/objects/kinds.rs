//! CapacityPolicy and ClusterTopology as the API server keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::capacity::resource::status::PolicyStatus;
use crate::capacity::resource::topology::{TopologyObjectSpec, TopologyStatus};
use crate::cluster::{Metadata, Watched};

/// A CapacityPolicy. Its specification is read later: one that can't be must not keep others from being
/// seen.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PolicyObject {
    /// Name and identity of the object.
    #[serde(deserialize_with = "slim")]
    pub metadata: Metadata,
    /// Its specification.
    pub spec: Value,
    /// Its status as it was last written.
    #[serde(deserialize_with = "lenient")]
    pub status: PolicyStatus,
}

/// A ClusterTopology.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TopologyObject {
    /// Name and identity of the object.
    #[serde(deserialize_with = "slim")]
    pub metadata: Metadata,
    /// Its specification.
    #[serde(deserialize_with = "lenient")]
    pub spec: TopologyObjectSpec,
    /// Its status as it was last written.
    #[serde(deserialize_with = "lenient")]
    pub status: TopologyStatus,
}

/// A node, as far as its place is concerned.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    #[serde(deserialize_with = "slim")]
    pub(super) metadata: Metadata,
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

/// Reads a value; one that can't be read is as good as absent.
fn lenient<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + serde::de::DeserializeOwned,
    D: Deserializer<'de>,
{
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// Without what may be long and nobody here reads: there are thousands of nodes, and whatever applied an object
/// last may have written all of it into an annotation.
fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
    let metadata = Metadata::deserialize(deserializer)?;
    Ok(Metadata { annotations: BTreeMap::new(), owner_references: Vec::new(), ..metadata })
}
