//! Users who wait for responses: conversations and agents. What was asked and answered before
//! is the beginning of the next prompt.

use std::time::Duration;

use super::shared::shared;
use crate::replay::draw::Draw;
use crate::replay::workload::{Arrival, Piece};

/// System prompts of conversations.
const SYSTEMS: u64 = 8;
/// Seconds between a response and the next turn, on average, and between conversations.
pub(in crate::replay) const THINKS: f64 = 8.0;
/// Tokens of the system prompt of agents.
const AGENT_SYSTEM: u32 = 3000;
/// Seconds that a tool takes on average.
pub(in crate::replay) const TOOL: f64 = 1.0;
/// Number of the agents' system prompt; those of conversations come before it.
const AGENT: u64 = SYSTEMS;

/// Requests of users, each of whom begins a session when the last one has ended.
struct Users {
    arrivals: Vec<Arrival>,
    /// The last requests of each user's session.
    last: Vec<Box<[u32]>>,
    seed: u64,
}

impl Users {
    /// Lets users begin sessions in turns until there are so many requests.
    fn run(
        count: usize,
        users: usize,
        seed: u64,
        mut session: impl FnMut(&mut Self, Draw, Start) -> Box<[u32]>,
    ) -> Vec<Arrival> {
        let users = users.max(1);
        let mut all = Self { arrivals: Vec::with_capacity(count), last: vec![Box::default(); users], seed };
        let mut number = 0;
        while all.arrivals.len() < count {
            let user = number % users;
            let mut draw = Draw::new(seed, 1 << 16 | number as u64);
            let pause = match number < users {
                // Not all at once.
                true => seconds(draw.unit() * THINKS),
                false => seconds(draw.exponential() * THINKS),
            };
            let start = Start { pause, after: std::mem::take(&mut all.last[user]) };
            all.last[user] = session(&mut all, draw, start);
            number += 1;
        }
        all.arrivals.truncate(count);
        all.arrivals
    }

    /// Adds a request. Returns its number, and its prompt with its response.
    fn ask(
        &mut self,
        draw: &mut Draw,
        start: Start,
        prompt: Vec<Piece>,
        output_tokens: u32,
    ) -> (u32, Vec<Piece>) {
        let number = self.arrivals.len() as u32;
        let arrival = Arrival {
            at: start.pause,
            after: start.after,
            prompt: prompt.into(),
            output_tokens,
            response: Some(draw.number()),
            class: None,
        };
        let whole = arrival.prompt.iter().copied().chain(arrival.response()).collect();
        self.arrivals.push(arrival);
        (number, whole)
    }
}

/// Start of a request.
struct Start {
    pause: Duration,
    after: Box<[u32]>,
}

impl Start {
    fn after(number: u32, pause: f64) -> Self {
        Self { pause: seconds(pause), after: [number].into() }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

fn own(draw: &mut Draw, median: f64, sigma: f64, bounds: (u32, u32)) -> Piece {
    Piece { seed: draw.number(), tokens: draw.length(median, sigma, bounds) }
}

/// See [`Workload::Conversations`](super::Workload::Conversations).
pub(super) fn conversations(count: usize, users: usize, seed: u64) -> Vec<Arrival> {
    Users::run(count, users, seed, |all, mut draw, mut start| {
        let system = draw.below(SYSTEMS);
        let length = Draw::new(all.seed, system).length(1500.0, 0.6, (500, 4000));
        let mut prompt = vec![shared(all.seed, system, length)];
        let turns = 2 + draw.below(11);
        let mut last = 0;
        for turn in 0..turns {
            if turn > 0 {
                start = Start::after(last, draw.exponential() * THINKS);
            }
            prompt.push(own(&mut draw, 200.0, 0.9, (16, 4000)));
            let output = draw.length(250.0, 0.7, (16, 1500));
            let asked = std::mem::replace(&mut start, Start::after(0, 0.0));
            (last, prompt) = all.ask(&mut draw, asked, prompt, output);
        }
        [last].into()
    })
}

/// See [`Workload::Agents`](super::Workload::Agents).
pub(super) fn agents(count: usize, users: usize, seed: u64) -> Vec<Arrival> {
    Users::run(count, users, seed, |all, mut draw, start| {
        let output = |draw: &mut Draw| draw.length(100.0, 0.7, (16, 600));
        let task = own(&mut draw, 300.0, 0.6, (64, 2000));
        let response = output(&mut draw);
        let (plan, context) =
            all.ask(&mut draw, start, vec![shared(all.seed, AGENT, AGENT_SYSTEM), task], response);
        let mut ends = Vec::new();
        let mut reports = Vec::new();
        for _ in 0..2 + draw.below(3) {
            let (mut last, mut prompt) = (plan, context.clone());
            for _ in 0..2 + draw.below(4) {
                prompt.push(own(&mut draw, 600.0, 0.9, (100, 4000)));
                let (start, response) = (Start::after(last, draw.exponential() * TOOL), output(&mut draw));
                (last, prompt) = all.ask(&mut draw, start, prompt, response);
            }
            reports.extend(prompt.last().copied());
            ends.push(last);
        }
        let start = Start { pause: seconds(draw.exponential() * TOOL), after: ends.into() };
        let (prompt, response) = (context.into_iter().chain(reports).collect(), output(&mut draw));
        let (summary, _) = all.ask(&mut draw, start, prompt, response);
        [summary].into()
    })
}
