//! Chances that latency targets are kept.

use smallvec::SmallVec;
use usher_core::endpoints::Endpoint;
use usher_core::request::Slo;
use usher_plugin::Part;

use super::backlog::Backlog;
use super::cost::{Cost, Pool, Speed, State, TokenCounts};
use super::distribution::{Distribution, ENOUGH};
use super::hits::HitRatios;
use super::lengths::{Expected, Kind};
use super::logarithm::ln;
use super::residuals::band;
use super::table::{Reported, Table};
use super::targets::Tightest;

/// Part of its own target that another must be below to count as tighter.
const TIGHTER: f64 = 0.9;

/// Difference of chances that counts as none.
pub(crate) const EQUAL_CHANCE: f64 = 0.1;

/// Latency targets at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Probability that the request keeps its targets there; one above `ENOUGH` counts as that.
    pub chance: f64,
    /// Requests with the tightest target there that are expected to miss it for the request's
    /// being there.
    pub harm: f64,
    /// Mean seconds per output token of those that are there, without the request.
    pub depth: f64,
    /// Tighter targets that it keeps with its present batch.
    pub serves: usize,
}

/// Latency targets of a request and inputs of their forecast, the same for all endpoints.
#[derive(Clone, Copy, Debug)]
pub struct RequestTargets<'a> {
    /// Targets of the request itself.
    pub slo: &'a Slo,
    /// Tokens that prompts turn out to need.
    pub hits: HitRatios,
    /// Part of the request that an endpoint is to do.
    pub part: Part,
    /// Tokens of its response, if it becomes a long one.
    pub output: f64,
    /// Tighter targets per output token of other requests, in seconds.
    pub tighter: &'a [f64],
}

impl Table<'_> {
    /// Predicted seconds to the first token, and per output token after it.
    pub fn latencies(&self, endpoint: &Endpoint, counts: &TokenCounts, reported: &Reported) -> (f64, f64) {
        let (state, speed) = self.look(endpoint, counts.prompt, reported);
        let likely = self.hits().likely(counts.uncached, counts.prompt);
        (speed.first_token(&state, likely), speed.per_output_token(&state, counts))
    }

    /// Learned ratios of the tokens that prompts need to those that were expected.
    pub fn hits(&self) -> HitRatios {
        self.model.hits().ratios()
    }

    /// The cost of a request at an endpoint that does a part of it, and how latency targets fare
    /// there: its own, and those of the requests that decode there.
    pub fn cost_and_outlook(
        &self,
        endpoint: &Endpoint,
        counts: &TokenCounts,
        pool: &Pool,
        reported: &Reported,
        targets: &RequestTargets<'_>,
    ) -> (Cost, Outlook) {
        let looked = self.look(endpoint, counts.prompt, reported);
        let cost = match targets.part {
            Part::Whole => looked.1.cost(&looked.0, counts, pool),
            Part::Prefill => self.prefill_part_of(endpoint, &looked, counts, pool.urgency).cost,
            Part::Decode => self.decode_part_of(endpoint, &looked, counts, pool.urgency).cost,
        };
        (
            cost,
            self.outlook(
                self.known(endpoint),
                &looked,
                &TokenCounts { output: targets.output, ..*counts },
                targets,
            ),
        )
    }

    /// Requests that are expected to miss their latency targets for this one's being at an endpoint, itself
    /// among them, beyond what counts as none.
    pub fn missed(
        &self,
        endpoint: &Endpoint,
        counts: &TokenCounts,
        reported: &Reported,
        targets: &RequestTargets<'_>,
    ) -> f64 {
        let looked = self.look(endpoint, counts.prompt, reported);
        let at = self.outlook(
            self.known(endpoint),
            &looked,
            &TokenCounts { output: targets.output, ..*counts },
            targets,
        );
        ENOUGH - at.chance + at.harm
    }

    /// Chance that the first token misses its target where the prompt is computed at an endpoint and
    /// what comes after it takes so many seconds, beyond what counts as none.
    pub fn late(
        &self,
        endpoint: &Endpoint,
        counts: &TokenCounts,
        reported: &Reported,
        targets: &RequestTargets<'_>,
        after: f64,
    ) -> f64 {
        let Some(limit) = targets.slo.ttft else { return 0.0 };
        let looked = self.look(endpoint, counts.prompt, reported);
        let slo = Slo { ttft: Some(limit - after), tpot: None };
        let targets = RequestTargets { slo: &slo, part: Part::Prefill, ..*targets };
        ENOUGH - self.outlook(self.known(endpoint), &looked, counts, &targets).chance
    }

    /// Outlook of an endpoint with this backlog. Where an endpoint only computes the prompt, the time
    /// per output token is another's; where it only decodes, so is the time to the first token, but
    /// for the wait for a slot.
    ///
    /// The errors of the two predictions count as independent at a given load: what they have
    /// in common is mostly the load.
    #[inline(always)]
    fn outlook(
        &self,
        backlog: Option<&Backlog>,
        (state, speed): &(State, Speed),
        counts: &TokenCounts,
        targets: &RequestTargets<'_>,
    ) -> Outlook {
        let (load, group) = backlog.map_or((0.0, &**self.model.groups.first()), |backlog| {
            (backlog.load(state.requests), backlog.group())
        });
        let band = band(load);
        let in_time = targets.slo.ttft.map_or(1.0, |limit| {
            let ttft = match targets.part {
                Part::Decode => state.slot_wait,
                Part::Whole | Part::Prefill => {
                    speed.first_token(state, targets.hits.likely(counts.uncached, counts.prompt))
                }
            };
            group.first_residuals().of(band).within(ttft, limit)
        });
        if targets.part == Part::Prefill {
            return Outlook { chance: in_time.min(ENOUGH), ..Outlook::default() };
        }
        let steps = group.step_residuals().of(band);
        let tpot = speed.per_output_token(state, counts);
        let without = State { requests: (state.requests - 1.0).max(0.0), ..*state };
        let depth = speed.per_output_token(&without, &TokenCounts::default());
        let chance = match targets.slo.tpot {
            None => in_time.min(ENOUGH),
            // The most usual case, and no more counts.
            Some(limit) if in_time >= 1.0 && steps.is_enough(tpot, limit) => ENOUGH,
            Some(limit) => (in_time * steps.below(ln(limit / tpot))).min(ENOUGH),
        };
        let running = backlog.and_then(|backlog| backlog.targets().tightest_log());
        let harm = running.map_or(0.0, |tightest| harm(steps, &tightest, depth, tpot));
        let long = depth * steps.median();
        let serves = targets.tighter.iter().filter(|target| **target >= long).count();
        Outlook { chance, harm, depth, serves }
    }

    /// Targets per output token that requests named lately and that are tighter than `own`, in
    /// seconds. `None`: any is.
    pub fn tighter(&self, own: Option<f64>) -> SmallVec<[f64; 16]> {
        self.recent_targets(own.map_or(f64::INFINITY, |own| own * TIGHTER))
    }

    /// Smallest target per output token of the requests at an endpoint, in seconds.
    pub fn tightest_tpot(&self, endpoint: &Endpoint) -> Option<f64> {
        self.known(endpoint)?.targets().tightest().map(|(target, _)| target)
    }

    /// Tokens that are expected of a response to a request of this model and flow, where the client
    /// allows so many.
    pub fn expected(&self, kind: Kind, most: Option<u64>) -> Expected {
        let Expected { mean, high } = self.model.lengths.expected(kind, self.model.mean_output());
        let bounded = |tokens: f64| most.map_or(tokens, |most| tokens.min(most as f64)).max(1.0);
        Expected { mean: bounded(mean), high: bounded(high) }
    }

    /// Targets per output token below a limit that requests named lately, in seconds.
    fn recent_targets(&self, limit: f64) -> SmallVec<[f64; 16]> {
        self.model.recent.below(limit, self.now())
    }
}

/// Requests with the tightest target that are expected to miss it where the time per output token
/// becomes `tpot` instead of `depth`.
#[inline(always)]
fn harm(steps: &Distribution, tightest: &Tightest, depth: f64, tpot: f64) -> f64 {
    if steps.is_sure(tpot, tightest.target) {
        return 0.0;
    }
    let kept = |seconds: f64| steps.below(tightest.log - ln(seconds));
    tightest.requests * (kept(depth) - kept(tpot)).max(0.0)
}
