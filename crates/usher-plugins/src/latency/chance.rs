//! Chances that latency targets are kept.

use smallvec::SmallVec;
use usher_core::endpoints::Endpoint;
use usher_core::request::Slo;
use usher_plugin::Part;

use super::cost::{Ask, Cost, Pool, Speed, State};
use super::lengths::{Expected, Kind};
use super::table::{Reported, Table};

/// Part of its own target that another must be below to count as tighter.
const TIGHTER: f64 = 0.9;

/// Chance of keeping the targets beyond which more is no better.
pub(crate) const ENOUGH: f64 = 0.95;

/// Difference of chances that counts as none.
pub(crate) const EQUAL_CHANCE: f64 = 0.1;

/// Latency targets at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Probability, 0..=1, that the request keeps its targets there.
    pub chance: f64,
    /// Requests with the tightest target there that are expected to miss it for the request's
    /// being there.
    pub harm: f64,
    /// Mean seconds per output token of those that are there, without the request.
    pub depth: f64,
    /// Tighter targets that it keeps with its present batch.
    pub serves: usize,
}

/// Latency targets of a request, for all endpoints.
#[derive(Clone, Copy, Debug)]
pub struct Aims<'a> {
    /// Its own.
    pub slo: &'a Slo,
    /// Natural logarithm of its own per output token, in seconds.
    pub tpot_log: Option<f64>,
    /// Part of the request that an endpoint is to do.
    pub part: Part,
    /// Tokens of its answer, if it becomes a long one.
    pub output: f64,
    /// Tighter targets per output token of other requests, in seconds.
    pub tighter: &'a [f64],
}

impl Table<'_> {
    /// Predicted seconds to the first token, and per output token after it.
    pub fn latencies(&self, endpoint: &Endpoint, ask: &Ask, reported: &Reported) -> (f64, f64) {
        let (state, speed) = self.look(endpoint, ask.prompt, reported);
        (speed.first_token(&state, self.likely(ask)), speed.per_output_token(&state, ask))
    }

    /// Tokens that the prompt should need, as the times and errors of predictions were learned.
    fn likely(&self, ask: &Ask) -> f64 {
        // Casts from floats saturate.
        self.model.hits().likely(ask.uncached as u64, ask.prompt as u64) as f64
    }

    /// The cost of a request at an endpoint that does a part of it, and how latency targets fare
    /// there: its own, and those of the requests that decode there.
    pub fn cost_and_outlook(
        &self,
        endpoint: &Endpoint,
        ask: &Ask,
        pool: &Pool,
        reported: &Reported,
        aims: &Aims<'_>,
    ) -> (Cost, Outlook) {
        let looked = self.look(endpoint, ask.prompt, reported);
        let cost = match aims.part {
            Part::Whole => looked.1.cost(&looked.0, ask, pool),
            Part::Prefill => self.prefill_part_of(endpoint, &looked, ask, pool.urgency).cost,
            Part::Decode => self.decode_part_of(endpoint, &looked, ask, pool.urgency).cost,
        };
        (cost, self.outlook(endpoint, &looked, &Ask { output: aims.output, ..*ask }, aims))
    }

    /// Outlook of an endpoint. Where an endpoint only computes the prompt, the time per output
    /// token is another's; where it only decodes, so is the time to the first token, but for the
    /// wait for a slot.
    ///
    /// The errors of the two predictions count as independent at a given load: what they have
    /// in common is mostly the load.
    #[inline]
    fn outlook(
        &self,
        endpoint: &Endpoint,
        (state, speed): &(State, Speed),
        ask: &Ask,
        aims: &Aims<'_>,
    ) -> Outlook {
        let (load, group) = (self.load_of(endpoint, state), self.group(endpoint));
        let ttft_chance = aims.slo.ttft.map_or(1.0, |limit| {
            let ttft = match aims.part {
                Part::Decode => state.slot_wait,
                Part::Whole | Part::Prefill => speed.first_token(state, self.likely(ask)),
            };
            group.first_residuals().within(load, ttft, limit)
        });
        if aims.part == Part::Prefill {
            return Outlook { chance: ttft_chance, ..Outlook::default() };
        }
        let steps = group.step_residuals().at(load);
        let tpot = speed.per_output_token(state, ask);
        let without = State { requests: (state.requests - 1.0).max(0.0), ..*state };
        let depth = speed.per_output_token(&without, &Ask::default());
        let log = |seconds: f64| if seconds.is_nan() { seconds } else { seconds.max(0.0).ln() };
        let (tpot_log, depth_log) = (log(tpot), log(depth));
        let tpot_chance = aims.tpot_log.map_or(1.0, |limit| steps.below(limit - tpot_log));
        let running = self.known(endpoint).and_then(|backlog| backlog.targets().tightest_log());
        let harm = running.map_or(0.0, |(target, requests)| {
            requests * (steps.below(target - depth_log) - steps.below(target - tpot_log)).max(0.0)
        });
        let serves = aims.tighter.iter().filter(|target| steps.is_likely(depth, **target)).count();
        Outlook { chance: ttft_chance * tpot_chance, harm, depth, serves }
    }

    /// Targets per output token that requests named lately and that are tighter than `own`, in
    /// seconds. `None`: any is.
    pub fn tighter(&self, own: Option<f64>) -> SmallVec<[f64; 16]> {
        self.recent_targets(own.map_or(f64::INFINITY, |own| own * TIGHTER))
    }

    /// Smallest target per output token of the requests at an endpoint, in seconds.
    pub fn tightest_tpot(&self, endpoint: &Endpoint) -> Option<f64> {
        self.running_targets(endpoint).map(|(target, _)| target)
    }

    /// Tokens that are expected of an answer to a request of this model and flow, where the client
    /// allows so many.
    pub fn expected(&self, kind: Kind, most: Option<u64>) -> Expected {
        let Expected { mean, high } = self.model.lengths.expected(kind, self.model.mean_output());
        let bounded = |tokens: f64| most.map_or(tokens, |most| tokens.min(most as f64)).max(1.0);
        Expected { mean: bounded(mean), high: bounded(high) }
    }

    /// The smallest target per output token at an endpoint, in seconds, and how many requests
    /// have it.
    fn running_targets(&self, endpoint: &Endpoint) -> Option<(f64, f64)> {
        self.known(endpoint)?.targets().tightest()
    }

    /// Targets per output token below a limit that requests named lately, in seconds.
    fn recent_targets(&self, limit: f64) -> SmallVec<[f64; 16]> {
        self.model.recent.below(limit, self.now())
    }
}
