//! A recording as requests to simulated servers.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use usher_core::random::mix;
use usher_core::recording::Ending;

use super::recorded::{Recorded, Recording};
use crate::replay::servers::Server;
use crate::replay::workload::{Arrival, LatencyClass, Piece};
use crate::replay::world::{RequestOutcome, RequestOutcomes};
use crate::sim::EngineConfig;

/// Endpoints that joined in this time were there from the start, as far as anybody knows.
const AT_START: Duration = Duration::from_secs(2);

impl Recording {
    /// The requests. Texts follow from the numbers of blocks and `salt`. Where it isn't known how much was generated (a
    /// refused request, one that was under way at the end, a response that the gateway didn't show) it is the median.
    pub fn arrivals(&self, salt: u64) -> Vec<Arrival> {
        let usual = self.median_output();
        let arrival = |(number, request): (u64, &Recorded)| {
            let is_partial = request.outcome.as_ref().is_some_and(|o| o.ending == Ending::UnderWay);
            let output = request.output_tokens().filter(|_| !is_partial).unwrap_or(usual);
            Arrival {
                at: request.at,
                prompt: pieces(request, salt, number),
                output_tokens: u32::try_from(output.max(1)).unwrap_or(u32::MAX),
                class: request.targets.map(|(ttft, tpot)| LatencyClass { ttft, tpot, is_named: true }),
                ..Arrival::default()
            }
        };
        (0..).zip(&self.requests).map(arrival).collect()
    }

    /// Servers like the endpoints, with this engine where these don't say.
    pub fn servers(&self, engine: &EngineConfig) -> Vec<Server> {
        let longest = self.requests.iter().map(|request| {
            let tokens = request.prompt_tokens + request.output_tokens().unwrap_or(0);
            u32::try_from(tokens).unwrap_or(u32::MAX).saturating_add(1)
        });
        let longest = longest.max().unwrap_or_default();
        let mut names: HashSet<String> = HashSet::new();
        let mut servers: Vec<Server> = Vec::with_capacity(self.members.len());
        for (member, number) in self.members.iter().zip(0u64..) {
            let mut name = member.name.clone();
            if names.contains(&name) {
                name = format!("{} ({})", member.name, member.address);
            }
            while !names.insert(name.clone()) {
                name.push('\'');
            }
            servers.push(Server {
                name,
                labels: member.labels.clone(),
                engine: EngineConfig {
                    block_size: member.block_size.unwrap_or(engine.block_size),
                    num_blocks: member.num_blocks.unwrap_or(engine.num_blocks),
                    max_model_len: engine.max_model_len.max(longest),
                    seed: engine.seed.wrapping_add(number),
                    ..engine.clone()
                },
                joins: if member.joined <= AT_START { Duration::ZERO } else { member.joined },
                leaves: member.left,
            });
        }
        servers
    }

    /// Outcomes that were measured, in the order of [`Self::arrivals`].
    pub fn outcomes(&self) -> RequestOutcomes {
        let mut refusals: BTreeMap<String, u64> = BTreeMap::new();
        let usual = self.median_output();
        let outcome = |request: &Recorded| {
            let outcome = request.outcome.as_ref().filter(|_| request.is_answered());
            let status =
                request.outcome.as_ref().and_then(|outcome| outcome.status).filter(|status| *status >= 400);
            let refused = match (request.refused, status) {
                (Some(status), _) => Some(format!("{status} by the picker")),
                (None, Some(status)) => Some(format!("{status} by the server")),
                (None, None) => None,
            };
            if let Some(text) = &refused {
                *refusals.entry(text.clone()).or_default() += 1;
            }
            let after = |us: u64| request.waited.saturating_add(Duration::from_micros(us));
            let output = request.output_tokens().unwrap_or(usual).max(1);
            let tokens = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
            RequestOutcome {
                arrived: request.at,
                server: request.server,
                prefiller: request.prefiller,
                computed_by: request.prefiller.or(request.server),
                first: outcome.and_then(|outcome| outcome.first_token_us).map(after),
                last: outcome.map(|outcome| after(outcome.total_us)),
                refused: refused.is_some(),
                prompt_tokens: tokens(request.prompt_tokens.max(1)),
                cached_tokens: tokens(request.cached_tokens().unwrap_or(0)),
                output_tokens: tokens(output),
                class: request.targets.map(|(ttft, tpot)| LatencyClass { ttft, tpot, is_named: true }),
            }
        };
        let requests = self.requests.iter().map(outcome).collect();
        RequestOutcomes { requests, refusals, ..RequestOutcomes::default() }
    }

    /// Median of generated tokens.
    fn median_output(&self) -> u64 {
        let mut outputs: Vec<u64> = self.requests.iter().filter_map(Recorded::output_tokens).collect();
        outputs.sort_unstable();
        outputs.get(outputs.len() / 2).copied().unwrap_or(1)
    }
}

/// Parts of a prompt.
fn pieces(request: &Recorded, salt: u64, number: u64) -> Box<[Piece]> {
    let mut left = request.prompt_tokens;
    let mut pieces = Vec::with_capacity(request.blocks.len() + 1);
    let run = mix(salt ^ mix(request.run as u64));
    for (first, count) in &request.blocks {
        let tokens = (u64::from(*count) * u64::from(request.block_tokens)).min(left);
        if tokens == 0 {
            break;
        }
        pieces.push(Piece { seed: mix(run ^ first), tokens: u32::try_from(tokens).unwrap_or(u32::MAX) });
        left -= tokens;
    }
    if left > 0 {
        // Beyond the blocks that are numbered.
        let seed = mix(run ^ mix(number).rotate_left(32));
        pieces.push(Piece { seed, tokens: u32::try_from(left).unwrap_or(u32::MAX) });
    }
    pieces.into()
}
