//! Parameters of `predicted-latency-producer`.

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node, Positioned};
use usher_plugin::params::{PREFIX_PRODUCER, checked, named};

/// Parameters of `predicted-latency-producer`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PredictedLatencyParams {
    /// Part of a target for the time per output token that may be used, above 0. Default 1.
    pub slo_buffer_factor: f64,
    /// Answers are streams: the time per output token counts. Default false.
    pub streaming_mode: bool,
    /// Label of an endpoint's role: where it is `prefill`, the time per output token doesn't
    /// count. Default none.
    pub endpoint_role_label: String,
    /// Predict. Without it the model only learns. Default true.
    pub predict_in_produce: bool,
    /// The producer that knows what is cached. Default `approx-prefix-cache-producer`.
    pub prefix_match_info_producer_name: String,
    #[serde(flatten)]
    ignored: Ignored,
}

/// Parameters that are accepted and mean nothing to a model in this process.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ignored {
    #[serde(rename = "contextTTL")]
    context_ttl: String,
    use_encoder_cache_features: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_decode_token_samples_for_prediction: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight_load_producer_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoder_cache_match_info_producer_name: Option<String>,
}

impl PredictedLatencyParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types, and a factor that isn't above 0, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            slo_buffer_factor: Option<Positioned<f64>>,
            #[serde(rename = "contextTTL")]
            context_ttl: Option<Node>,
            streaming_mode: bool,
            endpoint_role_label: String,
            predict_in_produce: Option<bool>,
            use_encoder_cache_features: bool,
            sampling_mean: Option<f64>,
            max_decode_token_samples_for_prediction: Option<i64>,
            prefix_match_info_producer_name: Option<String>,
            in_flight_load_producer_name: Option<String>,
            encoder_cache_match_info_producer_name: Option<String>,
        }
        let written: Written = node.decode()?;
        let factor = checked("sloBufferFactor", written.slo_buffer_factor, 1.0, |value| value > 0.0)?;
        let ttl = written.context_ttl.as_ref().and_then(|node| node.text()).filter(|text| !text.is_empty());
        Ok(Self {
            slo_buffer_factor: factor,
            streaming_mode: written.streaming_mode,
            endpoint_role_label: written.endpoint_role_label,
            predict_in_produce: written.predict_in_produce.unwrap_or(true),
            prefix_match_info_producer_name: named(written.prefix_match_info_producer_name, PREFIX_PRODUCER),
            ignored: Ignored {
                context_ttl: ttl.unwrap_or("5m").to_owned(),
                use_encoder_cache_features: written.use_encoder_cache_features,
                sampling_mean: written.sampling_mean,
                max_decode_token_samples_for_prediction: written.max_decode_token_samples_for_prediction,
                in_flight_load_producer_name: written.in_flight_load_producer_name,
                encoder_cache_match_info_producer_name: written.encoder_cache_match_info_producer_name,
            },
        })
    }
}
