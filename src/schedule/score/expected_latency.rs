//! `expected-latency-scorer`: the less a request would wait at an endpoint and make others
//! wait, the better.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::config::{ConfigError, Node, Positioned};
use crate::endpoints::{Endpoint, View};
use crate::request::Slo;
use crate::schedule::latency::{
    Ask, Outlook, Reader, Reported, SloMetrics, Table, reported, targets, throughput,
};
use crate::schedule::{Context, Decision, Effects, Part, PreRequest, Scorer};

use super::readings;
use super::slo_rank::{Choice, rank};

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

/// Scores the smallest cost over an endpoint's own, and learns from the responses. See
/// [`latency`](crate::schedule::latency) for the formula. Of a request with latency targets the
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
        let cost_of = cost_of(&table, cx.part, candidates.len());
        let (prompt, uncached_at) = (self.reader.prompt(cx) as f64, self.reader.uncached(cx));
        let expected = table.expected(self.reader.kind(cx), cx.request.max_output_tokens);
        // A prompt that another endpoint decodes makes no batch deeper.
        let tighter = if cx.part == Part::Prefill { SmallVec::new() } else { table.tighter(slo.tpot) };
        let mut choices: SmallVec<[Choice; 32]> = SmallVec::with_capacity(candidates.len());
        for ((cell, endpoint), &position) in out.iter().zip(candidates.iter()).zip(candidates.indices()) {
            let reported = reported(cx, endpoint.load(), f64::from(*cell));
            let uncached = uncached_at(position) as f64;
            let ask = Ask { uncached, prompt, output: expected.mean };
            let cost = cost_of(endpoint, &ask, &reported);
            let long = Ask { output: expected.high, ..ask };
            let outlook = table.outlook(endpoint, &long, &reported, slo, cx.part);
            let serves = table.serves(endpoint, &outlook, &tighter);
            let Outlook { chance, harm, depth, .. } = outlook;
            choices.push(Choice { chance, harm, serves, depth, cost });
        }
        rank(&choices, EQUAL, out);
    }
}

impl Scorer for ExpectedLatencyScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        readings(cx, candidates, out, |load| &load.waiting);
        let slo = targets(cx);
        if !slo.is_empty() {
            return self.score_by_chance(cx, candidates, &slo, out);
        }
        let table = self.reader.read();
        let cost_of = cost_of(&table, cx.part, candidates.len());
        let (prompt, uncached_at) = (self.reader.prompt(cx) as f64, self.reader.uncached(cx));
        let output = table.expected(self.reader.kind(cx), cx.request.max_output_tokens).mean;
        let mut smallest = f32::INFINITY;
        for ((cell, endpoint), &position) in out.iter_mut().zip(candidates.iter()).zip(candidates.indices()) {
            let reported = reported(cx, endpoint.load(), f64::from(*cell));
            let uncached = uncached_at(position) as f64;
            let ask = Ask { uncached, prompt, output };
            *cell = cost_of(endpoint, &ask, &reported) as f32;
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

/// The cost, in seconds, of this part of a request at one of so many endpoints.
fn cost_of<'a>(
    table: &'a Table<'_>,
    part: Part,
    endpoints: usize,
) -> impl Fn(&Endpoint, &Ask, &Reported) -> f64 + 'a {
    let (pool, urgency) = (table.pool(endpoints), table.urgency());
    move |endpoint, ask, reported| {
        let cost = match part {
            Part::Whole => table.cost(endpoint, ask, &pool, reported),
            Part::Prefill => table.prefill_part(endpoint, ask, urgency, reported).cost,
            Part::Decode => table.decode_part(endpoint, ask, urgency, reported).cost,
        };
        cost.total()
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
