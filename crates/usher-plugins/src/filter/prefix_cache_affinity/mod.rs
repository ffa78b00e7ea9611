//! `prefix-cache-affinity-filter`: requests stick to endpoints that have their prompt in
//! the prefix cache, until those are saturated.

mod metrics;

use std::sync::Arc;

use rand::{Rng, RngExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{InFlightId, Snapshot};
use usher_plugin::data::{LatencyPredictions, PrefixMatch};
use usher_plugin::params::{
    INFLIGHT_PRODUCER, LATENCY_PRODUCER, PREFIX_PRODUCER, any_word, in_range, or_default, word,
};
use usher_plugin::{Build, BuildContext, Context, Filter, Key, Kind, PluginParts, PluginType, beta};

use metrics::Outcome;
pub use metrics::{AffinityDecisions, AffinityFamilies};

/// `prefix-cache-affinity-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("prefix-cache-affinity-filter", &[Kind::Filter],
    "Keeps the endpoints that have the prompt in their prefix cache, as long as they are not much busier than the others; all of them when none has it.",
    Build::Reading(build)).takes::<PrefixCacheAffinityFilterParams>()
    .when("Before a scorer of load: requests stay where their prompt is cached until that endpoint is saturated. A prefix-cache-scorer beside it would hold on to it even then.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = PrefixCacheAffinityFilterParams::decode(cx.parameters)?;
    let prefix = cx.reads(&params.prefix_match_info_producer_name);
    let counters = match params.reads_in_flight() {
        true => Some(cx.reads_in_flight(&params.in_flight_load_producer_name)),
        false => None,
    };
    let predictions =
        params.reads_predictions().then(|| cx.reads(&params.latency_prediction_info_producer_name));
    let decisions = cx.family(AffinityFamilies::register)?.of(cx.name);
    let filter = PrefixCacheAffinityFilter::new(&params, prefix, counters, decisions);
    let filter = Arc::new(filter.predicted_by(predictions));
    Ok(PluginParts { filter: Some(filter), ..PluginParts::with(&params)?.with_summary(params.summary()) })
}

/// Parameters of `prefix-cache-affinity-filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrefixCacheAffinityFilterParams {
    /// Share of the prompt that an endpoint has to hold. 0 or less: keep every endpoint.
    pub affinity_threshold: f64,
    /// Share of the requests that may go anywhere, so that others learn their prompts, too.
    pub exploration_probability: f64,
    /// By how much later the first token may come where the prompt is cached. 0: as much as it takes.
    #[serde(rename = "maxTTFTPenaltyMs")]
    #[schemars(extend("x-unit" = "ms"))]
    pub max_ttft_penalty_ms: f64,
    /// Source of the time to the first token. prefillThroughput: tokens in flight by
    /// peakPrefillThroughput. latencyPredictor: as it is predicted.
    #[serde(deserialize_with = "any_word")]
    pub ttft_source: TtftSource,
    /// Prompt tokens that an endpoint computes per second at most. Measure it: it depends on model and
    /// hardware.
    ///
    /// Above 0. The default is what llm-d-router measured with Qwen3-32B on two H100.
    #[schemars(extend("x-unit" = "tokens/s"))]
    pub peak_prefill_throughput: f64,
    /// The producer that knows what is cached.
    pub prefix_match_info_producer_name: String,
    /// The producer that counts tokens in flight.
    pub in_flight_load_producer_name: String,
    /// The producer of the predictions, with latencyPredictor.
    pub latency_prediction_info_producer_name: String,
}

/// Source of the time to the first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum TtftSource {
    /// The tokens in flight at an endpoint by what it computes per second.
    #[default]
    PrefillThroughput,
    /// The producer of predicted latencies.
    LatencyPredictor,
}

impl Default for PrefixCacheAffinityFilterParams {
    fn default() -> Self {
        Self {
            affinity_threshold: 0.8,
            exploration_probability: 0.0,
            max_ttft_penalty_ms: 18_000.0,
            ttft_source: TtftSource::PrefillThroughput,
            peak_prefill_throughput: 15_928.0,
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
            in_flight_load_producer_name: INFLIGHT_PRODUCER.to_owned(),
            latency_prediction_info_producer_name: LATENCY_PRODUCER.to_owned(),
        }
    }
}

impl PrefixCacheAffinityFilterParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let share = 100.0 * self.affinity_threshold;
        if share <= 0.0 {
            return "Keeps every endpoint, as affinityThreshold is 0 or less.".to_owned();
        }
        let until = if self.max_ttft_penalty_ms > 0.0 {
            let seconds = self.max_ttft_penalty_ms / 1000.0;
            format!(", until the first token would come {seconds} s later there than elsewhere")
        } else {
            ", however busy they are".to_owned()
        };
        format!(
            "Keeps endpoints with {share} % of the prompt or more in their prefix cache{until}; all where none has it."
        )
    }
}

impl PrefixCacheAffinityFilterParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and sources, wrong types, and numbers out of
    /// range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, _) = (node.decode()?, Self::default());
        let (exploration, throughput) = (params.exploration_probability, params.peak_prefill_throughput);
        in_range(
            node,
            "affinityThreshold",
            params.affinity_threshold,
            default.affinity_threshold,
            |share| share <= 1.0,
        )?;
        in_range(node, "explorationProbability", exploration, default.exploration_probability, |share| {
            (0.0..=1.0).contains(&share)
        })?;
        in_range(node, "maxTTFTPenaltyMs", params.max_ttft_penalty_ms, default.max_ttft_penalty_ms, |_| {
            true
        })?;
        params.ttft_source = word(node, "ttftSource")?;
        in_range(node, "peakPrefillThroughput", throughput, default.peak_prefill_throughput, |throughput| {
            throughput > 0.0
        })?;
        or_default(&mut params.prefix_match_info_producer_name, PREFIX_PRODUCER);
        or_default(&mut params.in_flight_load_producer_name, INFLIGHT_PRODUCER);
        or_default(&mut params.latency_prediction_info_producer_name, LATENCY_PRODUCER);
        Ok(params)
    }

    /// Returns `true` if what is in flight makes a difference.
    pub fn reads_in_flight(&self) -> bool {
        self.compares() && self.ttft_source == TtftSource::PrefillThroughput
    }

    /// Returns `true` if predicted latencies make a difference.
    pub fn reads_predictions(&self) -> bool {
        self.compares() && self.ttft_source == TtftSource::LatencyPredictor
    }

    fn compares(&self) -> bool {
        self.affinity_threshold > 0.0 && self.max_ttft_penalty_ms > 0.0
    }
}

/// Delay of a first token that is worth a cached prompt.
#[derive(Clone, Copy, Debug)]
enum Gap {
    /// Unbounded.
    Any,
    /// Tokens in flight.
    Tokens(f64, InFlightId),
    /// Predicted seconds.
    Seconds(f64, Key<LatencyPredictions>),
}

impl Gap {
    /// The largest difference, and what an endpoint has of it.
    fn measure<'a>(
        self,
        cx: &'a Context<'_>,
        snapshot: &'a Snapshot,
    ) -> Option<(f64, impl Fn(u32) -> f64 + 'a)> {
        let most = match self {
            Self::Any => return None,
            Self::Tokens(most, _) | Self::Seconds(most, _) => most,
        };
        let at = move |position: u32| match self {
            Self::Any => 0.0,
            Self::Tokens(_, counters) => snapshot
                .endpoints()
                .get(position as usize)
                .map_or(f64::INFINITY, |endpoint| endpoint.load().in_flight_of(counters).tokens() as f64),
            Self::Seconds(_, predictions) => {
                let known = cx.facts.get(predictions).and_then(|known| known.at(position));
                // As late as can be where nothing is predicted; a difference stays a number.
                known.map_or(f64::MAX, |predicted| predicted.ttft)
            }
        };
        Some((most, at))
    }
}

/// Keeps the endpoints that hold enough of the prompt. Keeps all of them where none does,
/// where the best of those that do is too far behind the best of the others, or where
/// chance wants a request to explore.
#[derive(Debug)]
pub struct PrefixCacheAffinityFilter {
    threshold: f64,
    exploration: f64,
    /// By how much the best endpoint that holds the prompt may be behind the best other one.
    gap: Gap,
    /// The longest delay, in seconds.
    penalty: f64,
    prefix: Key<PrefixMatch>,
    decisions: AffinityDecisions,
}

impl PrefixCacheAffinityFilter {
    /// A filter by the match under `prefix` and, where that makes a difference, the tokens
    /// in `counters`.
    pub fn new(
        params: &PrefixCacheAffinityFilterParams,
        prefix: Key<PrefixMatch>,
        counters: Option<InFlightId>,
        decisions: AffinityDecisions,
    ) -> Self {
        let tokens = params.max_ttft_penalty_ms / 1000.0 * params.peak_prefill_throughput;
        let counters = counters.filter(|_| params.reads_in_flight());
        Self {
            threshold: params.affinity_threshold,
            exploration: params.exploration_probability,
            gap: counters.map_or(Gap::Any, |counters| Gap::Tokens(tokens, counters)),
            penalty: params.max_ttft_penalty_ms / 1000.0,
            prefix,
            decisions,
        }
    }

    /// Goes by the predictions under this key, if there is one.
    #[must_use]
    pub fn predicted_by(self, predictions: Option<Key<LatencyPredictions>>) -> Self {
        let gap = predictions.map_or(self.gap, |predictions| Gap::Seconds(self.penalty, predictions));
        Self { gap, ..self }
    }

    fn outcome(
        &self,
        cx: &Context<'_>,
        snapshot: &Snapshot,
        kept: &mut Vec<u32>,
        rng: &mut dyn Rng,
    ) -> Outcome {
        if kept.len() <= 1 || self.threshold <= 0.0 {
            return Outcome::NotApplicable;
        }
        if self.exploration > 0.0 && rng.random::<f64>() < self.exploration {
            return Outcome::Exploration;
        }
        let Some(known) = cx.facts.get(self.prefix).filter(|known| known.total > 0) else {
            return Outcome::NoMatch;
        };
        let total = f64::from(known.total);
        let sticks = |position: u32| f64::from(known.blocks_at(position)) / total >= self.threshold;
        let sticky = kept.iter().filter(|position| sticks(**position)).count();
        if sticky == 0 {
            return Outcome::NoMatch;
        }
        if sticky < kept.len()
            && let Some((most, at)) = self.gap.measure(cx, snapshot)
        {
            let (mut held, mut other) = (f64::INFINITY, f64::INFINITY);
            for position in kept.iter() {
                let least = if sticks(*position) { &mut held } else { &mut other };
                *least = least.min(at(*position));
            }
            if held - other > most {
                return Outcome::LoadOverride;
            }
        }
        kept.retain(|position| sticks(*position));
        Outcome::Sticky
    }
}

impl Filter for PrefixCacheAffinityFilter {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, rng: &mut dyn Rng) {
        let outcome = self.outcome(cx, snapshot, kept, rng);
        self.decisions.count(outcome);
    }
}
