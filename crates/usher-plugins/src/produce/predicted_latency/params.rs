//! Parameters of `predicted-latency-producer`.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::{PREFIX_PRODUCER, in_range, or_default};

/// Parameters of `predicted-latency-producer`. Those that are ignored mean nothing to a model in
/// this process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PredictedLatencyParams {
    /// Part of a target for the time per output token that counts, above 0.
    pub slo_buffer_factor: f64,
    /// Accepted and ignored: what is known of a request goes with it.
    #[serde(rename = "contextTTL", deserialize_with = "any_text")]
    context_ttl: String,
    /// The time per output token counts. Without it only that to the first token does.
    pub streaming_mode: bool,
    /// Label of the endpoints' role: where that is prefill, the time per output token doesn't count.
    pub endpoint_role_label: String,
    /// Predict. With false it only learns, and scorers go by what they do without predictions.
    pub predict_in_produce: bool,
    /// Accepted and ignored.
    use_encoder_cache_features: bool,
    /// Accepted and ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_mean: Option<f64>,
    /// Accepted and ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_decode_token_samples_for_prediction: Option<i64>,
    /// The producer that knows what is cached.
    pub prefix_match_info_producer_name: String,
    /// Accepted and ignored: the model counts what is in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight_load_producer_name: Option<String>,
    /// Accepted and ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoder_cache_match_info_producer_name: Option<String>,
}

const CONTEXT_TTL: &str = "5m";

impl Default for PredictedLatencyParams {
    fn default() -> Self {
        Self {
            slo_buffer_factor: 1.0,
            context_ttl: CONTEXT_TTL.to_owned(),
            streaming_mode: false,
            endpoint_role_label: String::new(),
            predict_in_produce: true,
            use_encoder_cache_features: false,
            sampling_mean: None,
            max_decode_token_samples_for_prediction: None,
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
            in_flight_load_producer_name: None,
            encoder_cache_match_info_producer_name: None,
        }
    }
}

impl PredictedLatencyParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and a factor that isn't above 0.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        in_range(node, "sloBufferFactor", params.slo_buffer_factor, 1.0, |factor| factor > 0.0)?;
        or_default(&mut params.context_ttl, CONTEXT_TTL);
        or_default(&mut params.prefix_match_info_producer_name, PREFIX_PRODUCER);
        Ok(params)
    }
}

/// Takes anything; what is no text is left empty.
fn any_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Node::deserialize(deserializer).map(|node| node.text().unwrap_or_default().to_owned())
}
