//! Outcome of a request after its decision.

/// End of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Complete response.
    Complete,
    /// Cut off by the client, the gateway, the endpoint or for another request.
    CutOff,
    /// The gateway doesn't show its response.
    Unseen,
}

/// Outcome of a request. Times are in seconds since its decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// End of the request.
    pub ending: Ending,
    /// HTTP status of the response; `None`: there was none, or it wasn't shown.
    pub status: Option<u16>,
    /// Status of a gRPC call that failed before its first message.
    pub grpc_status: Option<u32>,
    /// Address that the gateway named as the server, where it isn't the first pick's.
    pub served: Option<Box<str>>,
    /// Time to the first token; `None` of a response that doesn't come token by token.
    pub first_token: Option<f64>,
    /// Time to the end.
    pub total: f64,
    /// Mean time per output token after the first.
    pub per_token: Option<f64>,
    /// Tokens of the prompt, as the server counted them.
    pub prompt_tokens: Option<u64>,
    /// Generated tokens, as the server counted them.
    pub output_tokens: Option<u64>,
    /// Tokens of the prompt that the server found in its cache.
    pub cached_tokens: Option<u64>,
}

impl Outcome {
    /// Returns `true` if the request got no good response.
    pub fn is_failed(&self) -> bool {
        self.ending == Ending::CutOff
            || self.status.is_some_and(|status| status >= 400)
            || self.grpc_status.is_some_and(|status| status != 0)
    }
}
