//! What waits, for whoever decides how many model servers there should be. With an empty
//! pool it is the only sign that any are wanted.

/// What waits at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// By priority and model, the highest priority first.
    pub waiting: Vec<DemandOf>,
}

/// What waits of one priority for one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandOf {
    /// The priority.
    pub priority: i32,
    /// The model that clients asked for; empty: they named none, or it was not read.
    pub model: String,
    /// The model that is asked for upstream.
    pub target_model: String,
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

impl Demand {
    /// Requests of all priorities and models.
    pub fn requests(&self) -> u64 {
        self.waiting.iter().map(|demand| demand.requests).sum()
    }

    /// Bytes of their bodies.
    pub fn bytes(&self) -> u64 {
        self.waiting.iter().map(|demand| demand.bytes).sum()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
