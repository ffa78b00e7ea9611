//! Outcomes of waiting.

/// Outcome of a request's wait. The names are values of a metric's label, as llm-d-router
/// has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Dispatched to an endpoint.
    Dispatched,
    /// No queue capacity left.
    RejectedCapacity,
    /// No queue capacity left, and no endpoint.
    RejectedNoEndpoints,
    /// Arrived while the picker was shutting down.
    RejectedOther,
    /// TTL expired.
    EvictedTtl,
    /// TTL for an endpoint expired.
    EvictedNoEndpoints,
    /// Client disconnected.
    EvictedContextCancelled,
    /// Evicted to free memory. llm-d-router has a reason for this, and no outcome.
    EvictedQueuePressure,
    /// Picker shut down.
    EvictedOther,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Dispatched,
        Self::RejectedCapacity,
        Self::RejectedNoEndpoints,
        Self::RejectedOther,
        Self::EvictedTtl,
        Self::EvictedNoEndpoints,
        Self::EvictedContextCancelled,
        Self::EvictedQueuePressure,
        Self::EvictedOther,
    ];

    /// The label's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dispatched => "Dispatched",
            Self::RejectedCapacity => "RejectedCapacity",
            Self::RejectedNoEndpoints => "RejectedNoEndpoints",
            Self::RejectedOther => "RejectedOther",
            Self::EvictedTtl => "EvictedTTL",
            Self::EvictedNoEndpoints => "EvictedNoEndpoints",
            Self::EvictedContextCancelled => "EvictedContextCancelled",
            Self::EvictedQueuePressure => "EvictedQueuePressure",
            Self::EvictedOther => "EvictedOther",
        }
    }
}
