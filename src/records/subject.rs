//! A decision, as its thread knows it.

use std::time::Instant;

use usher_core::endpoints::Candidates;
use usher_core::request::Request;
use usher_plugin::data::{KvEventsMatch, PrefixMatch};

use super::trace::Trace;

/// Characters of a model's name that are kept.
pub(super) const MODEL: usize = 128;

/// A decision, as its thread knows it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The request.
    pub request: &'a Request,
    /// Endpoints that it might go to.
    pub candidates: &'a Candidates,
    /// Part of its prompt in each endpoint's cache, where a plugin knows it.
    pub prefix: Option<&'a PrefixMatch>,
    /// Part of its prompt in each endpoint's cache by KV events, where a plugin subscribes to them.
    pub kv_events: Option<&'a KvEventsMatch>,
    /// Tokens of its prompt, where a plugin counts them.
    pub input_tokens: Option<u64>,
    /// Numbers of its profiles.
    pub trace: &'a Trace,
    /// Now, on the clock of the readings.
    pub now_ms: u64,
    /// Now.
    pub at: Instant,
}

impl<'a> Subject<'a> {
    /// A request of whose prompt nothing is known.
    pub fn new(
        request: &'a Request,
        candidates: &'a Candidates,
        trace: &'a Trace,
        now_ms: u64,
        at: Instant,
    ) -> Self {
        Self { request, candidates, prefix: None, kv_events: None, input_tokens: None, trace, now_ms, at }
    }
}
