//! Work of an engine, of a step and of a request, and what it has room for.

/// Work of one step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Step {
    /// Tokens that it can still take.
    pub(super) budget: u32,
    /// Prompt tokens, and those computed anew.
    pub(super) prefill_tokens: u32,
    /// Requests that these tokens are of.
    pub(super) prefilling: u32,
    /// Pairs of such a token and one at or before its place, n²/2 for the first n.
    pub(super) attention_pairs: f64,
    /// Requests that decode, a token each.
    pub(super) decoding: u32,
    /// Tokens whose keys and values these read.
    pub(super) context: u64,
}

impl Step {
    /// An empty step.
    pub(super) fn new(budget: u32) -> Self {
        Self { budget, ..Self::default() }
    }

    /// Adds `tokens` of a request that has `before` in the cache.
    pub(super) fn prefill(&mut self, before: u32, tokens: u32) {
        let (before, chunk) = (f64::from(before), f64::from(tokens));
        self.budget -= tokens;
        self.prefill_tokens += tokens;
        self.prefilling += 1;
        self.attention_pairs += chunk * before + chunk * chunk / 2.0;
    }

    /// Adds the next token of a request of `context` tokens.
    pub(super) fn decode(&mut self, context: u32) {
        self.budget -= 1;
        self.decoding += 1;
        self.context += u64::from(context);
    }

    /// Tokens computed.
    pub(super) fn tokens(&self) -> u32 {
        self.prefill_tokens + self.decoding
    }
}

/// A request of mean lengths, for [`EngineConfig::work`](crate::sim::EngineConfig::work).
#[derive(Debug, Clone, Copy)]
pub(super) struct Mean {
    /// Prompt tokens that aren't cached.
    pub(super) computed: f64,
    /// Prompt tokens.
    pub(super) prompt: f64,
    /// Generated tokens.
    pub(super) output: f64,
}

impl Mean {
    /// Pairs of tokens in the attention of the tokens to compute.
    pub(super) fn attention_pairs(&self) -> f64 {
        self.computed * (self.prompt - self.computed / 2.0)
    }

    /// Mean context of the request while it decodes.
    pub(super) fn context(&self) -> f64 {
        self.prompt + self.output / 2.0
    }
}

/// Capacity of an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Tokens in its KV cache.
    pub(super) kv_tokens: f64,
    /// Requests in the running batch at most.
    pub(super) max_running: f64,
    /// Tokens computed per step at most.
    pub(super) step_tokens: f64,
}

impl Room {
    /// Requests in the batch of a full engine, if each holds `tokens` of its KV cache.
    pub(super) fn full_batch(&self, tokens: f64) -> f64 {
        (self.kv_tokens / tokens).min(self.max_running).max(1.0)
    }
}
