//! Better constants, by replays of the recorded picks.

use std::sync::Arc;
use std::time::Duration;

use super::constants::{Constants, Fixed, apply, median};
use super::observe::{Observations, Observed};
use crate::replay::policy::Picker;
use crate::replay::requests::Requests;
use crate::replay::servers::Server;
use crate::replay::workload::{Arrival, Piece};
use crate::replay::world::{Fate, Interconnect, World};

/// Requests of a replay that is repeated for each trial.
const WINDOW: usize = 2000;

/// Requests of the replay that tells how good a fit is.
const MOST: usize = 50_000;

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
        Self::new(part(busiest), servers, interconnect)
    }

    /// All of a recording, or the start of a long one.
    pub(super) fn of_all(
        observed: &'a Observations,
        servers: &'a [Server],
        interconnect: &'a Interconnect,
    ) -> Option<Self> {
        let all = &observed.all;
        Self::new(all.get(..all.len().min(MOST))?, servers, interconnect)
    }

    fn new(observed: &'a [Observed], servers: &'a [Server], interconnect: &'a Interconnect) -> Option<Self> {
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
        })
    }

    fn run(&self, constants: &Constants, slower: &[f64]) -> Vec<Fate> {
        let mut servers = self.servers.to_vec();
        for (server, slower) in servers.iter_mut().zip(slower) {
            if server.engine.model == crate::sim::EngineModel::Linear {
                apply(server, constants, *slower);
            }
            // Picks are recorded, so nobody asks who is there.
            (server.joins, server.leaves) = (Duration::ZERO, None);
            server.engine.max_waiting = MOST_WAITING;
        }
        let picker = Picker::recorded(Arc::clone(&self.picks));
        let delay = Duration::try_from_secs_f64(constants.delay_ms / 1e3).unwrap_or_default();
        let world = World::new(picker, &servers, self.interconnect.clone(), Arc::clone(&self.requests));
        world.map_or_else(|_| Vec::new(), |world| world.with_gateway_delay(delay).run(|| ()).requests)
    }

    /// Measured and replayed times to first tokens, and per output token.
    fn times(&self, constants: &Constants, slower: &[f64]) -> [Vec<(f64, f64)>; 2] {
        let fates = self.run(constants, slower);
        let measured = self.observed.iter().zip(&fates).filter(|(each, _)| each.is_measured);
        let (mut ttft, mut tpot) = (Vec::new(), Vec::new());
        for (each, fate) in measured {
            let Some(first) = fate.first else { continue };
            ttft.push((each.ttft(), first.as_secs_f64()));
            if let Some((measured, replayed)) = each.tpot().zip(fate.tpot()) {
                tpot.push((measured, replayed.as_secs_f64()));
            }
        }
        [ttft, tpot]
    }

    /// Factors of servers that differ, by what is still missing of the times per output token there.
    fn factors(&self, constants: &Constants, slower: &[f64]) -> Vec<f64> {
        let fates = self.run(constants, slower);
        let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); slower.len()];
        for (each, fate) in self.observed.iter().zip(&fates).filter(|(each, _)| each.is_measured) {
            if let Some((measured, replayed)) =
                each.tpot().zip(fate.tpot()).filter(|(_, tpot)| !tpot.is_zero())
            {
                ratios[each.server].push(measured / replayed.as_secs_f64());
            }
        }
        let better = |(slower, ratios): (&f64, &mut Vec<f64>)| match median(ratios) {
            Some(ratio) if *slower != 1.0 => slower * ratio,
            _ => *slower,
        };
        slower.iter().zip(&mut ratios).map(better).collect()
    }

    /// Median errors of both, as shares of the measured times.
    pub(super) fn errors(&self, constants: &Constants, slower: &[f64]) -> [Option<f64>; 2] {
        let error = |(measured, replayed): &(f64, f64)| (replayed - measured).abs() / measured.max(1e-6);
        self.times(constants, slower).map(|times| median(&mut times.iter().map(error).collect::<Vec<_>>()))
    }

    /// Sum of both mean errors, each of which counts as 1 at most.
    fn miss(&self, constants: &Constants, slower: &[f64]) -> f64 {
        let error = |(measured, replayed): &(f64, f64)| {
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
    Constants { prefill_rate, decode_step_ms, batch_factor, delay_ms }
}

/// Improves the constants, and the factors of servers that differ, as long as that helps.
pub(super) fn refine(trial: &Trial<'_>, start: Constants, slower: &mut Vec<f64>, fixed: Fixed) -> Constants {
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
