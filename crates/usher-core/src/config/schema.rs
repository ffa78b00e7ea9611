//! EndpointPickerConfig, key by key.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

use super::decode::Positioned;
use super::node::Node;
use super::units;

/// A name with its place.
pub type Name = Positioned<String>;

/// The file as it is written; [`EndpointPickerConfig`](super::EndpointPickerConfig)
/// is what it means.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct File {
    pub(super) api_version: Option<Name>,
    pub(super) kind: Option<Name>,
    pub(super) feature_gates: Vec<Name>,
    pub(super) plugins: Vec<Positioned<FilePlugin>>,
    pub(super) scheduling_profiles: Vec<Positioned<FileProfile>>,
    pub(super) data_layer: DataLayer,
    pub(super) flow_control: Option<Positioned<FlowControl>>,
    pub(super) request_handler: RequestHandler,
    pub(super) saturation_detector: Option<Reference>,
    pub(super) parser: Option<Reference>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FilePlugin {
    pub(super) name: Option<Name>,
    #[serde(rename = "type")]
    pub(super) plugin_type: Option<Name>,
    pub(super) parameters: Option<Node>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FileProfile {
    pub(super) name: Option<Name>,
    pub(super) plugins: Vec<Positioned<FileProfilePlugin>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct FileProfilePlugin {
    pub(super) plugin_ref: Option<Name>,
    pub(super) weight: Option<Positioned<f64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RequestHandler {
    pub(super) parsers: Vec<Reference>,
}

/// Names a plugin of the `plugins` list.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// The plugin's name.
    pub plugin_ref: Name,
}

/// Sources of endpoints and their numbers.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataLayer {
    /// Add the model servers' metrics as a source if none is configured. Default true.
    pub inject_defaults: bool,
    /// Sources that are polled, each with the plugins that read it.
    pub sources: Vec<Source>,
    /// The plugin that finds endpoints; without it they come from elsewhere.
    pub discovery: Option<Reference>,
    /// The plugin that finds other replicas.
    pub peer_discovery: Option<Reference>,
    /// The plugin that publishes to other replicas what this one has in flight.
    pub cross_replica_syncer_plugin_ref: Option<Name>,
    /// Interval between two exchanges.
    #[serde(deserialize_with = "duration")]
    pub cross_replica_sync_interval: Option<Duration>,
    /// Longest time to publish.
    #[serde(deserialize_with = "duration")]
    pub cross_replica_publish_timeout: Option<Duration>,
    /// Settings of state sharing between replicas, as newer versions of llm-d-router group them.
    pub cross_replica: Option<CrossReplica>,
}

impl Default for DataLayer {
    fn default() -> Self {
        Self {
            inject_defaults: true,
            sources: Vec::new(),
            discovery: None,
            peer_discovery: None,
            cross_replica_syncer_plugin_ref: None,
            cross_replica_sync_interval: None,
            cross_replica_publish_timeout: None,
            cross_replica: None,
        }
    }
}

/// Exchange of what replicas know.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrossReplica {
    /// The plugin that publishes to other replicas what this one has in flight.
    pub syncer_plugin_ref: Option<Name>,
    /// Interval between two exchanges.
    #[serde(deserialize_with = "duration")]
    pub sync_interval: Option<Duration>,
    /// Longest time to publish.
    #[serde(deserialize_with = "duration")]
    pub publish_timeout: Option<Duration>,
}

/// One source of numbers about endpoints.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The plugin that polls.
    pub plugin_ref: Name,
    /// The plugins that read what it got.
    #[serde(default)]
    pub extractors: Vec<Reference>,
}

/// Limits and policies for requests that wait while the pool is busy. Apart from the
/// saturation detector it counts only with the feature gate `flowControl`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowControl {
    /// Bytes of all waiting requests; 0 or absent: no limit.
    pub max_bytes: Option<Quantity>,
    /// Number of waiting requests; 0 or absent: no limit.
    pub max_requests: Option<Quantity>,
    /// Longest time that a request may wait. Default 60 s; 0: for ever.
    #[serde(rename = "defaultRequestTTL", deserialize_with = "duration")]
    pub default_request_ttl: Option<Duration>,
    /// Longest time that a request may wait while the pool is empty. Default: as `defaultRequestTTL`; 0: for
    /// ever.
    #[serde(rename = "noEndpointRequestTTL", deserialize_with = "duration")]
    pub no_endpoint_request_ttl: Option<Duration>,
    /// Settings of priorities that are not listed.
    pub default_priority_band: Option<PriorityBand>,
    /// Settings of negative priorities that are not listed. Default: as `defaultPriorityBand`.
    pub default_negative_priority_band: Option<PriorityBand>,
    /// Settings by priority.
    pub priority_bands: Vec<Positioned<PriorityBand>>,
    /// The plugin that says how much of the pool each priority may fill.
    pub usage_limit_policy_plugin_ref: Option<Name>,
    /// Saturation detector of the pool.
    pub saturation_detector: Option<Reference>,
    /// `true` if running requests of low priority are given up for others. Default false.
    pub enable_eviction: bool,
}

/// The queue of one priority.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PriorityBand {
    /// The priority; higher goes first.
    pub priority: i32,
    /// Bytes of its waiting requests; 0 or absent: 1 GB.
    pub max_bytes: Option<Quantity>,
    /// Number of its waiting requests; 0 or absent: 5000.
    pub max_requests: Option<Quantity>,
    /// The plugin that chooses among its flows.
    pub fairness_policy_ref: Option<Name>,
    /// The plugin that orders a flow.
    pub ordering_policy_ref: Option<Name>,
}

/// A number as Kubernetes writes it: `500`, `10Mi`, `1G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Quantity(pub u64);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Notation;
        impl Visitor<'_> for Notation {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 500, 10Mi or 1G")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
                units::parse_quantity(text).map(Quantity).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Notation)
    }
}

/// Reads a duration such as `50ms`; for `#[serde(deserialize_with)]`.
///
/// # Errors
/// An error if the text is no duration, or a negative one.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    units::parse_duration(&text).map(Some).map_err(D::Error::custom)
}
