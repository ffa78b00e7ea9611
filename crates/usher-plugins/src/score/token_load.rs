//! `token-load-scorer`: the fewer tokens an endpoint has to compute, this request's
//! included, the better.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{InFlightId, View};
use usher_plugin::data::UncachedTokens;
use usher_plugin::params::{INFLIGHT_PRODUCER, or_default};
use usher_plugin::{Build, BuildContext, Context, Key, Kind, PluginParts, PluginType, Scorer, beta};

/// `token-load-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("token-load-scorer", &[Kind::Scorer],
    "The fewer tokens are under way at an endpoint, this request's included, the better.",
    Build::Reading(build)).takes::<TokenLoadParams>()
    .when("Prompts of very different lengths: tokens say what requests cost.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = TokenLoadParams::decode(cx.parameters)?;
    let counters = cx.reads_in_flight(&params.in_flight_load_producer_name);
    let uncached = cx.reads(&params.in_flight_load_producer_name);
    let scorer = Arc::new(TokenLoadScorer::new(&params, counters, uncached));
    Ok(PluginParts { scorer: Some(scorer), ..PluginParts::with(&params)? })
}

/// Parameters of `token-load-scorer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenLoadParams {
    /// Tokens at which an endpoint scores 0. Below 1 means the default.
    #[schemars(extend("x-unit" = "tokens"))]
    pub queue_threshold_tokens: i64,
    /// The producer that counts.
    pub in_flight_load_producer_name: String,
}

impl Default for TokenLoadParams {
    fn default() -> Self {
        Self { queue_threshold_tokens: 4 << 20, in_flight_load_producer_name: INFLIGHT_PRODUCER.to_owned() }
    }
}

impl TokenLoadParams {
    /// Reads the parameters. As in llm-d-router, a threshold below 1 means the default.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        if params.queue_threshold_tokens <= 0 {
            params.queue_threshold_tokens = Self::default().queue_threshold_tokens;
        }
        or_default(&mut params.in_flight_load_producer_name, INFLIGHT_PRODUCER);
        Ok(params)
    }
}

/// Scores 1 − min(tokens, threshold) / threshold, where `tokens` are those under way at
/// the endpoint and those that it would have to compute for this request.
#[derive(Clone, Copy, Debug)]
pub struct TokenLoadScorer {
    threshold: u64,
    counters: InFlightId,
    uncached: Key<UncachedTokens>,
}

impl TokenLoadScorer {
    /// A scorer by these counters and by what their producer says of a request.
    pub fn new(params: &TokenLoadParams, counters: InFlightId, uncached: Key<UncachedTokens>) -> Self {
        let threshold = u64::try_from(params.queue_threshold_tokens).unwrap_or(1).max(1);
        Self { threshold, counters, uncached }
    }
}

impl Scorer for TokenLoadScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let uncached = cx.facts.get(self.uncached);
        for ((score, endpoint), position) in out.iter_mut().zip(candidates.iter()).zip(candidates.indices()) {
            let added = uncached.map_or(0, |uncached| uncached.at(*position));
            let tokens = endpoint.load().in_flight_of(self.counters).tokens().saturating_add(added);
            *score = (1.0 - tokens.min(self.threshold) as f64 / self.threshold as f64) as f32;
        }
    }
}
