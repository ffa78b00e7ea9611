//! Parameters of `latency-scorer`.

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_plugin::params::{LATENCY_PRODUCER, PREFIX_PRODUCER, checked, named};

/// Parameters of `latency-scorer`. Weights are relative to each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyScorerParams {
    /// Weight of the headroom of the time to the first token. Default 0.8.
    pub ttft_weight: f64,
    /// Weight of the headroom of the time per output token. Default 0.2.
    pub tpot_weight: f64,
    /// Which of the endpoints that keep the targets score most. Default `least`.
    #[serde(rename = "headroomSelectionStrategy")]
    pub strategy: Strategy,
    /// Weight of a KV cache that is empty, without predictions. Default 1.
    #[serde(rename = "compositeKVWeight")]
    pub composite_kv_weight: f64,
    /// Weight of a short queue, without predictions. Default 1.
    pub composite_queue_weight: f64,
    /// Weight of a cached prefix, without predictions. Default 1.
    pub composite_prefix_weight: f64,
    /// The producer of the predictions. Default `predicted-latency-producer`.
    pub latency_prediction_info_producer_name: String,
    /// The producer that knows what is cached. Default `approx-prefix-cache-producer`.
    pub prefix_match_info_producer_name: String,
}

/// Which of the endpoints that keep the targets score most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Those with the least headroom, so that others stay free.
    #[default]
    Least,
    /// Those with the most.
    Most,
}

impl LatencyScorerParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and strategies, wrong types, and weights that are no number, with their
    /// place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            ttft_weight: Option<Positioned<f64>>,
            tpot_weight: Option<Positioned<f64>>,
            headroom_selection_strategy: Option<Name>,
            #[serde(rename = "compositeKVWeight")]
            composite_kv_weight: Option<Positioned<f64>>,
            composite_queue_weight: Option<Positioned<f64>>,
            composite_prefix_weight: Option<Positioned<f64>>,
            latency_prediction_info_producer_name: Option<String>,
            prefix_match_info_producer_name: Option<String>,
        }
        let written: Written = node.decode()?;
        let weight = |name: &str, written, default| checked(name, written, default, |_| true);
        Ok(Self {
            ttft_weight: weight("ttftWeight", written.ttft_weight, 0.8)?,
            tpot_weight: weight("tpotWeight", written.tpot_weight, 0.2)?,
            strategy: strategy(written.headroom_selection_strategy.as_ref())?,
            composite_kv_weight: weight("compositeKVWeight", written.composite_kv_weight, 1.0)?,
            composite_queue_weight: weight("compositeQueueWeight", written.composite_queue_weight, 1.0)?,
            composite_prefix_weight: weight("compositePrefixWeight", written.composite_prefix_weight, 1.0)?,
            latency_prediction_info_producer_name: named(
                written.latency_prediction_info_producer_name,
                LATENCY_PRODUCER,
            ),
            prefix_match_info_producer_name: named(written.prefix_match_info_producer_name, PREFIX_PRODUCER),
        })
    }
}

fn strategy(written: Option<&Name>) -> Result<Strategy, ConfigError> {
    match written.map(|name| (name.value.as_str(), name.at)) {
        None | Some(("" | "least", _)) => Ok(Strategy::Least),
        Some(("most", _)) => Ok(Strategy::Most),
        Some((other, at)) => {
            Err(ConfigError::at(at, format!("headroomSelectionStrategy '{other}' is not known"))
                .hint("known here: least, most")
                .did_you_mean(other, ["least", "most"]))
        }
    }
}
