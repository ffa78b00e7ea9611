//! `latency-slo-admitter`: requests that may be shed and would miss their latency targets
//! everywhere are refused.

use std::sync::Arc;

use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Candidates, Endpoint, Gauge};
use usher_plugin::data::{LatencyPrediction, LatencyPredictions};
use usher_plugin::params::{LATENCY_PRODUCER, or_default};
use usher_plugin::{
    Admitter, Build, BuildContext, Context, Denied, Key, Kind, PluginParts, PluginType, beta,
};

/// `latency-slo-admitter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("latency-slo-admitter", &[Kind::Admitter],
    "Refuses requests of a priority below 0 with a latency target that no endpoint is predicted to keep, unless one of them is idle.",
    Build::Reading(build)).takes::<LatencySloAdmitterParams>()
    .when("Requests that may be shed and are worth nothing when they are late.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = LatencySloAdmitterParams::decode(cx.parameters)?;
    let plugin = Arc::new(LatencySloAdmitter::new(cx.reads(&params.latency_prediction_info_producer_name)));
    Ok(PluginParts { admitter: Some(plugin), ..PluginParts::with(&params)? })
}

/// KV cache usage below which an endpoint has just begun, so that predictions for it say
/// little.
const COLD: f64 = 0.02;

/// Parameters of `latency-slo-admitter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LatencySloAdmitterParams {
    /// The producer of the predictions.
    pub latency_prediction_info_producer_name: String,
}

impl Default for LatencySloAdmitterParams {
    fn default() -> Self {
        Self { latency_prediction_info_producer_name: LATENCY_PRODUCER.to_owned() }
    }
}

impl LatencySloAdmitterParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        or_default(&mut params.latency_prediction_info_producer_name, LATENCY_PRODUCER);
        Ok(params)
    }
}

/// Refuses requests of a priority below 0 with a latency target that no candidate is
/// predicted to keep, unless one of them is idle or its KV cache all but empty. An endpoint
/// that doesn't say what it does counts as idle: nothing is refused for want of numbers.
#[derive(Clone, Debug)]
pub struct LatencySloAdmitter {
    predictions: Key<LatencyPredictions>,
}

impl LatencySloAdmitter {
    /// An admitter by the predictions under this key.
    pub fn new(predictions: Key<LatencyPredictions>) -> Self {
        Self { predictions }
    }
}

impl Admitter for LatencySloAdmitter {
    fn admit(&self, cx: &Context<'_>, candidates: &Candidates, _rng: &mut dyn Rng) -> Result<(), Denied> {
        if cx.request.priority >= 0 {
            return Ok(());
        }
        let slo = cx.request.slo();
        let Some(known) = cx.facts.get(self.predictions).filter(|_| !slo.is_empty()) else { return Ok(()) };
        // A target that isn't named can't be missed.
        let is_valid = |predicted: &LatencyPrediction| {
            (slo.ttft.is_none() || predicted.is_ttft_valid) && (slo.tpot.is_none() || predicted.is_tpot_valid)
        };
        let below = |gauge: &Gauge, limit: f64| {
            let fresh = gauge.fresh(cx.now_ms, cx.max_age).filter(|value| value.is_finite());
            fresh.is_none_or(|value| value < limit)
        };
        let has_room = |endpoint: &Endpoint| {
            let load = endpoint.load();
            below(&load.running, 1.0) || below(&load.kv_usage, COLD)
        };
        let view = candidates.view();
        let positions = || candidates.indices().iter();
        let is_predicted = positions().any(|position| known.at(*position).is_some());
        let may_pass = view
            .iter()
            .zip(positions())
            .any(|(endpoint, position)| known.at(*position).is_some_and(is_valid) || has_room(endpoint));
        if may_pass || !is_predicted {
            return Ok(());
        }
        Err(Denied(
            "no endpoint is predicted to keep the latency targets of a request that may be shed".into(),
        ))
    }
}
