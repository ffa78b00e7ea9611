//! Joint choice of the endpoints that compute the prompt and decode: the pair with the least
//! cost, or an endpoint that does both where that costs less.
//!
//! The cost is that of [`latency`](crate::latency): the first token and the delay of
//! others at the endpoint that computes the prompt, the way of the KV cache that the decoding
//! endpoint doesn't have, and the response and the delay of others there. So topology matters
//! exactly as much as it costs. Of a request with latency targets the chance that they are kept
//! decides first.

mod choose;
mod links;
mod params;
mod ways;

use std::sync::Arc;

use rand::{Rng, RngExt};
use usher_core::endpoints::{Candidates, Endpoint, Nearness};
use usher_plugin::{
    Context, Decider, Decision, Effects, LabelValues, Part, PerSnapshot, ScheduleError, Scores, Settlement,
};

use crate::latency::{
    Reader, Reported, RequestTargets, Table, TokenCounts, Transfers, fresh, reported, targets,
};

use choose::{Alone, Choice, Costs, Decode, Prefill, Side, cheapest};
pub use links::Links;
pub use params::JointParams;
use ways::{Place, Ways};

/// Chooses pairs.
#[derive(Debug)]
pub struct Joint {
    params: JointParams,
    required: Nearness,
    transfers: Transfers,
    /// Values of the revision label; an endpoint without it fits all. `None`: no label is set, all fit.
    revisions: PerSnapshot<Option<LabelValues>>,
    reader: Reader,
}

/// Decides whether another endpoint than the decoding one computes the prompt.
#[derive(Clone, Copy)]
pub enum Splitting<'a> {
    /// Another one does.
    Always,
    /// Whichever costs less.
    ByCost,
    /// This says for each decoding endpoint whether another one may; then it does if that costs
    /// less.
    By(&'a dyn Decider),
}

/// Endpoints and scores that a choice is made of.
struct Sides<'a> {
    /// `None`: no endpoint computes prompts for others.
    prefills: Option<&'a Scores>,
    decodes: &'a Scores,
    candidates: &'a Candidates,
    splitting: Splitting<'a>,
}

impl Joint {
    /// Pairs by these parameters and by what `reader` reads.
    pub fn new(params: JointParams, reader: Reader) -> Self {
        let (required, transfers) = (params.required(), params.transfers());
        Self { params, required, transfers, revisions: PerSnapshot::new(), reader }
    }

    /// Replaces the picks of both profiles by the cheapest pair, or by one endpoint that does it
    /// all, which leaves the profile of prefill without a pick. Does nothing unless that of
    /// decode picked.
    ///
    /// # Errors
    /// `ScheduleError` if no two of the endpoints may form a pair.
    pub fn settle(
        &self,
        cx: &Context<'_>,
        open: &mut Settlement<'_>,
        (prefill, decode): (usize, usize),
        splitting: Splitting<'_>,
        rng: &mut dyn Rng,
    ) -> Result<(), ScheduleError> {
        let choice = {
            let runs = open.runs();
            let Some(decodes) = open.scores(decode) else { return Ok(()) };
            let (candidates, prefills) = (runs.candidates(), open.scores(prefill));
            self.cheapest(cx, &Sides { prefills, decodes, candidates, splitting }, rng)
        };
        match choice.ok_or(ScheduleError::NoPair)? {
            Choice::Pair(first, second) => {
                open.replace(prefill, &[first]);
                open.replace(decode, &[second]);
            }
            Choice::Alone(only) => {
                open.withdraw(prefill);
                open.replace(decode, &[only]);
            }
        }
        Ok(())
    }

    fn cheapest(&self, cx: &Context<'_>, sides: &Sides<'_>, rng: &mut dyn Rng) -> Option<Choice> {
        let label = self.params.revision_label.as_str();
        self.revisions.read(
            sides.candidates.snapshot(),
            |endpoints| (!label.is_empty()).then(|| LabelValues::of(label, endpoints)),
            |revisions| self.cheapest_of(cx, sides, revisions.as_ref(), rng),
        )
    }

    fn cheapest_of(
        &self,
        cx: &Context<'_>,
        sides: &Sides<'_>,
        revisions: Option<&LabelValues>,
        rng: &mut dyn Rng,
    ) -> Option<Choice> {
        let table = self.reader.read();
        let endpoints = sides.candidates.snapshot().endpoints();
        let at = |position: u32| endpoints.get(position as usize);
        let queues_of =
            |scores: &Scores| Queues::among(cx, scores.survivors.iter().filter_map(|&position| at(position)));
        let prefill_queues = sides.prefills.map(queues_of).unwrap_or_default();
        let decode_queues = queues_of(sides.decodes);
        let urgency = table.urgency();
        let (prompt, uncached) = (self.reader.prompt(cx) as f64, self.reader.uncached(cx));
        let output = table.expected(self.reader.kind(cx), cx.request.max_output_tokens).mean;
        let counts = |position| TokenCounts { uncached: uncached(position), prompt, output };
        let slo = targets(cx);
        let targets = (!slo.is_empty()).then(|| {
            let long = table.expected(self.reader.kind(cx), cx.request.max_output_tokens).high;
            RequestTargets { slo: &slo, hits: table.hits(), part: Part::Whole, output: long, tighter: &[] }
        });
        let late = |position: u32, seconds: f64| match (&targets, at(position)) {
            (Some(targets), Some(endpoint)) => {
                let reported = prefill_queues.at(cx, endpoint);
                table.late(endpoint, &counts(position), &reported, targets, seconds)
            }
            _ => 0.0,
        };
        let costs = Costs {
            late: &late,
            prefill: |position| match at(position) {
                Some(endpoint) => {
                    let reported = prefill_queues.at(cx, endpoint);
                    let part = table.prefill_part(endpoint, &counts(position), urgency, &reported);
                    Prefill { cost: part.cost.total(), computed: part.computed }
                }
                None => Prefill { cost: f64::NAN, computed: 0.0 },
            },
            decode: |position| match at(position) {
                Some(endpoint) => {
                    let reported = decode_queues.at(cx, endpoint);
                    let part = table.decode_part(endpoint, &counts(position), urgency, &reported);
                    let (is_paired, alone) = sides.may(cx, position);
                    let missed = |part| {
                        targets.map_or(0.0, |targets| {
                            table.missed(
                                endpoint,
                                &counts(position),
                                &reported,
                                &RequestTargets { part, ..targets },
                            )
                        })
                    };
                    Decode {
                        cost: part.cost.total(),
                        whole: part.whole.total(),
                        missed: missed(Part::Decode),
                        whole_missed: missed(Part::Whole),
                        moves: self.reader.missing(cx, position) as f64 * part.factor,
                        busy: part.busy,
                        is_paired,
                        alone,
                    }
                }
                None => Decode::UNKNOWN,
            },
            place: |position| Place {
                topology: at(position).map_or_else(Default::default, |endpoint| *endpoint.topology()),
                revision: revisions.and_then(|revisions| revisions.number(position)),
            },
            ways: Ways::new(self.transfers, self.required),
            urgency,
        };
        let start = rng.random_range(0..usize::MAX);
        let has_room =
            |side: &Side| at(side.position).is_some_and(|endpoint| self.has_room(cx, &table, endpoint));
        let prefills = sides_of(sides.prefills);
        let with_room = sides_of(Some(sides.decodes)).filter(has_room);
        let k = self.params.pair_candidates;
        let choice = cheapest(&prefills, &with_room, k, start, &costs);
        choice.or_else(|| cheapest(&prefills, &sides_of(Some(sides.decodes)), k, start, &costs))
    }

    /// Returns `true` if an endpoint's KV cache is below the limit with all that is on its
    /// way; one that doesn't say counts as empty.
    fn has_room(&self, cx: &Context<'_>, table: &Table<'_>, endpoint: &Endpoint) -> bool {
        let usage = fresh(cx, &endpoint.load().kv_usage).map(|usage| table.kv_usage(endpoint, usage));
        usage.is_none_or(|usage| usage <= self.params.kv_cache_limit)
    }

    /// Books the request with the endpoints that were picked.
    pub fn book(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        self.reader.book(cx, decision, effects);
    }
}

impl Sides<'_> {
    /// Permission of a decoding endpoint to decode for another one, and when it may do it all.
    fn may(&self, cx: &Context<'_>, position: u32) -> (bool, Alone) {
        if self.prefills.is_none() {
            return (false, Alone::Always);
        }
        match self.splitting {
            Splitting::Always => (true, Alone::Never),
            Splitting::ByCost => (true, Alone::Always),
            Splitting::By(decider) if decider.decide(cx, self.candidates, Some(position)) => {
                (true, Alone::Instead)
            }
            Splitting::By(_) => (false, Alone::Always),
        }
    }
}

fn sides_of(scores: Option<&Scores>) -> impl Iterator<Item = Side> + Clone + '_ {
    let both = scores.into_iter().flat_map(|scores| scores.survivors.iter().zip(&scores.totals));
    both.map(|(&position, &score)| Side { position, score })
}

/// Requests at the endpoints of a decision, as these say. One that nobody hears from has
/// the longest queue of the others, so that it doesn't draw the traffic.
#[derive(Default)]
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
