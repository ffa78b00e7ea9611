//! Workloads that nobody recorded, each for one thing that a policy can get wrong.
//!
//! Their times are relative: [`utilize`](super::workload::utilize) says how fast requests
//! come. Lengths are log-normal, as those of real traces nearly are, and have bounds.

use std::time::Duration;

use super::draw::Draw;
use super::workload::{Arrival, Piece};
use crate::sim::mix;

/// A workload that follows from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Independent requests that share a system prompt of 128 tokens and nothing else. Of
    /// their own they have 16 to 16,000 tokens, median 1,000.
    Poisson,
    /// 64 times the same prompt of 1,024 tokens, all at the same moment; the next 64, of
    /// another prompt, after 0.75 to 1.25 times the mean time.
    Bursts,
    /// Independent requests of 400 groups. A prompt's first half is that of its group, 128
    /// to 8,000 tokens, median 1,000; the second half, as long, is its own.
    HalfShared,
    /// Independent requests with one of 20 system prompts of 1,000 tokens, and 16 to
    /// 16,000 tokens of their own, median 1,000. For servers of which one is slow.
    SlowServer,
}

/// Requests of a burst.
const BURST: usize = 64;
/// Tokens of each of them.
const BURST_TOKENS: u32 = 1024;
/// Groups of prompts that share their first half: more than one server's cache holds, and
/// fewer than those of eight.
const GROUPS: u64 = 400;
/// Tokens of the system prompt that all share.
const SYSTEM_TOKENS: u32 = 128;
/// System prompts where there are several, and their tokens.
const SYSTEMS: (u64, u32) = (20, 1000);

/// Streams of random numbers, so that a change to one thing doesn't change the others.
const TIMES: u64 = 1;
const PROMPTS: u64 = 2;
const OUTPUTS: u64 = 3;
/// Seeds of shared texts begin here; those of own texts are drawn.
const SHARED: u64 = 1 << 32;

impl Workload {
    /// So many requests, about one per second, in order of arrival.
    pub fn arrivals(self, count: usize, seed: u64) -> Vec<Arrival> {
        let mut times = Times { draw: Draw::new(seed, TIMES), now: 0.0 };
        let mut prompts = Prompts { draw: Draw::new(seed, PROMPTS), seed };
        let mut outputs = Draw::new(seed, OUTPUTS);
        let arrival = |index: usize| Arrival {
            at: Duration::try_from_secs_f64(times.next(self, index)).unwrap_or(Duration::MAX),
            prompt: prompts.next(self, index),
            output_tokens: outputs.length(150.0, 0.8, (1, 1000)),
        };
        (0..count).map(arrival).collect()
    }
}

struct Times {
    draw: Draw,
    now: f64,
}

impl Times {
    fn next(&mut self, workload: Workload, index: usize) -> f64 {
        if index > 0 {
            self.now += match workload {
                Workload::Bursts if !index.is_multiple_of(BURST) => 0.0,
                Workload::Bursts => BURST as f64 * (0.75 + 0.5 * self.draw.unit()),
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
            Workload::Poisson => [self.shared(0, SYSTEM_TOKENS), self.own_length()].into(),
            Workload::Bursts => [self.shared((index / BURST) as u64, BURST_TOKENS)].into(),
            Workload::HalfShared => {
                let group = self.draw.below(GROUPS);
                let half = Draw::new(self.seed, SHARED + group).length(1000.0, 0.5, (128, 8000));
                [self.shared(group, half), self.own(half)].into()
            }
            Workload::SlowServer => {
                let system = self.draw.below(SYSTEMS.0);
                [self.shared(system, SYSTEMS.1), self.own_length()].into()
            }
        }
    }

    fn shared(&self, number: u64, tokens: u32) -> Piece {
        Piece { seed: mix(self.seed) ^ mix(SHARED + number), tokens }
    }

    fn own(&mut self, tokens: u32) -> Piece {
        Piece { seed: self.draw.number(), tokens }
    }

    fn own_length(&mut self) -> Piece {
        let tokens = self.draw.length(1000.0, 1.0, (16, 16_000));
        self.own(tokens)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    const ALL: [Workload; 4] =
        [Workload::Poisson, Workload::Bursts, Workload::HalfShared, Workload::SlowServer];

    fn firsts(arrivals: &[Arrival]) -> HashMap<Piece, usize> {
        let mut counts = HashMap::new();
        for arrival in arrivals {
            *counts.entry(arrival.prompt[0]).or_default() += 1;
        }
        counts
    }

    #[test]
    fn a_seed_gives_one_workload_about_one_request_a_second() {
        for workload in ALL {
            let arrivals = workload.arrivals(6400, 3);
            assert_eq!(arrivals, workload.arrivals(6400, 3), "{workload:?}");
            assert_eq!(arrivals[..100], workload.arrivals(100, 3), "a shorter one is its start");
            assert_ne!(arrivals, workload.arrivals(6400, 4), "{workload:?}");
            assert!(arrivals.is_sorted_by_key(|arrival| arrival.at), "{workload:?}");
            let span = arrivals[6399].at.as_secs_f64();
            assert!((span / 6400.0 - 1.0).abs() < 0.05, "{workload:?} {span}");
            assert!(arrivals.iter().all(|arrival| (1..=1000).contains(&arrival.output_tokens)));
            let own: HashSet<u64> = arrivals.iter().map(|a| a.prompt.last().unwrap().seed).collect();
            let distinct = if workload == Workload::Bursts { 6400 / BURST } else { 6400 };
            assert_eq!(own.len(), distinct, "{workload:?}: what a prompt has of its own");
        }
    }

    #[test]
    fn prompts_share_what_they_should() {
        let shared = |workload: Workload| firsts(&workload.arrivals(4000, 0));
        assert_eq!(shared(Workload::Poisson).len(), 1);
        assert!(firsts(&Workload::Bursts.arrivals(6400, 0)).values().all(|count| *count == BURST));
        let systems = shared(Workload::SlowServer);
        assert_eq!(systems.len(), 20);
        assert!(systems.iter().all(|(piece, count)| piece.tokens == 1000 && (120..280).contains(count)));
        let groups = shared(Workload::HalfShared);
        assert_eq!(groups.len(), 400);
        for arrival in Workload::HalfShared.arrivals(100, 0) {
            assert_eq!(arrival.prompt[0].tokens, arrival.prompt[1].tokens);
        }
    }

    #[test]
    fn a_burst_is_sixty_four_at_one_moment() {
        let arrivals = Workload::Bursts.arrivals(192, 1);
        let bursts: Vec<&[Arrival]> = arrivals.chunk_by(|a, b| a.at == b.at).collect();
        assert_eq!(bursts.iter().map(|burst| burst.len()).collect::<Vec<_>>(), [64, 64, 64]);
        assert!(arrivals.iter().all(|arrival| arrival.prompt_tokens() == 1024));
    }
}
