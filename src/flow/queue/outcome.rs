//! Outcomes of waiting.

/// Outcome of a request's wait. The names are values of a metric's label, as llm-d-router
/// has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It may go.
    Dispatched,
    /// There was no room left to wait in.
    RejectedCapacity,
    /// There was no room left to wait in, and no endpoint either.
    RejectedNoEndpoints,
    /// It came while the picker stopped, and would have had to wait.
    RejectedOther,
    /// It waited as long as it may.
    EvictedTtl,
    /// It waited for an endpoint as long as it may.
    EvictedNoEndpoints,
    /// Its client went away.
    EvictedContextCancelled,
    /// The process needed the memory that it held. llm-d-router has a reason for this, and no
    /// outcome.
    EvictedQueuePressure,
    /// The picker stopped.
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
