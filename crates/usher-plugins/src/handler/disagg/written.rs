//! Parameters of `disagg-profile-handler` as they are written, in either form.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_plugin::params::anything;

use super::joint::Links;
use crate::latency::PEAK_PREFILL_THROUGHPUT;

/// The profiles of the stages, each by its name. No two are the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StageProfiles {
    /// Profile that picks the decode endpoint.
    pub decode: String,
    /// Profile that picks the prefill endpoint.
    pub prefill: String,
    /// Profile that picks the encode endpoints.
    ///
    /// For images, videos and clips.
    pub encode: String,
}

impl Default for StageProfiles {
    fn default() -> Self {
        let [decode, prefill, encode] = ["decode", "prefill", "encode"].map(str::to_owned);
        Self { decode, prefill, encode }
    }
}

/// The label that DisaggregatedSet gives the pods of all roles that were made from one
/// version of their templates.
const REVISION_LABEL: &str = "disaggregatedset.x-k8s.io/revision";

/// The parameters as they are written, in either form. Names are read again with their places.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Written {
    /// decode-first, or prefill-first: then prefill always runs. The second of them sees what the first
    /// one picked.
    pub stage_order: String,
    profiles: StageProfiles,
    deciders: Deciders,
    /// independent: each profile picks alone. joint: prefill and decode are chosen together, by the
    /// delay of the request and of others; a decoding endpoint that would do it all competes with every
    /// pair, unless the decider says yes to all. What follows goes with joint; all of it is Usher's
    /// own.
    pub pairing: String,
    /// Number of best endpoints of each profile that are considered, 1 to 8; ties go to the lowest
    /// cost.
    #[schemars(extend("x-unit" = "endpoints"))]
    pub pair_candidates: u64,
    /// KV cache per token of the prompt. Tokens that the decoding endpoint has are not moved.
    #[schemars(extend("x-unit" = "bytes"))]
    pub kv_bytes_per_token: f64,
    /// Prompt tokens that an endpoint computes per second, until its first tokens say so.
    #[schemars(extend("x-unit" = "tokens/s"))]
    pub peak_prefill_throughput: f64,
    #[serde(deserialize_with = "anything")]
    links: Links,
    /// Decoding endpoints with more of their KV cache in use, or on its way there, are out, unless all
    /// are.
    pub kv_cache_limit: f64,
    /// Preferred: places count as much as they cost. Required: pairs outside of constraintLayer are
    /// forbidden.
    #[schemars(extend("default" = "Preferred"))]
    pub constraint_mode: Option<String>,
    /// host, rack, zone or region, with constraintMode Required.
    pub constraint_layer: Option<String>,
    /// Pods whose values of this label differ are never paired; pods without it fit all. Empty: all
    /// fit.
    pub revision_label: String,
    /// Deprecated, profiles.decode in the flat form of older versions; not together with profiles or
    /// deciders.
    decode_profile: String,
    /// Deprecated, profiles.prefill in the flat form.
    prefill_profile: String,
    /// Deprecated, profiles.encode in the flat form.
    encode_profile: String,
    /// Deprecated, deciders.prefill in the flat form.
    prefill_decider_plugin_name: String,
    /// Deprecated, the older name of prefillDeciderPluginName.
    decider_plugin_name: String,
    /// Deprecated, deciders.encode in the flat form.
    encode_decider_plugin_name: String,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Deciders {
    /// The plugin that says whether another endpoint computes the prompt. Without it none does, unless
    /// prefill comes first; with pairing joint, one does where that costs less.
    prefill: String,
    /// The plugin that says whether other endpoints encode. Without it none does.
    encode: String,
}

impl Default for Written {
    fn default() -> Self {
        Self {
            stage_order: "decode-first".to_owned(),
            profiles: StageProfiles::default(),
            deciders: Deciders::default(),
            pairing: "independent".to_owned(),
            pair_candidates: 4,
            kv_bytes_per_token: 262_144.0,
            peak_prefill_throughput: PEAK_PREFILL_THROUGHPUT,
            links: Links::default(),
            kv_cache_limit: 0.95,
            constraint_mode: None,
            constraint_layer: None,
            revision_label: REVISION_LABEL.to_owned(),
            decode_profile: String::new(),
            prefill_profile: String::new(),
            encode_profile: String::new(),
            prefill_decider_plugin_name: String::new(),
            decider_plugin_name: String::new(),
            encode_decider_plugin_name: String::new(),
        }
    }
}
