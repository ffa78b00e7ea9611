//! Parameters of `latency-scorer`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::{LATENCY_PRODUCER, PREFIX_PRODUCER, any_word, in_range, or_default, word};

/// Parameters of `latency-scorer`. Weights are relative to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LatencyScorerParams {
    /// Weight of the headroom of the time to the first token.
    pub ttft_weight: f64,
    /// Weight of the headroom of the time per output token.
    pub tpot_weight: f64,
    /// least or most: which of the endpoints that keep the targets score most. With least, others stay
    /// free for tighter targets.
    #[serde(rename = "headroomSelectionStrategy", deserialize_with = "any_word")]
    pub strategy: Strategy,
    /// Without predictions: weight of what is free of the KV cache.
    #[serde(rename = "compositeKVWeight")]
    pub composite_kv_weight: f64,
    /// Without predictions: weight of a short queue.
    pub composite_queue_weight: f64,
    /// Without predictions: weight of what is cached of the prompt.
    pub composite_prefix_weight: f64,
    /// The producer of the predictions.
    pub latency_prediction_info_producer_name: String,
    /// The producer that knows what is cached.
    pub prefix_match_info_producer_name: String,
}

/// Order of the endpoints that keep the targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Endpoints with the least headroom, so that others stay free.
    #[default]
    Least,
    /// Endpoints with the most.
    Most,
}

impl Default for LatencyScorerParams {
    fn default() -> Self {
        Self {
            ttft_weight: 0.8,
            tpot_weight: 0.2,
            strategy: Strategy::Least,
            composite_kv_weight: 1.0,
            composite_queue_weight: 1.0,
            composite_prefix_weight: 1.0,
            latency_prediction_info_producer_name: LATENCY_PRODUCER.to_owned(),
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
        }
    }
}

impl LatencyScorerParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and strategies, wrong types, and weights that are
    /// no number.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, _) = (node.decode()?, Self::default());
        let weight = |key: &str, value, default| in_range(node, key, value, default, |_| true);
        weight("ttftWeight", params.ttft_weight, default.ttft_weight)?;
        weight("tpotWeight", params.tpot_weight, default.tpot_weight)?;
        params.strategy = word(node, "headroomSelectionStrategy")?;
        weight("compositeKVWeight", params.composite_kv_weight, default.composite_kv_weight)?;
        weight("compositeQueueWeight", params.composite_queue_weight, default.composite_queue_weight)?;
        weight("compositePrefixWeight", params.composite_prefix_weight, default.composite_prefix_weight)?;
        or_default(&mut params.latency_prediction_info_producer_name, LATENCY_PRODUCER);
        or_default(&mut params.prefix_match_info_producer_name, PREFIX_PRODUCER);
        Ok(params)
    }
}
