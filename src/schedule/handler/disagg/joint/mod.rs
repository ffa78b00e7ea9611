//! The pair that gives the first token soonest: who computes the prompt and who decodes
//! are chosen together, by
//!
//! ```text
//! ttft(prefill) + kv_bytes / bandwidth(link) + slot_wait(decode)
//! ```
//!
//! so that topology matters exactly as much as it costs.

mod choose;
mod links;
mod params;
mod ways;

use std::sync::Arc;

use rand::{Rng, RngExt};

use crate::endpoints::{Endpoint, Gauge, Nearness, Snapshot};
use crate::schedule::data::{PrefixMatch, PromptTokens};
use crate::schedule::label_values::LabelValues;
use crate::schedule::latency::{self, Model, Reported, Work};
use crate::schedule::per_snapshot::PerSnapshot;
use crate::schedule::{Context, Decision, Effects, Key, ScheduleError, Scores, Settlement};

use choose::{Costs, Side, cheapest};
pub use params::{JointParams, Written};
use ways::{Place, Ways};

/// Chooses pairs, and learns how fast prompts are computed.
#[derive(Debug)]
pub struct Joint {
    params: JointParams,
    required: Nearness,
    /// Who doesn't say what it is fits everybody; `None`: all do.
    revisions: PerSnapshot<Option<LabelValues>>,
    model: Arc<Model>,
    tokens: Key<PromptTokens>,
    prefix: Key<PrefixMatch>,
}

impl Joint {
    /// Pairs by these parameters; what is learned is kept in `model`.
    pub fn new(
        params: JointParams,
        model: Arc<Model>,
        tokens: Key<PromptTokens>,
        prefix: Key<PrefixMatch>,
    ) -> Self {
        let required = params.required();
        Self { params, required, revisions: PerSnapshot::new(), model, tokens, prefix }
    }

    fn prompt(&self, cx: &Context<'_>) -> u64 {
        cx.facts.get(self.tokens).map_or(0, |tokens| tokens.count)
    }

    fn uncached(&self, cx: &Context<'_>, position: u32) -> u64 {
        let prompt = self.prompt(cx);
        cx.facts.get(self.prefix).map_or(prompt, |prefix| prefix.computed_at(position, prompt))
    }

    /// Replaces the picks of both profiles by the cheapest pair. Does nothing unless both
    /// picked.
    ///
    /// # Errors
    /// When no two of the endpoints may work together.
    pub fn settle(
        &self,
        cx: &Context<'_>,
        open: &mut Settlement<'_>,
        prefill: usize,
        decode: usize,
        rng: &mut dyn Rng,
    ) -> Result<(), ScheduleError> {
        let pair = {
            let runs = open.runs();
            let snapshot = runs.candidates().snapshot();
            let (Some(prefills), Some(decodes)) = (open.scores(prefill), open.scores(decode)) else {
                return Ok(());
            };
            self.cheapest(cx, snapshot, prefills, decodes, rng)
        };
        let Some((first, second)) = pair else { return Err(ScheduleError::NoPair) };
        open.replace(prefill, &[first]);
        open.replace(decode, &[second]);
        Ok(())
    }

    fn cheapest(
        &self,
        cx: &Context<'_>,
        snapshot: &Snapshot,
        prefills: &Scores,
        decodes: &Scores,
        rng: &mut dyn Rng,
    ) -> Option<(u32, u32)> {
        let label = self.params.revision_label.as_str();
        self.revisions.read(
            snapshot,
            |endpoints| (!label.is_empty()).then(|| LabelValues::of(label, endpoints)),
            |revisions| {
                self.cheapest_of(cx, snapshot.endpoints(), revisions.as_ref(), (prefills, decodes), rng)
            },
        )
    }

    fn cheapest_of(
        &self,
        cx: &Context<'_>,
        endpoints: &[Arc<Endpoint>],
        revisions: Option<&LabelValues>,
        (prefills, decodes): (&Scores, &Scores),
        rng: &mut dyn Rng,
    ) -> Option<(u32, u32)> {
        // Not when it is made: its configuration may be refused yet.
        self.model.starts_at(self.params.peak_prefill_throughput);
        let table = self.model.read();
        let prompt = self.prompt(cx);
        let bytes = prompt as f64 * self.params.kv_bytes_per_token;
        let at = |position: u32| endpoints.get(position as usize);
        let queues_of =
            |scores: &Scores| Queues::among(cx, scores.survivors.iter().filter_map(|&position| at(position)));
        let (prefill_queues, decode_queues) = (queues_of(prefills), queues_of(decodes));
        let costs = Costs {
            prefill: |position| {
                let uncached = self.uncached(cx, position);
                at(position).map_or(f64::NAN, |endpoint| {
                    table.ttft(endpoint, uncached, &prefill_queues.at(cx, endpoint))
                })
            },
            decode: |position| {
                at(position).map_or(f64::NAN, |endpoint| {
                    table.slot_wait(endpoint, prompt, &decode_queues.at(cx, endpoint))
                })
            },
            place: |position| Place {
                topology: at(position).map_or_else(Default::default, |endpoint| *endpoint.topology()),
                revision: revisions.and_then(|revisions| revisions.number(position)),
            },
            ways: Ways::new(&self.params.links, bytes, self.required),
        };
        let start = rng.random_range(0..usize::MAX);
        let has_room = |side: &Side| at(side.position).is_some_and(|endpoint| self.has_room(cx, endpoint));
        let prefills = sides(prefills);
        let with_room = sides(decodes).filter(has_room);
        let k = self.params.pair_candidates;
        let pair = cheapest(&prefills, &with_room, k, start, &costs);
        pair.or_else(|| cheapest(&prefills, &sides(decodes), k, start, &costs))
    }

    /// Whether an endpoint's KV cache is below the limit; one that doesn't say counts as empty.
    fn has_room(&self, cx: &Context<'_>, endpoint: &Endpoint) -> bool {
        fresh(cx, &endpoint.load().kv_usage).is_none_or(|usage| usage <= self.params.kv_cache_limit)
    }

    /// Books the prompt with the endpoint that computes it.
    pub fn book(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let first = |run| Some((decision.endpoints_of(run).next()?, *run.picks.first()?));
        let Some((decode, position)) = first(decision.primary()) else { return };
        let (prefill, position) = decision.prefill().and_then(first).unwrap_or((decode, position));
        effects.follow(self.model.book(&Work {
            prefill,
            decode,
            tokens: self.uncached(cx, position),
            prompt: self.prompt(cx),
            reported: None,
            is_stream: cx.request.stream,
        }));
    }
}

fn sides(scores: &Scores) -> impl Iterator<Item = Side> + Clone + '_ {
    let both = scores.survivors.iter().zip(&scores.totals);
    both.map(|(&position, &score)| Side { position, score })
}

/// Requests at the endpoints of a decision, as these say. One that nobody hears from has
/// the longest queue of the others, so that it doesn't draw the traffic.
struct Queues {
    longest: f64,
}

impl Queues {
    fn among<'a>(cx: &Context<'_>, endpoints: impl Iterator<Item = &'a Arc<Endpoint>>) -> Self {
        let known = endpoints.filter_map(|endpoint| fresh(cx, &endpoint.load().waiting));
        Self { longest: known.fold(0.0, f64::max) }
    }

    fn at(&self, cx: &Context<'_>, endpoint: &Endpoint) -> Reported {
        let load = endpoint.load();
        let waiting = fresh(cx, &load.waiting).unwrap_or(self.longest);
        let running = latency::running(cx, load, waiting);
        Reported { waiting, running, kv_usage: fresh(cx, &load.kv_usage) }
    }
}

fn fresh(cx: &Context<'_>, gauge: &Gauge) -> Option<f64> {
    gauge.fresh(cx.now_ms, cx.max_age).filter(|value| value.is_finite()).map(|value| value.max(0.0))
}
