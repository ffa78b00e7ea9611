//! The configuration in effect, as text and JSON.

use serde::Serialize;
use serde_json::Value;
use usher_plugin::{DataGraph, Kind, Stability};

use super::instances::Instance;
use crate::config::{FeatureGates, Position};
use crate::schedule::DataType;
use crate::schedule::flow_control::BandRules;

/// A configuration with its defaults filled in.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// Optional features.
    pub feature_gates: FeatureGates,
    /// The profiles in their order.
    pub profiles: Vec<ResolvedProfile>,
    /// The plugin that chooses among them.
    pub profile_handler: Use,
    /// The parsers in the order in which they are asked.
    pub parsers: Vec<Use>,
    /// The plugin that finds endpoints; `None`: the configuration doesn't say where
    /// they come from.
    pub discovery: Option<Use>,
    /// The plugin that shares state with other replicas; `None`: the configuration names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syncer: Option<Use>,
    /// Data sources, in the order of the configuration.
    pub sources: Vec<ResolvedSource>,
    /// Saturation detector of the pool.
    pub saturation_detector: Use,
    /// Flow control; `None`: requests don't wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_control: Option<ResolvedFlow>,
    /// Plugins around a decision.
    pub stages: ResolvedStages,
    /// Every plugin, the declared ones first.
    pub plugins: Vec<ResolvedPlugin>,
}

/// The use of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Use {
    /// Name of the plugin.
    pub plugin: String,
    /// The configuration doesn't ask for it here.
    pub defaulted: bool,
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedProfile {
    /// Name of the profile.
    pub name: String,
    /// The configuration has no profile of its own.
    pub defaulted: bool,
    /// Names of the filters, in order.
    pub filters: Vec<String>,
    /// The scorers, in order.
    pub scorers: Vec<ResolvedScorer>,
    /// The picker.
    pub picker: Use,
}

/// A scorer of a profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedScorer {
    /// Name of the plugin.
    pub plugin: String,
    /// Factor of its scores.
    pub weight: f64,
    /// The configuration doesn't say the weight.
    pub defaulted: bool,
}

/// The plugins around a decision: names, in the order in which they run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedStages {
    /// Read the request's headers first.
    pub header_processors: Vec<String>,
    /// Hold requests until they have seen those that come with them.
    pub gatherers: Vec<String>,
    /// Narrow the candidates before anything is learned about them.
    pub screeners: Vec<String>,
    /// Learn about the request and its candidates.
    pub producers: Vec<String>,
    /// Refuse requests.
    pub admitters: Vec<String>,
    /// Act on the decision.
    pub pre_request: Vec<String>,
}

/// Flow control as it counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedFlow {
    /// Most requests that wait; `None`: no limit.
    pub max_requests: Option<u64>,
    /// Most bytes of bodies that wait; `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Longest time that a request waits for room; `None`: for ever.
    #[serde(rename = "defaultRequestTTL")]
    pub default_request_ttl: Option<String>,
    /// Longest time that it waits for an endpoint; `None`: for ever.
    #[serde(rename = "noEndpointRequestTTL")]
    pub no_endpoint_request_ttl: Option<String>,
    /// The bands, the highest priority first, then those of other priorities.
    pub bands: Vec<ResolvedBand>,
    /// The plugin that says how much of the pool each priority may fill.
    pub usage_limit_policy: Use,
    /// `true` if running requests are given up for others.
    pub enable_eviction: bool,
}

/// The rules of a priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedBand {
    /// The priority, or which other priorities.
    pub priority: String,
    /// Most requests that wait.
    pub max_requests: u64,
    /// Most bytes of bodies that wait.
    pub max_bytes: u64,
    /// The plugin that chooses among its flows.
    pub fairness_policy: Use,
    /// The plugin that orders a flow.
    pub ordering_policy: Use,
}

impl ResolvedBand {
    pub(super) fn of(priority: String, rules: &BandRules, (fairness, ordering): &(Use, Use)) -> Self {
        Self {
            priority,
            max_requests: rules.max_requests,
            max_bytes: rules.max_bytes,
            fairness_policy: fairness.clone(),
            ordering_policy: ordering.clone(),
        }
    }
}

/// A source of numbers about endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedSource {
    /// The plugin that polls.
    pub source: Use,
    /// Names of the plugins that read what it got.
    pub extractors: Vec<String>,
}

/// A plugin.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedPlugin {
    /// Name in the configuration.
    pub name: String,
    /// Type of the plugin.
    #[serde(rename = "type")]
    pub plugin_type: &'static str,
    /// Kinds of plugin as which it can be used.
    pub kinds: &'static [Kind],
    /// Stability of the type.
    pub stability: Stability,
    /// Type to use instead, if this one is deprecated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<&'static str>,
    /// Origin of the plugin.
    pub origin: Origin,
    /// Description with its parameters, in a sentence or two.
    pub summary: String,
    /// Parameters as they count.
    pub parameters: Value,
    /// Names of the parameters that the configuration doesn't set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub defaulted_parameters: Vec<String>,
    /// Data that it reads, and the plugin that produces it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<ResolvedData>,
    /// Data that it produces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub produces: Vec<DataType>,
}

/// Data that a plugin reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedData {
    /// The kind of data.
    pub data: DataType,
    /// Name of the plugin that produces it.
    pub producer: String,
}

/// Origin of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// The configuration declares it.
    Declared(Position),
    /// The defaults added it.
    Defaulted,
}

impl ResolvedPlugin {
    pub(super) fn of(instance: &Instance, graph: &DataGraph) -> Self {
        let reads = graph.read_by(&instance.name);
        Self {
            name: instance.name.clone(),
            plugin_type: instance.plugin_type.name,
            kinds: instance.plugin_type.kinds,
            stability: instance.plugin_type.stability,
            deprecated: instance.plugin_type.deprecated,
            origin: instance.at.map_or(Origin::Defaulted, Origin::Declared),
            summary: {
                let own = instance.parts.summary.as_deref();
                own.unwrap_or(instance.plugin_type.summary).to_owned()
            },
            parameters: instance.parts.parameters.clone(),
            defaulted_parameters: defaulted(instance),
            reads: reads.map(|(data, from)| ResolvedData { data, producer: from.to_owned() }).collect(),
            produces: graph.produced_by(&instance.name).collect(),
        }
    }
}

fn defaulted(instance: &Instance) -> Vec<String> {
    let Value::Object(parameters) = &instance.parts.parameters else { return Vec::new() };
    parameters.keys().filter(|key| !instance.written.contains(key)).cloned().collect()
}

impl Use {
    pub(super) fn of(plugin: &str, defaulted: bool) -> Self {
        Self { plugin: plugin.to_owned(), defaulted }
    }
}
