//! A request in an engine, and how far it is.

use std::time::Duration;

use super::request::SimRequest;
use crate::sim::kv::Lease;

/// A request in an engine.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: SimRequest,
    // Requests that came before it.
    pub(super) number: u64,
    pub(super) arrived: Duration,
    // Set at the first admission and kept through preemptions, as vLLM reports them.
    pub(super) admitted: Option<(Duration, u32)>,
    pub(super) first_token: Duration,
    pub(super) last_token: Duration,
    pub(super) lease: Lease,
    // Tokens whose keys and values are in the cache.
    pub(super) computed: u32,
    pub(super) generated: u32,
    // Tokens that the step in progress computes.
    pub(super) planned: u32,
    // Full blocks that are known by their hash, or need not be.
    pub(super) published: usize,
    // Tokens up to which it needs no further block, and none of its blocks becomes full.
    pub(super) ready_for: u32,
    // The prompt came from another engine, and was not lost since.
    pub(super) received: bool,
}

impl Job {
    pub(super) fn length(&self) -> u32 {
        self.request.prompt_tokens + self.generated
    }

    // The hashes of the blocks that need not be computed if they are cached. The last
    // token is always computed: the next one comes from it.
    pub(super) fn reusable(&self, block_size: u32) -> &[u64] {
        let full = ((self.length() - 1) / block_size) as usize;
        &self.request.blocks[..full.min(self.request.blocks.len())]
    }

    // Whether its next token is all that it needs, its prompt being complete.
    pub(super) fn decodes(&self) -> bool {
        self.length() - self.computed == 1 && (self.generated > 0 || self.received)
    }
}
