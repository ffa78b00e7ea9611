//! Independent requests.

use std::time::Duration;

use super::kinds::Workload;
use super::shared::{SHARED, shared};
use crate::replay::draw::Draw;
use crate::replay::workload::{Arrival, Piece};

/// Requests of a burst.
pub(super) const BURST: usize = 64;
/// Tokens of each of them.
const BURST_TOKENS: u32 = 1024;
/// Groups of prompts that share their first half: more than one server's cache holds, and
/// fewer than those of eight.
const GROUPS: u64 = 400;
/// Tokens of the system prompt that all share.
const SYSTEM_TOKENS: u32 = 128;
/// System prompts where there are several, and their tokens.
const SYSTEMS: (u64, u32) = (20, 1000);
/// Tokens of the system prompt that all long responses share.
const LONG_SYSTEM_TOKENS: u32 = 2000;
/// Documents that are asked about, and how much less often each is than the one before.
const DOCUMENTS: (u64, f64) = (900, 0.6);
/// Tokens of a question about a document.
const QUESTION_TOKENS: u32 = 64;

/// Streams of random numbers, so that a change to one thing doesn't change the others.
const TIMES: u64 = 1;
const PROMPTS: u64 = 2;
const OUTPUTS: u64 = 3;

/// Generates requests, about one per second, in order of arrival.
pub(super) fn arrivals(workload: Workload, count: usize, seed: u64) -> Vec<Arrival> {
    let mut times = Times { draw: Draw::new(seed, TIMES), now: 0.0 };
    let mut prompts = Prompts { draw: Draw::new(seed, PROMPTS), seed };
    let mut outputs = Draw::new(seed, OUTPUTS);
    let mut output = || match workload {
        Workload::LongAnswers => outputs.length(800.0, 0.4, (300, 2000)),
        Workload::Reasoning => outputs.length(2000.0, 0.6, (500, 8000)),
        _ => outputs.length(150.0, 0.8, (1, 1000)),
    };
    let arrival = |index: usize| Arrival {
        at: Duration::try_from_secs_f64(times.next(workload, index)).unwrap_or(Duration::MAX),
        prompt: prompts.next(workload, index),
        output_tokens: output(),
        ..Arrival::default()
    };
    (0..count).map(arrival).collect()
}

struct Times {
    draw: Draw,
    now: f64,
}

impl Times {
    fn next(&mut self, workload: Workload, index: usize) -> f64 {
        if index > 0 {
            self.now += match workload {
                Workload::Bursts | Workload::DistinctBursts if !index.is_multiple_of(BURST) => 0.0,
                Workload::Bursts | Workload::DistinctBursts => BURST as f64 * (0.75 + 0.5 * self.draw.unit()),
                _ => self.draw.exponential(),
            };
        }
        self.now
    }
}

struct Prompts {
    draw: Draw,
    seed: u64,
}

impl Prompts {
    fn next(&mut self, workload: Workload, index: usize) -> Box<[Piece]> {
        match workload {
            Workload::Bursts => [self.shared((index / BURST) as u64, BURST_TOKENS)].into(),
            Workload::DistinctBursts => [self.own(BURST_TOKENS)].into(),
            Workload::HalfShared => {
                let group = self.draw.below(GROUPS);
                let half = Draw::new(self.seed, SHARED + group).length(1000.0, 0.5, (128, 8000));
                [self.shared(group, half), self.own(half)].into()
            }
            Workload::SlowServer => {
                let system = self.draw.below(SYSTEMS.0);
                [self.shared(system, SYSTEMS.1), self.own_length(1000.0, 1.0, (16, 16_000))].into()
            }
            Workload::LongAnswers => {
                let own = self.own_length(100.0, 0.6, (32, 400));
                [self.shared(0, LONG_SYSTEM_TOKENS), own].into()
            }
            Workload::Reasoning => [self.own_length(300.0, 0.7, (64, 2000))].into(),
            Workload::Documents => {
                let document = self.document();
                let tokens = Draw::new(self.seed, SHARED + document).length(7000.0, 0.3, (4000, 12_000));
                [self.shared(document, tokens), self.own(QUESTION_TOKENS)].into()
            }
            _ => [self.shared(0, SYSTEM_TOKENS), self.own_length(1000.0, 1.0, (16, 16_000))].into(),
        }
    }

    /// The inverse of the distribution of continuous numbers with the density `n^-s`.
    fn document(&mut self) -> u64 {
        let (count, s) = DOCUMENTS;
        let number = (count as f64).powf(1.0 - s) * self.draw.unit();
        (number.powf(1.0 / (1.0 - s)) as u64).min(count - 1)
    }

    fn shared(&self, number: u64, tokens: u32) -> Piece {
        shared(self.seed, number, tokens)
    }

    fn own(&mut self, tokens: u32) -> Piece {
        Piece { seed: self.draw.number(), tokens }
    }

    fn own_length(&mut self, median: f64, sigma: f64, bounds: (u32, u32)) -> Piece {
        let tokens = self.draw.length(median, sigma, bounds);
        self.own(tokens)
    }
}
