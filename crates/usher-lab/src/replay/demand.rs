//! Demand of requests on servers if prefix caches are as good as they can be: the measure of
//! how busy a suite's servers are, in which no policy has a part.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::servers::Server;
use super::workload::{Arrival, Piece};
use usher_core::random::mix;

/// Seconds of a step and tokens per second of prompts that users' waiting is estimated
/// with: how many requests a user makes depends on how long responses take.
const STEP: f64 = 0.025;
const RATE: f64 = 15_000.0;

/// Mean lengths of requests, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Demand {
    /// Tokens of a prompt that are not in a cache.
    pub(super) computed: f64,
    /// Tokens of a prompt.
    pub(super) prompt: f64,
    /// Tokens of a response.
    pub(super) output: f64,
}

impl Demand {
    /// The demand of these requests if one cache of so many tokens, least recently used out
    /// first, had all that was asked and answered before.
    pub(super) fn of(arrivals: &[Arrival], cache: f64) -> Self {
        let mut known = Recent::default();
        let (mut computed, mut prompt, mut output) = (0.0, 0.0, 0.0);
        for arrival in arrivals {
            let mut chain = 0;
            let mut missing = false;
            for piece in arrival.prompt.iter().copied().chain(arrival.response()) {
                chain = next(chain, piece);
                missing |= !known.touch(chain, f64::from(piece.tokens));
                computed += if missing { f64::from(piece.tokens) } else { 0.0 };
            }
            // The response isn't part of what has to be computed of a prompt.
            computed -= arrival.response().filter(|_| missing).map_or(0.0, |piece| f64::from(piece.tokens));
            known.evict(cache);
            prompt += f64::from(arrival.prompt_tokens());
            output += f64::from(arrival.output_tokens);
        }
        let count = arrivals.len().max(1) as f64;
        Self { computed: computed / count, prompt: prompt / count, output: output / count }
    }

    /// Requests per second that the servers can answer.
    pub(super) fn capacity(&self, servers: &[Server]) -> f64 {
        let work = |server: &Server| server.engine.work(self.computed, self.prompt, self.output);
        servers.iter().map(|server| 1.0 / work(server)).sum()
    }
}

fn next(chain: u64, piece: Piece) -> u64 {
    mix(chain ^ mix(piece.seed).wrapping_add(piece.tokens.into()))
}

/// Beginnings of prompts by when they were used last.
#[derive(Default)]
struct Recent {
    used: HashMap<u64, (u64, f64)>,
    order: BTreeMap<u64, u64>,
    tokens: f64,
    time: u64,
}

impl Recent {
    /// Uses a piece. Says whether it was there.
    fn touch(&mut self, chain: u64, tokens: f64) -> bool {
        self.time += 1;
        self.order.insert(self.time, chain);
        match self.used.insert(chain, (self.time, tokens)) {
            Some((before, _)) => {
                self.order.remove(&before);
                true
            }
            None => {
                self.tokens += tokens;
                false
            }
        }
    }

    fn evict(&mut self, limit: f64) {
        while self.tokens > limit
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.tokens -= self.used.remove(&oldest).map_or(0.0, |(_, tokens)| tokens);
        }
    }
}

/// Requests per second of one user, where servers have little to do.
pub(super) fn rate_of_user(arrivals: &[Arrival], users: usize) -> f64 {
    let mut ends: Vec<Duration> = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        let after = arrival.after.iter().filter_map(|before| ends.get(*before as usize)).max();
        let takes = f64::from(arrival.prompt_tokens()) / RATE + f64::from(arrival.output_tokens) * STEP;
        let takes = Duration::try_from_secs_f64(takes).unwrap_or_default();
        ends.push(after.copied().unwrap_or_default().saturating_add(arrival.at).saturating_add(takes));
    }
    let span = ends.iter().max().map_or(0.0, Duration::as_secs_f64);
    if span > 0.0 { arrivals.len() as f64 / span / users.max(1) as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(seeds: &[u64], output: u32, response: Option<u64>) -> Arrival {
        let prompt = seeds.iter().map(|&seed| Piece { seed, tokens: 100 }).collect();
        Arrival { prompt, output_tokens: output, response, ..Arrival::default() }
    }

    #[test]
    fn repeated_prompts_and_responses_are_not_computed_again() {
        let response = Piece { seed: 9, tokens: 50 };
        let mut third = arrival(&[1, 2], 50, None);
        third.prompt = third.prompt.iter().copied().chain([response]).collect();
        let arrivals =
            [arrival(&[1, 2], 50, Some(9)), arrival(&[1, 3], 50, None), third, arrival(&[3, 1], 50, None)];
        let demand = Demand::of(&arrivals, 1e6);
        assert_eq!((demand.computed, demand.output), ((200.0 + 100.0 + 0.0 + 200.0) / 4.0, 50.0));
        // A cache of 150 tokens keeps little.
        assert!(Demand::of(&arrivals, 150.0).computed > demand.computed);
        assert_eq!(Demand::of(&arrivals, 0.0).computed, demand.prompt);
    }

    #[test]
    fn a_user_waits_for_responses_and_thinks() {
        let first = arrival(&[1], 40, None);
        let second = Arrival { at: Duration::from_secs(2), after: [0].into(), ..arrival(&[2], 40, None) };
        let rate = rate_of_user(&[first, second], 1);
        assert!((rate - 2.0 / (2.0 + 2.0 * (1.0 + 100.0 / RATE))).abs() < 1e-6, "{rate}");
    }
}
