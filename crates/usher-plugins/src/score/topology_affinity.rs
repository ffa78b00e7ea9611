//! `topology-affinity-scorer`: the nearer to the endpoint that another profile picked,
//! the better.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Nearness, View};
use usher_plugin::params::or_default;
use usher_plugin::{Build, BuildContext, Context, DataType, Kind, PluginParts, PluginType, Scorer, beta};

/// `topology-affinity-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("topology-affinity-scorer", &[Kind::Scorer],
    "The nearer an endpoint is to the one that another profile picked, the better: the same host scores 1, rack 0.2, zone 0.05, region 0.02.",
    Build::Reading(build)).takes::<TopologyAffinityScorerParams>().alpha()
    .when("Disaggregated pools: near is better, but not required.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = TopologyAffinityScorerParams::decode(cx.parameters)?;
    cx.reads_live(DataType::Topology, &params.topology_producer_name);
    Ok(PluginParts { scorer: Some(Arc::new(TopologyAffinityScorer)), ..PluginParts::with(&params)? })
}

/// Parameters of `topology-affinity-scorer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyAffinityScorerParams {
    /// The plugin that says where endpoints are.
    pub topology_producer_name: String,
}

const PRODUCER: &str = "topology-extractor";

impl Default for TopologyAffinityScorerParams {
    fn default() -> Self {
        Self { topology_producer_name: PRODUCER.to_owned() }
    }
}

impl TopologyAffinityScorerParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        or_default(&mut params.topology_producer_name, PRODUCER);
        Ok(params)
    }
}

/// Scores by the narrowest place that a candidate shares with the peer: host 1, rack 0.20,
/// zone 0.05, region 0.02, none 0. Without a peer all score 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopologyAffinityScorer;

impl Scorer for TopologyAffinityScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let Some(peer) = cx.peer.filter(|peer| !peer.topology().is_unknown()) else { return };
        for (score, endpoint) in out.iter_mut().zip(candidates.iter()) {
            *score = match endpoint.topology().nearness(peer.topology()) {
                Nearness::Host => 1.0,
                Nearness::Rack => 0.20,
                Nearness::Zone => 0.05,
                Nearness::Region => 0.02,
                Nearness::Apart => 0.0,
            };
        }
    }
}
