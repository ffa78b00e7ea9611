//! Input and output of an engine: requests, and the tokens that it generates.

use std::sync::Arc;
use std::time::Duration;

use crate::sim::link::Transfer;

/// Reason for the end of a request after its last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// By itself.
    Stop,
    /// At the limit that the client set.
    Length,
}

/// Part of a request that an engine has to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// All of it.
    #[default]
    Whole,
    /// The prompt only, for another engine that decodes: it ends with its first token,
    /// whatever `output_tokens` says. Its blocks stay in the prefix cache as any do.
    Prefill,
    /// Everything after the prompt, which another engine has computed by the time that this
    /// request arrives. Keys and values come over this link before it enters the batch, but
    /// for those that are in the prefix cache here.
    Decode(Transfer),
}

/// A request for tokens.
#[derive(Debug, Clone)]
pub struct SimRequest {
    /// Chosen by the caller, unique among the requests in the engine.
    pub id: u64,
    /// Length of the prompt in tokens; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Chained hashes of the full blocks of `block_size` tokens of the prompt, or of the
    /// prompt followed by the response; see [`block_hashes`](crate::sim::block_hashes). Blocks
    /// without a hash are not shared. The engine knows a response's blocks from when they are
    /// generated.
    pub blocks: Vec<u64>,
    /// Number of tokens to generate; 0 counts as 1.
    pub output_tokens: u32,
    /// Reason for its end after these.
    pub finish: Finish,
    /// The LoRA adapter, if any.
    pub adapter: Option<Arc<str>>,
    /// Part of it that is done here.
    pub kind: Kind,
}

/// Error of a request that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Full waiting queue.
    #[error("the waiting queue is full")]
    QueueFull,
    /// Longer than the context.
    #[error("prompt and output are longer than the context of {limit} tokens")]
    TooLong {
        /// Tokens that a request may have.
        limit: u32,
    },
}

/// One generated token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Id of the request.
    pub id: u64,
    /// Time since the engine's start.
    pub at: Duration,
    /// The number of this token, from 1.
    pub generated: u32,
    /// Prompt tokens that were in the KV cache when the request entered the batch, those
    /// that came from another engine not among them.
    pub cached_tokens: u32,
    /// `true` if this is the last one.
    pub finished: bool,
}

/// Current state of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineState {
    /// Requests in the batch.
    pub running: usize,
    /// Requests waiting for a place in it or for their prompt, as vLLM counts them.
    pub waiting: usize,
    /// Number of these whose prompt is on its way from another engine.
    pub receiving: usize,
    /// Share of KV blocks that requests hold, in 0..=1.
    pub kv_usage: f64,
    /// KV blocks that requests hold.
    pub kv_used_blocks: u32,
    /// KV blocks that only match prefixes.
    pub kv_idle_blocks: u32,
}
