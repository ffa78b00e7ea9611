//! Latency that a scorer expects of a request at an endpoint.

/// Expected latency of a request at an endpoint. All times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencyEstimate {
    /// Time to the first token: the sum of the three parts below.
    pub first_token: f64,
    /// Part of it: until the endpoint has a slot and room in its KV cache.
    pub slot_wait: f64,
    /// Part of it: for the prompts before this one.
    pub queued: f64,
    /// Part of it: to compute the uncached part of the prompt.
    pub prefill: f64,
    /// Mean time per output token after the first.
    pub per_token: f64,
    /// Tokens of the prompt that the endpoint has to compute.
    pub uncached_tokens: f64,
}
