//! `expected-latency-scorer`: the less a request would wait at an endpoint and make others
//! wait, the better.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Node, Positioned};
use crate::endpoints::{Load, View};
use crate::schedule::data::{PrefixMatch, PromptTokens};
use crate::schedule::latency::{self, Ask, Model, Reported, Work};
use crate::schedule::{Context, Decision, Effects, Key, PreRequest, Scorer};

use super::readings;

/// Tokens per second that an endpoint is taken to compute before anything is known, as
/// the peer assumes them.
pub const PEAK_PREFILL_THROUGHPUT: f64 = 15_928.0;

/// Costs that differ by less than so many seconds are equal.
const EQUAL: f64 = 5e-4;

/// Parameters of `expected-latency-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedLatencyParams {
    /// Prompt tokens that an endpoint computes per second, until its first tokens say
    /// so. Default 15,928.
    pub peak_prefill_throughput: f64,
    /// The producer that knows what is cached. Default `approx-prefix-cache-producer`.
    pub prefix_match_info_producer_name: String,
}

impl ExpectedLatencyParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types, and a throughput that is no positive number, with
    /// their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            peak_prefill_throughput: Option<Positioned<f64>>,
            prefix_match_info_producer_name: Option<String>,
        }
        let written: Written = node.decode()?;
        let name = written.prefix_match_info_producer_name.filter(|name| !name.is_empty());
        Ok(Self {
            peak_prefill_throughput: throughput(written.peak_prefill_throughput)?,
            prefix_match_info_producer_name: name
                .unwrap_or_else(|| "approx-prefix-cache-producer".to_owned()),
        })
    }
}

/// A `peakPrefillThroughput` as it is written, or the default.
pub(in crate::schedule) fn throughput(written: Option<Positioned<f64>>) -> Result<f64, ConfigError> {
    match written {
        None => Ok(PEAK_PREFILL_THROUGHPUT),
        Some(Positioned { value, .. }) if value >= 1.0 && value.is_finite() => Ok(value),
        Some(Positioned { at, value }) => {
            let message = format!("peakPrefillThroughput can't be {value}");
            Err(ConfigError::at(at, message).hint("give tokens per second, at least 1"))
        }
    }
}

/// Scores the smallest cost over an endpoint's own, and learns from the responses. See
/// [`latency`](crate::schedule::latency) for the formula.
#[derive(Clone, Debug)]
pub struct ExpectedLatencyScorer {
    peak: f64,
    model: Arc<Model>,
    tokens: Key<PromptTokens>,
    prefix: Key<PrefixMatch>,
}

impl ExpectedLatencyScorer {
    /// A scorer that reads and teaches this model, which may have been another
    /// configuration's. Before anything is learned, endpoints compute `peak` tokens per
    /// second.
    pub fn new(peak: f64, model: Arc<Model>, tokens: Key<PromptTokens>, prefix: Key<PrefixMatch>) -> Self {
        Self { peak, model, tokens, prefix }
    }

    fn prompt(&self, cx: &Context<'_>) -> u64 {
        cx.facts.get(self.tokens).map_or(0, |tokens| tokens.count)
    }

    fn uncached(&self, cx: &Context<'_>, position: u32) -> u64 {
        let prompt = self.prompt(cx);
        cx.facts.get(self.prefix).map_or(prompt, |prefix| prefix.computed_at(position, prompt))
    }
}

/// An endpoint's numbers, with so many waiting.
fn reported(cx: &Context<'_>, load: &Load, waiting: f64) -> Reported {
    let kv_usage = load.kv_usage.fresh(cx.now_ms, cx.max_age).filter(|value| value.is_finite());
    Reported { waiting, running: latency::running(cx, load, waiting), kv_usage }
}

impl Scorer for ExpectedLatencyScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        readings(cx, candidates, out, |load| &load.waiting);
        // Not when it is made: its configuration may be refused yet.
        self.model.starts_at(self.peak);
        let table = self.model.read();
        let pool = table.pool(candidates.len());
        let prompt = self.prompt(cx) as f64;
        let output = table.output(cx.request.max_output_tokens);
        let mut smallest = f32::INFINITY;
        for ((cell, endpoint), &position) in out.iter_mut().zip(candidates.iter()).zip(candidates.indices()) {
            let reported = reported(cx, endpoint.load(), f64::from(*cell));
            let ask = Ask { uncached: self.uncached(cx, position) as f64, prompt, output };
            *cell = table.cost(endpoint, &ask, &pool, &reported).total() as f32;
            smallest = smallest.min(*cell);
        }
        let smallest = f64::from(smallest);
        let equal = smallest + EQUAL;
        for cell in out {
            let cost = f64::from(*cell);
            *cell = if cost <= equal { 1.0 } else { (equal / cost) as f32 };
        }
    }
}

impl PreRequest for ExpectedLatencyScorer {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let first = |run| Some((decision.endpoints_of(run).next()?, *run.picks.first()?));
        let Some(decode) = first(decision.primary()) else { return };
        let (prefill, position) = decision.prefill().and_then(first).unwrap_or(decode);
        let load = prefill.load();
        let waiting = load.waiting.fresh(cx.now_ms, cx.max_age).filter(|value| value.is_finite());
        let work = Work {
            prefill,
            decode: decode.0,
            tokens: self.uncached(cx, position),
            prompt: self.prompt(cx),
            is_stream: cx.request.stream,
            reported: waiting.map(|waiting| reported(cx, load, waiting)),
        };
        effects.follow(self.model.book(&work));
    }
}
