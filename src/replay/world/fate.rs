//! What became of requests.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::replay::scale::Fleet;
use crate::replay::workload::LatencyClass;
use crate::schedule::latency::Report;

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::replay) struct Fate {
    /// When it came.
    pub(in crate::replay) arrived: Duration,
    /// Where it was sent; `None`: nowhere.
    pub(in crate::replay) server: Option<usize>,
    /// Who was to compute its prompt, if somebody else.
    pub(in crate::replay) prefiller: Option<usize>,
    /// Who did, or was to if nobody did.
    pub(in crate::replay) computed_by: Option<usize>,
    /// From its arrival to its first token.
    pub(in crate::replay) first: Option<Duration>,
    /// From its arrival to its last token.
    pub(in crate::replay) last: Option<Duration>,
    /// It was refused, by the picker or by the server.
    pub(in crate::replay) refused: bool,
    pub(in crate::replay) prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache had of who computed the others.
    pub(in crate::replay) cached_tokens: u32,
    pub(in crate::replay) output_tokens: u32,
    /// Its own limits, if it has some.
    pub(in crate::replay) class: Option<LatencyClass>,
}

/// How many events there were: what a replay costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Events {
    /// Servers' numbers were read.
    pub scrapes: u64,
    /// A server's engine finished a step, or began its first after a pause.
    pub engine: u64,
}

/// What became of all requests of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::replay) struct Fates {
    /// By position.
    pub(in crate::replay) requests: Vec<Fate>,
    /// Refusals by what was said.
    pub(in crate::replay) refusals: BTreeMap<String, u64>,
    pub(in crate::replay) events: Events,
    /// What the servers cost that came and went.
    pub(in crate::replay) fleet: Option<Fleet>,
    /// Times that a policy learned and predicted, if it did.
    pub(in crate::replay) latency: Option<Report>,
}
