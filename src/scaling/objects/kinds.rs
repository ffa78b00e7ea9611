//! CapacityPolicy and ClusterTopology as read from the API server.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::capacity::resource::status::PolicyStatus;
use crate::capacity::resource::topology::{TopologyObjectSpec, TopologyStatus};
use crate::cluster::{Metadata, Watched};

/// A CapacityPolicy. Its specification is parsed later, so that an invalid one doesn't fail the list.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PolicyObject {
    /// Name and identity of the object.
    #[serde(deserialize_with = "slim")]
    pub metadata: Metadata,
    /// Specification, unparsed.
    pub spec: Value,
    /// Last written status.
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
    /// Specification.
    #[serde(deserialize_with = "lenient")]
    pub spec: TopologyObjectSpec,
    /// Last written status.
    #[serde(deserialize_with = "lenient")]
    pub status: TopologyStatus,
}

/// Labels of a node.
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

/// Deserializes a value; invalid ones are treated as absent.
fn lenient<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + serde::de::DeserializeOwned,
    D: Deserializer<'de>,
{
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// Drops fields that may be large and are not needed: there are thousands of nodes, and `kubectl apply` may
/// have copied whole objects into an annotation.
fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
    let metadata = Metadata::deserialize(deserializer)?;
    Ok(Metadata { annotations: BTreeMap::new(), owner_references: Vec::new(), ..metadata })
}
