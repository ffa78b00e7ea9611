//! `expected-ttft-scorer`: the sooner an endpoint would give the first token, the better.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Node, Positioned};
use crate::endpoints::View;
use crate::schedule::data::{PrefixMatch, PromptTokens};
use crate::schedule::ttft::{self, Model, Work};
use crate::schedule::{Context, Decision, Effects, Key, PreRequest, Scorer};

use super::readings;

/// Tokens per second that an endpoint is taken to compute before anything is known, as
/// the peer assumes them.
pub const PEAK_PREFILL_THROUGHPUT: f64 = 15_928.0;

/// Shortest time that makes a difference, in seconds: waits below it are equal.
const SHORTEST: f64 = 1e-4;

/// Parameters of `expected-ttft-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedTtftParams {
    /// Prompt tokens that an endpoint computes per second, until its first tokens say
    /// so. Default 15,928.
    pub peak_prefill_throughput: f64,
    /// The producer that knows what is cached. Default `approx-prefix-cache-producer`.
    pub prefix_match_info_producer_name: String,
}

impl ExpectedTtftParams {
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

/// Scores the smallest expected time to the first token over an endpoint's own, and
/// learns from the answers. See [`ttft`] for the formula.
#[derive(Clone, Debug)]
pub struct ExpectedTtftScorer {
    peak: f64,
    model: Arc<Model>,
    tokens: Key<PromptTokens>,
    prefix: Key<PrefixMatch>,
}

impl ExpectedTtftScorer {
    /// A scorer that reads and teaches this model, which may have been another
    /// configuration's. Before anything is learned, endpoints compute `peak` tokens per
    /// second.
    pub fn new(peak: f64, model: Arc<Model>, tokens: Key<PromptTokens>, prefix: Key<PrefixMatch>) -> Self {
        Self { peak, model, tokens, prefix }
    }

    fn uncached(&self, cx: &Context<'_>, position: u32) -> u64 {
        let prompt = cx.facts.get(self.tokens).map_or(0, |tokens| tokens.count);
        cx.facts.get(self.prefix).map_or(prompt, |prefix| prefix.computed_at(position, prompt))
    }
}

impl Scorer for ExpectedTtftScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        readings(cx, candidates, out, |load| &load.waiting);
        // Not when it is made: its configuration may be refused yet.
        self.model.starts_at(self.peak);
        let table = self.model.read();
        let mut smallest = f32::INFINITY;
        for ((cell, endpoint), &position) in out.iter_mut().zip(candidates.iter()).zip(candidates.indices()) {
            let waiting = f64::from(*cell);
            let running = ttft::running(cx, endpoint.load(), waiting);
            let ttft = table.ttft(endpoint, self.uncached(cx, position), waiting, running);
            *cell = ttft.max(SHORTEST) as f32;
            smallest = smallest.min(*cell);
        }
        out.iter_mut().for_each(|cell| *cell = smallest / *cell);
    }
}

impl PreRequest for ExpectedTtftScorer {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let first = |run| Some((decision.endpoints_of(run).next()?, *run.picks.first()?));
        let Some(decode) = first(decision.primary()) else { return };
        let (prefill, position) = decision.prefill().and_then(first).unwrap_or(decode);
        let tokens = self.uncached(cx, position);
        let is_stream = cx.request.stream;
        let work = Work { prefill, decode: decode.0, tokens, is_stream };
        effects.follow(self.model.book(&work));
    }
}
