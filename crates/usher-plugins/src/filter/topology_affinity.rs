//! `topology-affinity-filter`: keeps the endpoints that are near enough to the one that
//! another profile picked.

use std::sync::Arc;

use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Nearness, Snapshot};
use usher_plugin::params::or_default;
use usher_plugin::{Build, BuildContext, Context, DataType, Filter, Kind, PluginParts, PluginType, beta};

use super::retain_or_all;

/// `topology-affinity-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("topology-affinity-filter", &[Kind::Filter],
    "Keeps the endpoints that are near enough to the one that another profile picked; all of them if there is no such endpoint, or none is near it.",
    Build::Reading(build)).takes::<TopologyAffinityFilterParams>().alpha()
    .when("Disaggregated pools: prefill and decode in one rack or zone.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = TopologyAffinityFilterParams::decode(cx.parameters)?;
    cx.reads_live(DataType::Topology, &params.topology_producer_name);
    let filter = Arc::new(TopologyAffinityFilter::new(params.min_affinity));
    Ok(PluginParts { filter: Some(filter), ..PluginParts::with(&params)? })
}

/// Parameters of `topology-affinity-filter`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyAffinityFilterParams {
    /// host, rack, zone or region: the widest place that has to be the same.
    pub min_affinity: MinAffinity,
    /// The plugin that says where endpoints are.
    pub topology_producer_name: String,
}

const PRODUCER: &str = "topology-extractor";

impl Default for TopologyAffinityFilterParams {
    fn default() -> Self {
        Self { min_affinity: MinAffinity::Host, topology_producer_name: PRODUCER.to_owned() }
    }
}

/// The widest place that a candidate has to share with the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MinAffinity {
    /// The host.
    #[default]
    Host,
    /// The rack, or the host.
    Rack,
    /// The zone, or less.
    Zone,
    /// The region, or less.
    Region,
}

impl From<MinAffinity> for Nearness {
    fn from(least: MinAffinity) -> Self {
        match least {
            MinAffinity::Host => Self::Host,
            MinAffinity::Rack => Self::Rack,
            MinAffinity::Zone => Self::Zone,
            MinAffinity::Region => Self::Region,
        }
    }
}

impl TopologyAffinityFilterParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types and places that there aren't.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        or_default(&mut params.topology_producer_name, PRODUCER);
        Ok(params)
    }
}

/// Keeps the candidates that share this place or a narrower one with the peer; all of them
/// without a peer, or without an endpoint near it.
#[derive(Clone, Copy, Debug)]
pub struct TopologyAffinityFilter {
    least: Nearness,
}

impl TopologyAffinityFilter {
    /// A filter by the widest place that has to be shared.
    pub fn new(least: MinAffinity) -> Self {
        Self { least: least.into() }
    }
}

impl Filter for TopologyAffinityFilter {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let Some(peer) = cx.peer else { return };
        retain_or_all(snapshot, kept, |endpoint| endpoint.topology().nearness(peer.topology()) >= self.least);
    }
}
