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

use crate::endpoints::{Endpoint, Nearness, Snapshot};
use crate::schedule::label_values::LabelValues;
use crate::schedule::latency::{Reader, Reported, fresh, reported};
use crate::schedule::per_snapshot::PerSnapshot;
use crate::schedule::{Context, Decision, Effects, ScheduleError, Scores, Settlement};

use choose::{Costs, Side, cheapest};
pub use params::{JointParams, Written};
use ways::{Place, Ways};

/// Chooses pairs.
#[derive(Debug)]
pub struct Joint {
    params: JointParams,
    required: Nearness,
    /// Who doesn't say what it is fits everybody; `None`: all do.
    revisions: PerSnapshot<Option<LabelValues>>,
    reader: Reader,
}

impl Joint {
    /// Pairs by these parameters and by what `reader` reads.
    pub fn new(params: JointParams, reader: Reader) -> Self {
        let required = params.required();
        Self { params, required, revisions: PerSnapshot::new(), reader }
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
        let table = self.reader.read();
        let prompt = self.reader.prompt(cx);
        let bytes = prompt as f64 * self.params.kv_bytes_per_token;
        let at = |position: u32| endpoints.get(position as usize);
        let queues_of =
            |scores: &Scores| Queues::among(cx, scores.survivors.iter().filter_map(|&position| at(position)));
        let (prefill_queues, decode_queues) = (queues_of(prefills), queues_of(decodes));
        let costs = Costs {
            prefill: |position| {
                let uncached = self.reader.uncached(cx, position);
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

    /// Books the request with the endpoints that were picked.
    pub fn book(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        self.reader.book(cx, decision, effects);
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
        reported(cx, load, waiting)
    }
}
