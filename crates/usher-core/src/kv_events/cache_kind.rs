//! Attention of KV cache groups.

/// Attention of a KV cache group, as vLLM names it (vLLM#40984).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheKind {
    /// Every token.
    Full,
    /// Every token, compressed.
    Mla,
    /// Every token, with sinks.
    SinkFull,
    /// The last tokens.
    SlidingWindow,
    /// The last tokens, compressed.
    SlidingWindowMla,
    /// A state instead of tokens.
    Mamba,
    /// Tokens of the same chunk.
    ChunkedLocal,
    /// Tokens of an encoder, seen by a decoder.
    Cross,
    /// Tokens of an encoder.
    EncoderOnly,
    /// One that is not known here.
    Other,
    /// The engine doesn't say.
    #[default]
    Unknown,
}

impl CacheKind {
    const NAMED: [Self; 9] = [
        Self::Full,
        Self::Mla,
        Self::SinkFull,
        Self::SlidingWindow,
        Self::SlidingWindowMla,
        Self::Mamba,
        Self::ChunkedLocal,
        Self::Cross,
        Self::EncoderOnly,
    ];

    /// Reads the engine's name.
    pub(super) fn named(name: &str) -> Self {
        Self::NAMED.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Other)
    }

    /// Returns `true` if the group may hold all tokens of a sequence, and so decides on what can be reused.
    pub(super) fn counts(self) -> bool {
        matches!(self, Self::Full | Self::Mla | Self::SinkFull | Self::Unknown)
    }

    /// Value of a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Mla => "mla_attention",
            Self::SinkFull => "sink_full_attention",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingWindowMla => "sliding_window_mla",
            Self::Mamba => "mamba",
            Self::ChunkedLocal => "chunked_local_attention",
            Self::Cross => "cross_attention",
            Self::EncoderOnly => "encoder_only_attention",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }
}
