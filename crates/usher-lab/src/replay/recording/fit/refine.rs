//! Better constants, by replays of the recorded picks.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::constants::{Constants, Fixed, SLOWER, median};
use super::engine::apply;
use super::observe::{Observations, Observed};
use crate::replay::policy::Picker;
use crate::replay::requests::Requests;
use crate::replay::servers::Server;
use crate::replay::workload::{Arrival, Piece};
use crate::replay::world::{Interconnect, RequestOutcome, World};

/// Requests of a replay that is repeated for each trial.
const WINDOW: usize = 2000;

/// Requests of the replay that shows how good a fit is.
const MOST: usize = 50_000;

/// Prompt tokens and generated tokens of the requests of a trial: text to make, and steps to take.
const WINDOW_TOKENS: [f64; 2] = [(1u64 << 27) as f64, (1u64 << 20) as f64];

/// Prompt tokens and generated tokens of all requests, at most.
const MOST_TOKENS: [f64; 2] = [(1u64 << 30) as f64, (1u64 << 24) as f64];

/// Steps of engines after which constants are no longer improved; some seconds.
pub(super) const MOST_STEPS: u64 = 1 << 26;

/// Requests that wait at a server at most: as many as there are.
const MOST_WAITING: usize = 1 << 30;

/// Steps by which constants change, each until none helps.
const STEPS: [f64; 4] = [1.25, 1.1, 1.04, 1.015];

/// Rounds of one step at most.
const ROUNDS: usize = 3;

/// Delay from which on it is looked for, in milliseconds: nothing is a multiple of 0.
const LEAST_DELAY_MS: f64 = 1.0;

/// Seconds below which an error is as good as none.
const SLACK: f64 = 0.001;

/// Requests with their recorded picks, to replay with some constants.
pub(super) struct Trial<'a> {
    observed: &'a [Observed],
    servers: &'a [Server],
    interconnect: &'a Interconnect,
    requests: Arc<Requests>,
    picks: Arc<[(usize, Option<usize>)]>,
    /// Mean tokens of a request's context.
    context: f64,
    /// Steps of engines so far.
    steps: Cell<u64>,
}

/// Differences of the times of a trial from measured ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Errors {
    /// Measured requests that were replayed.
    pub(super) replayed: u64,
    /// Replayed requests that the engines refused; the error of each is infinite.
    pub(super) refused: u64,
    /// Median error of the times to first tokens, as a share of the measured; `None` without an end.
    pub(super) ttft: Option<f64>,
    /// Median error of the times per output token, likewise.
    pub(super) tpot: Option<f64>,
}

impl Errors {
    /// Returns `true` if a median is above this, or has no end.
    pub(super) fn is_over(&self, most: f64) -> bool {
        let is_over = |error: Option<f64>| error.is_some_and(|error| error > most);
        self.refused * 2 > self.replayed || is_over(self.ttft) || is_over(self.tpot)
    }
}

/// The first requests of a part with so many tokens of prompts, and so many that were generated.
fn within(part: &[Observed], [prompts, outputs]: [f64; 2]) -> &[Observed] {
    let (mut computed, mut output) = (0.0, 0.0);
    let mut fits = |each: &Observed| {
        computed += each.computed;
        output += each.output;
        computed <= prompts && output <= outputs
    };
    let count = part.iter().take_while(|each| fits(each)).count();
    &part[..count.max(1).min(part.len())]
}

impl<'a> Trial<'a> {
    /// The busiest part of a recording.
    pub(super) fn of_window(
        observed: &'a Observations,
        servers: &'a [Server],
        interconnect: &'a Interconnect,
    ) -> Option<Self> {
        let all = &observed.all;
        let tokens_per_second = |part: &[Observed]| {
            let time = part.last().zip(part.first()).map_or(0.0, |(last, first)| last.sent - first.sent);
            part.iter().map(|each| each.output).sum::<f64>() / time.max(1e-3)
        };
        let starts = (0..=all.len().saturating_sub(WINDOW)).step_by(WINDOW / 4);
        let part = |start: usize| all.get(start..all.len().min(start + WINDOW)).unwrap_or_default();
        let busiest = starts
            .max_by(|one, other| tokens_per_second(part(*one)).total_cmp(&tokens_per_second(part(*other))))?;
        Self::new(within(part(busiest), WINDOW_TOKENS), observed.computed_context, servers, interconnect)
    }

    /// All of a recording, or the start of a long one.
    pub(super) fn of_all(
        observed: &'a Observations,
        servers: &'a [Server],
        interconnect: &'a Interconnect,
    ) -> Option<Self> {
        let all = &observed.all;
        let part = within(&all[..all.len().min(MOST)], MOST_TOKENS);
        Self::new(part, observed.computed_context, servers, interconnect)
    }

    fn new(
        observed: &'a [Observed],
        context: f64,
        servers: &'a [Server],
        interconnect: &'a Interconnect,
    ) -> Option<Self> {
        let start = observed.first()?.sent;
        let arrival = |(each, number): (&Observed, u64)| Arrival {
            at: Duration::try_from_secs_f64(each.sent - start).unwrap_or_default(),
            // A text of its own: what was cached isn't there to compute.
            prompt: [Piece { seed: number, tokens: each.computed as u32 }].into(),
            output_tokens: each.output as u32,
            ..Arrival::default()
        };
        let arrivals: Vec<Arrival> = observed.iter().zip(0..).map(arrival).collect();
        let pick = |each: &Observed| {
            (each.server, Some(each.computed_by).filter(|computed_by| *computed_by != each.server))
        };
        Some(Self {
            observed,
            servers,
            interconnect,
            requests: Arc::new(Requests::new(&arrivals, servers, true)),
            picks: observed.iter().map(pick).collect(),
            context,
            steps: Cell::new(0),
        })
    }

    fn run(&self, constants: &Constants, slower: &[f64]) -> Vec<RequestOutcome> {
        let mut servers = self.servers.to_vec();
        for (server, slower) in servers.iter_mut().zip(slower) {
            apply(server, constants, *slower, self.context);
            // Picks are recorded, so nobody asks who is there.
            (server.joins, server.leaves) = (Duration::ZERO, None);
            server.engine.max_waiting = MOST_WAITING;
        }
        let picker = Picker::recorded(Arc::clone(&self.picks));
        let delay = Duration::try_from_secs_f64(constants.delay_ms / 1e3).unwrap_or_default();
        let world = World::new(picker, &servers, self.interconnect.clone(), Arc::clone(&self.requests));
        let Ok(world) = world else { return Vec::new() };
        let outcomes = world.with_gateway_delay(delay).run(|| ());
        self.steps.set(self.steps.get() + outcomes.events.engine);
        outcomes.requests
    }

    /// Steps that engines have taken in all trials so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Measured and replayed times to first tokens, and per output token. Those of refused requests are endless.
    fn times(&self, constants: &Constants, slower: &[f64]) -> [Vec<(f64, f64)>; 2] {
        let outcomes = self.run(constants, slower);
        let (mut ttft, mut tpot) = (Vec::new(), Vec::new());
        for (position, each) in self.observed.iter().enumerate().filter(|(_, each)| each.is_measured) {
            let outcome = outcomes.get(position);
            let first =
                outcome.and_then(|outcome| outcome.first).map_or(f64::INFINITY, |first| first.as_secs_f64());
            ttft.push((each.ttft(), first));
            if let Some(measured) = each.tpot() {
                let replayed =
                    outcome.and_then(RequestOutcome::tpot).map_or(f64::INFINITY, |tpot| tpot.as_secs_f64());
                tpot.push((measured, replayed));
            }
        }
        [ttft, tpot]
    }

    /// Factors of servers that differ, by what is still missing of the times per output token there.
    fn factors(&self, constants: &Constants, slower: &[f64]) -> Vec<f64> {
        let outcomes = self.run(constants, slower);
        let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); slower.len()];
        for (each, outcome) in self.observed.iter().zip(&outcomes).filter(|(each, _)| each.is_measured) {
            if let Some((measured, replayed)) =
                each.tpot().zip(outcome.tpot()).filter(|(_, tpot)| !tpot.is_zero())
            {
                ratios[each.server].push(measured / replayed.as_secs_f64());
            }
        }
        let better = |(slower, ratios): (&f64, &mut Vec<f64>)| match median(ratios) {
            Some(ratio) if *slower != 1.0 => (slower * ratio).clamp(SLOWER[0], SLOWER[1]),
            _ => *slower,
        };
        slower.iter().zip(&mut ratios).map(better).collect()
    }

    /// Errors with these constants.
    pub(super) fn errors(&self, constants: &Constants, slower: &[f64]) -> Errors {
        let error = |(measured, replayed): &(f64, f64)| (replayed - measured).abs() / measured.max(1e-6);
        let times = self.times(constants, slower);
        let refused = times[0].iter().filter(|(_, replayed)| replayed.is_infinite()).count() as u64;
        let replayed = times[0].len() as u64;
        let [ttft, tpot] = times.map(|times| {
            median(&mut times.iter().map(error).collect::<Vec<_>>()).filter(|error| error.is_finite())
        });
        Errors { replayed, refused, ttft, tpot }
    }

    /// Sum of both mean errors, each of which counts as 1 at most.
    fn miss(&self, constants: &Constants, slower: &[f64]) -> f64 {
        let error = |(measured, replayed): &(f64, f64)| {
            if replayed.is_infinite() {
                return 1.0;
            }
            ((replayed - measured).abs() / (measured.max(*replayed) + SLACK)).min(1.0)
        };
        let mean = |times: &Vec<(f64, f64)>| times.iter().map(error).sum::<f64>() / times.len().max(1) as f64;
        self.times(constants, slower).iter().map(mean).sum()
    }
}

/// Directions in which constants change: powers of a step for the rate, the step, the factor and the delay. The delay is
/// the least certain at first; the last three are changes that nearly make up for each other.
const DIRECTIONS: [[i32; 4]; 7] =
    [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 3], [1, 0, 0, 6], [0, 1, -3, 0], [0, 1, 0, -6]];

/// Constants, changed by a step in a direction.
fn moved(constants: &Constants, direction: [i32; 4], step: f64, fixed: Fixed) -> Constants {
    let Constants { prefill_rate, decode_step_ms, batch_factor, delay_ms } = *constants;
    let is_fixed = [fixed.prefill_rate, fixed.decode_step, fixed.batch_factor, fixed.delay];
    let values = [prefill_rate, decode_step_ms, batch_factor, delay_ms];
    let [prefill_rate, decode_step_ms, batch_factor, delay_ms] =
        std::array::from_fn(
            |at| {
                if is_fixed[at] { values[at] } else { values[at] * step.powi(direction[at]) }
            },
        );
    Constants { prefill_rate, decode_step_ms, batch_factor, delay_ms }.in_range(fixed)
}

/// Improves the constants, and the factors of servers that differ, as long as that helps, and engines have taken fewer than
/// so many steps.
pub(super) fn refine(
    trial: &Trial<'_>,
    start: Constants,
    slower: &mut Vec<f64>,
    fixed: Fixed,
    most_steps: u64,
) -> Constants {
    let mut best = start;
    if !fixed.delay {
        best.delay_ms = best.delay_ms.max(LEAST_DELAY_MS);
    }
    let mut miss = trial.miss(&best, slower);
    for step in STEPS {
        for _ in 0..ROUNDS {
            let before = miss;
            for direction in DIRECTIONS {
                for step in [step, 1.0 / step] {
                    if trial.steps() >= most_steps {
                        return best;
                    }
                    let tried = moved(&best, direction, step, fixed);
                    let missed = if tried == best { miss } else { trial.miss(&tried, slower) };
                    if missed < miss {
                        (best, miss) = (tried, missed);
                        break;
                    }
                }
            }
            let tried = trial.factors(&best, slower);
            let missed = if tried == *slower { miss } else { trial.miss(&best, &tried) };
            if missed < miss {
                (*slower, miss) = (tried, missed);
            }
            if miss >= before {
                break;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::EngineConfig;

    fn observed(computed: f64, output: f64) -> Observed {
        Observed {
            server: 0,
            computed_by: 0,
            sent: 0.0,
            first: 1.0,
            last: 9.0,
            computed,
            output,
            is_measured: true,
        }
    }

    #[test]
    fn trial_tokens_are_bounded() {
        let part = [observed(100.0, 9.0), observed(1.0, 9.0), observed(1.0, 30.0)];
        for (most, count) in [([1e9, 1e9], 3), ([101.0, 1e9], 2), ([1e9, 18.0], 2), ([1.0, 1e9], 1)] {
            assert_eq!(within(&part, most).len(), count, "{most:?}");
        }
    }

    #[test]
    fn fit_stops_at_its_step_limit() {
        let all = vec![observed(100.0, 500.0); 60];
        let observations = Observations { all, servers: 1, context: 350.0, computed_context: 350.0 };
        let servers = Server::equal(1, &EngineConfig::default());
        let interconnect = Interconnect::default();
        let start = Constants { prefill_rate: 1e6, decode_step_ms: 0.1, batch_factor: 0.0, delay_ms: 0.0 };
        let steps = |most| {
            let trial = Trial::of_window(&observations, &servers, &interconnect).unwrap();
            refine(&trial, start, &mut vec![1.0], Fixed::default(), most);
            trial.steps()
        };
        let once = steps(1);
        assert!(once > 0 && (2000..2000 + 2 * once).contains(&steps(2000)), "{once}");
        assert!(steps(u64::MAX) > 10 * once);
    }
}
