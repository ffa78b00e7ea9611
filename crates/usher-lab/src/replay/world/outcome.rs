//! Outcomes of requests.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::replay::scale::Fleet;
use crate::replay::workload::LatencyClass;
use usher_plugins::latency::Report;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOutcome {
    /// Time at which it came.
    pub arrived: Duration,
    /// Number of the server that it was sent to; `None` if the picker refused it.
    pub server: Option<usize>,
    /// Server that was to compute its prompt, if another one than `server`.
    pub prefiller: Option<usize>,
    /// Server that computed its prompt, or was to if none did.
    pub computed_by: Option<usize>,
    /// From its arrival to its first token.
    pub first: Option<Duration>,
    /// From its arrival to its last token.
    pub last: Option<Duration>,
    /// `true` if the picker or the server refused it.
    pub refused: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache had of who computed the others.
    pub cached_tokens: u32,
    /// Tokens of the response.
    pub output_tokens: u32,
    /// Own limits, if it has some.
    pub class: Option<LatencyClass>,
}

/// Numbers of events: what a replay costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Events {
    /// Servers' numbers were read.
    pub scrapes: u64,
    /// A server's engine finished a step, or began its first after a pause.
    pub engine: u64,
}

/// Outcomes of all requests of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOutcomes {
    /// By position.
    pub requests: Vec<RequestOutcome>,
    /// Refusals by what was said.
    pub refusals: BTreeMap<String, u64>,
    /// Events that it took.
    pub events: Events,
    /// Servers that came and went, with their cost; `None` in a world without scaling.
    pub(in crate::replay) fleet: Option<Fleet>,
    /// Times that a policy learned and predicted, if it did.
    pub latency: Option<Report>,
}
