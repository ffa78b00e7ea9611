//! `token-load-scorer`: the fewer tokens an endpoint has to compute, this request's
//! included, the better.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{InFlightId, View};
use usher_plugin::data::UncachedTokens;
use usher_plugin::{Build, Built, Context, Key, Kind, PluginType, Scorer, Site, beta, parameter};

/// `token-load-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("token-load-scorer", &[Kind::Scorer],
    "The fewer tokens are under way at an endpoint, this request's included, the better.",
    &[
        parameter("queueThresholdTokens", "4194304", "tokens", "Tokens at which an endpoint scores 0. Below 1 means the default."),
        parameter("inFlightLoadProducerName", "inflight-load-producer", "", "The producer that counts."),
    ],
    Build::Reading(build))
    .when("Prompts of very different lengths: tokens say what requests cost.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TokenLoadParams::decode(site.parameters)?;
    let counters = site.reads_in_flight(&params.in_flight_load_producer_name);
    let uncached = site.reads(&params.in_flight_load_producer_name);
    let scorer = Arc::new(TokenLoadScorer::new(&params, counters, uncached));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

/// Tokens at which an endpoint scores 0, unless the configuration says.
const DEFAULT_THRESHOLD: i64 = 4 << 20;

/// Parameters of `token-load-scorer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenLoadParams {
    /// Tokens at which an endpoint scores 0. Default 4,194,304.
    pub queue_threshold_tokens: i64,
    /// The producer that counts. Default `inflight-load-producer`.
    pub in_flight_load_producer_name: String,
}

impl TokenLoadParams {
    /// Reads the parameters. As with the peer, a threshold below 1 means the default.
    ///
    /// # Errors
    /// Unknown keys and wrong types, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            queue_threshold_tokens: i64,
            in_flight_load_producer_name: Option<String>,
        }
        let written: Written = node.decode()?;
        let threshold = written.queue_threshold_tokens;
        let name = written.in_flight_load_producer_name.filter(|name| !name.is_empty());
        Ok(Self {
            queue_threshold_tokens: if threshold > 0 { threshold } else { DEFAULT_THRESHOLD },
            in_flight_load_producer_name: name.unwrap_or_else(|| "inflight-load-producer".to_owned()),
        })
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
