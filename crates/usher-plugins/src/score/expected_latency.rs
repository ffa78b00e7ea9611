//! `expected-latency-scorer`: the less a request would wait at an endpoint and make others
//! wait, the better.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Endpoint, View};
use usher_core::request::Slo;
use usher_plugin::params::{PREFIX_PRODUCER, or_default};
use usher_plugin::{
    Build, BuildContext, Context, Decision, Effects, Kind, LatencyEstimate, Part, PluginParts, PluginType,
    PreRequest, Scorer, beta,
};

use crate::latency::{
    Cost, PEAK_PREFILL_THROUGHPUT, Reader, RequestTargets, SloMetrics, Table, TokenCounts, check_throughput,
    reads_latency, reported, targets,
};

use super::readings;
use super::slo_rank::{Choice, rank};

/// `expected-latency-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("expected-latency-scorer", &[Kind::Scorer, Kind::PreRequest, Kind::Response],
    "The less a request would wait at an endpoint and make others wait, the better: by what it has yet to compute and to decode, how fast it is, and what it has cached. Learns from the responses.",
    Build::Reading(build)).takes::<ExpectedLatencyParams>()
    .when("Wherever nothing else is asked for: alone, it weighs warm caches, queues and batches in seconds, without weights. Usher's own.");

/// `expected-ttft-scorer` in a configuration.
#[rustfmt::skip]
pub static OLDER_NAME: PluginType = beta("expected-ttft-scorer", &[Kind::Scorer, Kind::PreRequest, Kind::Response],
    "An older name of expected-latency-scorer.",
    Build::Reading(build)).takes::<ExpectedLatencyParams>().instead("expected-latency-scorer")
    .when("In configurations that have it already.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = ExpectedLatencyParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    let reader = reads_latency(cx, params.peak_prefill_throughput, &params.prefix_match_info_producer_name)?;
    let slo = cx.family(SloMetrics::register)?;
    let plugin = Arc::new(ExpectedLatencyScorer::new(reader).counting(slo));
    Ok(PluginParts {
        scorer: Some(Arc::clone(&plugin) as _),
        pre_request: Some(plugin),
        books: true,
        ..parts
    })
}

/// Costs that differ by less than so many seconds are equal.
const EQUAL: f64 = 5e-4;

/// Parameters of `expected-latency-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpectedLatencyParams {
    /// Prompt tokens that an endpoint computes per second, until its first tokens say so.
    #[schemars(extend("x-unit" = "tokens/s"))]
    pub peak_prefill_throughput: f64,
    /// The producer that knows what is cached.
    pub prefix_match_info_producer_name: String,
}

impl Default for ExpectedLatencyParams {
    fn default() -> Self {
        Self {
            peak_prefill_throughput: PEAK_PREFILL_THROUGHPUT,
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
        }
    }
}

impl ExpectedLatencyParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and a throughput that is no positive
    /// number.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        check_throughput(node, params.peak_prefill_throughput)?;
        or_default(&mut params.prefix_match_info_producer_name, PREFIX_PRODUCER);
        Ok(params)
    }
}

/// Costs of all candidates, in seconds.
type Costs = SmallVec<[f64; 32]>;

/// Scores the smallest cost over an endpoint's own, and learns from the responses. See
/// [`latency`](crate::latency) for the formula. Of a request with latency targets the
/// chance that they are kept decides first.
#[derive(Clone, Debug)]
pub struct ExpectedLatencyScorer {
    reader: Reader,
    slo: Option<Arc<SloMetrics>>,
}

impl ExpectedLatencyScorer {
    /// A scorer by what this reads.
    pub fn new(reader: Reader) -> Self {
        Self { reader, slo: None }
    }

    /// Counts latency targets that can't be read.
    #[must_use]
    pub fn counting(self, slo: Arc<SloMetrics>) -> Self {
        Self { slo: Some(slo), ..self }
    }

    /// Scores for a request with these targets. `out` has the requests that wait at each
    /// candidate.
    fn score_by_chance(&self, cx: &Context<'_>, candidates: View<'_>, slo: &Slo, out: &mut [f32]) {
        let table = self.reader.read();
        let pool = table.pool(candidates.len());
        let (prompt, uncached_at) = (self.reader.prompt(cx) as f64, self.reader.uncached(cx));
        let expected = table.expected(self.reader.kind(cx), cx.request.max_output_tokens);
        // A prompt that another endpoint decodes makes no batch deeper.
        let tighter = if cx.part == Part::Prefill { SmallVec::new() } else { table.tighter(slo.tpot) };
        let targets = RequestTargets {
            slo,
            hits: table.hits(),
            part: cx.part,
            output: expected.high,
            tighter: &tighter,
        };
        let places = candidates.iter().zip(candidates.indices());
        let mut least = f64::INFINITY;
        let mut choices: SmallVec<[Choice; 32]> = SmallVec::with_capacity(candidates.len());
        let mut per_wait = Costs::with_capacity(candidates.len());
        for ((endpoint, &position), waiting) in places.zip(out.iter()) {
            let reported = reported(cx, endpoint.load(), f64::from(*waiting));
            let counts = TokenCounts { uncached: uncached_at(position), prompt, output: expected.mean };
            let (cost, at) = table.cost_and_outlook(endpoint, &counts, &pool, &reported, &targets);
            least = least.min(cost.wait);
            per_wait.push(cost.per_wait);
            let gain = at.chance - at.harm;
            choices.push(Choice { gain, serves: at.serves, depth: at.depth, cost: cost.total() });
        }
        for (choice, per_wait) in choices.iter_mut().zip(per_wait) {
            choice.cost += per_wait * least;
        }
        rank(&choices, EQUAL, out);
    }

    /// Costs of the request's part at the candidates, in seconds. `waiting`: requests that wait
    /// there.
    fn costs(&self, cx: &Context<'_>, table: &Table<'_>, candidates: View<'_>, waiting: &[f32]) -> Costs {
        let (pool, urgency) = (table.pool(candidates.len()), table.urgency());
        let (prompt, uncached_at) = (self.reader.prompt(cx) as f64, self.reader.uncached(cx));
        let output = table.expected(self.reader.kind(cx), cx.request.max_output_tokens).mean;
        let places = candidates.iter().zip(candidates.indices());
        let mut least = f64::INFINITY;
        let mut costs: SmallVec<[Cost; 32]> = SmallVec::with_capacity(candidates.len());
        for ((endpoint, &position), waiting) in places.zip(waiting) {
            let reported = reported(cx, endpoint.load(), f64::from(*waiting));
            let counts = TokenCounts { uncached: uncached_at(position), prompt, output };
            let cost = match cx.part {
                Part::Whole => table.cost(endpoint, &counts, &pool, &reported),
                Part::Prefill => table.prefill_part(endpoint, &counts, urgency, &reported).cost,
                Part::Decode => table.decode_part(endpoint, &counts, urgency, &reported).cost,
            };
            least = least.min(cost.wait);
            costs.push(cost);
        }
        costs.iter().map(|cost| cost.behind(least)).collect()
    }
}

impl Scorer for ExpectedLatencyScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        readings(cx, candidates, out, |load| (&load.waiting, load.unreported()));
        let slo = targets(cx);
        if !slo.is_empty() {
            return self.score_by_chance(cx, candidates, &slo, out);
        }
        let costs = self.costs(cx, &self.reader.read(), candidates, out);
        let equal = costs.iter().copied().fold(f64::INFINITY, f64::min) + EQUAL;
        for (cell, cost) in out.iter_mut().zip(costs) {
            *cell = if cost <= equal { 1.0 } else { (equal / cost) as f32 };
        }
    }

    fn estimate(&self, cx: &Context<'_>, endpoint: &Endpoint, position: u32) -> Option<LatencyEstimate> {
        // The prompt of a part that only decodes is computed elsewhere, which this knows nothing of.
        if cx.part == Part::Decode {
            return None;
        }
        let load = endpoint.load();
        let waiting = load.waiting.fresh(cx.now_ms, cx.max_age).unwrap_or_default();
        let table = self.reader.read();
        let output = table.expected(self.reader.kind(cx), cx.request.max_output_tokens).mean;
        let (uncached, prompt) = (self.reader.uncached(cx)(position), self.reader.prompt(cx) as f64);
        let counts = TokenCounts { uncached, prompt, output };
        Some(table.estimate(endpoint, &counts, &reported(cx, load, waiting)))
    }
}

impl PreRequest for ExpectedLatencyScorer {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        self.reader.book(cx, decision, effects);
        if let Some(slo) = &self.slo {
            slo.count_ignored(cx, effects);
        }
    }
}
