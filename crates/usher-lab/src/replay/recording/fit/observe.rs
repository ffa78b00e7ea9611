//! Times of a recording, in seconds since its first request.

use std::collections::HashSet;

use crate::replay::recording::recorded::{Recorded, Recording};

/// A request that a server worked on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed {
    /// Server that responded.
    pub(super) server: usize,
    /// Server that computed the prompt.
    pub(super) computed_by: usize,
    /// Time of the decision.
    pub(super) sent: f64,
    /// Time of the first token, as far as it is known or looks.
    pub(super) first: f64,
    /// Time of the end.
    pub(super) last: f64,
    /// Prompt tokens that were computed.
    pub(super) computed: f64,
    /// Generated tokens.
    pub(super) output: f64,
    /// Both times were measured, of a complete response.
    pub(super) is_measured: bool,
}

impl Observed {
    /// Seconds to the first token.
    pub(super) fn ttft(&self) -> f64 {
        self.first - self.sent
    }

    /// Seconds per output token after the first, of responses long enough to measure.
    pub(super) fn tpot(&self) -> Option<f64> {
        (self.output >= 4.0).then(|| (self.last - self.first) / (self.output - 1.0))
    }
}

/// Requests that servers worked on, by decision.
#[derive(Debug)]
pub(super) struct Observations {
    pub(super) all: Vec<Observed>,
    pub(super) servers: usize,
    /// Mean tokens of a request's context while it decodes, at least 1.
    pub(super) context: f64,
    /// The same without prompt tokens that were cached, which replays of the recorded picks don't have.
    pub(super) computed_context: f64,
}

impl Observations {
    /// Requests with measured times.
    pub(super) fn usable(&self) -> impl Iterator<Item = &Observed> {
        self.all.iter().filter(|observed| observed.is_measured)
    }
}

/// Requests of a recording that servers worked on. Where a server doesn't say what it found in its cache, that are the
/// blocks that it was sent before.
pub(super) fn observe(recording: &Recording) -> Observations {
    let mut sent: HashSet<(usize, usize, u64)> = HashSet::new();
    let mut all = Vec::with_capacity(recording.requests.len());
    let (mut tokens, mut computed_tokens, mut steps) = (0.0, 0.0, 0.0);
    for request in &recording.requests {
        let Some((server, outcome)) = request.server.zip(request.outcome.as_ref()) else { continue };
        let computed_by = request.prefiller.unwrap_or(server);
        let known = known_tokens(request, computed_by, &mut sent);
        let cached = request.cached_tokens().unwrap_or(known);
        let at = (request.at + request.waited).as_secs_f64();
        let last = at + outcome.total_us as f64 / 1e6;
        let first = outcome.first_token_us.map(|us| at + us as f64 / 1e6);
        let output = request.output_tokens();
        let is_measured = request.is_answered() && first.is_some() && output.is_some_and(|tokens| tokens > 1);
        if !request.is_answered() && first.is_none() {
            // Refused by the server, or cut off before anything came.
            continue;
        }
        let computed = request.prompt_tokens.saturating_sub(cached).max(1) as f64;
        let output = output.unwrap_or(1).max(1) as f64;
        // Contexts count once per step that reads them.
        steps += output;
        tokens += output * (request.prompt_tokens as f64 + output / 2.0);
        computed_tokens += output * (computed + output / 2.0);
        all.push(Observed {
            server,
            computed_by,
            sent: at,
            first: first.unwrap_or(at).min(last),
            last,
            computed,
            output,
            is_measured,
        });
    }
    all.sort_by(|one, other| one.sent.total_cmp(&other.sent));
    let mean = |tokens: f64| if steps > 0.0 { (tokens / steps).max(1.0) } else { 1.0 };
    Observations {
        all,
        servers: recording.members.len(),
        context: mean(tokens),
        computed_context: mean(computed_tokens),
    }
}

/// Tokens of a prompt whose blocks a server was sent before; notes that it is sent all of them.
fn known_tokens(request: &Recorded, server: usize, sent: &mut HashSet<(usize, usize, u64)>) -> u64 {
    let mut known = 0;
    let mut is_prefix = true;
    for (first, count) in &request.blocks {
        // Parts of prompts are the same or apart, so the first block stands for all.
        let is_new = sent.insert((server, request.run, *first));
        is_prefix &= !is_new;
        known += if is_prefix { u64::from(*count) } else { 0 };
    }
    (known * u64::from(request.block_tokens)).min(request.prompt_tokens)
}
