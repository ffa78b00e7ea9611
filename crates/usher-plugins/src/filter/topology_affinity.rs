//! `topology-affinity-filter`: keeps the endpoints that are near enough to the one that
//! another profile picked.

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Nearness, Snapshot};
use usher_plugin::{Build, Built, Context, DataType, Filter, Kind, PluginType, Site, beta, parameter};

use super::retain_or_all;

/// `topology-affinity-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("topology-affinity-filter", &[Kind::Filter],
    "Keeps the endpoints that are near enough to the one that another profile picked; all of them when there is no such one, or nobody is near it.",
    &[
        parameter("minAffinity", "host", "", "host, rack, zone or region: the widest place that has to be the same."),
        parameter("topologyProducerName", "topology-extractor", "", "The plugin that says where endpoints are."),
    ],
    Build::Reading(build)).alpha()
    .when("Disaggregated pools: prefill and decode in one rack or zone.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TopologyAffinityFilterParams::decode(site.parameters)?;
    site.reads_live(DataType::Topology, &params.topology_producer_name);
    let filter = Arc::new(TopologyAffinityFilter::new(params.min_affinity));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}

/// Parameters of `topology-affinity-filter`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopologyAffinityFilterParams {
    /// The widest place that has to be shared. Default: the host.
    pub min_affinity: MinAffinity,
    /// The plugin that says where endpoints are. Default `topology-extractor`.
    pub topology_producer_name: String,
}

/// The widest place that a candidate has to share with the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Unknown keys, wrong types and places that there aren't, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            min_affinity: MinAffinity,
            topology_producer_name: Option<String>,
        }
        let written: Written = node.decode()?;
        let name = written.topology_producer_name.filter(|name| !name.is_empty());
        Ok(Self {
            min_affinity: written.min_affinity,
            topology_producer_name: name.unwrap_or_else(|| "topology-extractor".to_owned()),
        })
    }
}

/// Keeps the candidates that share this place or a narrower one with the peer; all of them
/// when there is no peer, or nobody near it.
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
