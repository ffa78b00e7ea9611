//! Predicted latencies of a request at each endpoint.

use crate::{DataType, Fact};

/// Predictions by position in the snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyPredictions {
    /// Endpoints behind the end have none.
    pub at: Vec<Option<LatencyPrediction>>,
}

/// Predicted latencies of a request at an endpoint, and how they compare with its targets. All
/// times are in seconds. A headroom is the target less the prediction, negative where the
/// target would be missed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencyPrediction {
    /// Time to the first token.
    pub ttft: f64,
    /// Mean time per output token after the first.
    pub tpot: f64,
    /// Headroom of the time to the first token. Without a target, that of a target of 0.
    pub ttft_headroom: f64,
    /// Headroom of the time per output token; 0 where that doesn't count.
    pub tpot_headroom: f64,
    /// The time to the first token is below its target.
    pub is_ttft_valid: bool,
    /// The time per output token is below its target, or doesn't count.
    pub is_tpot_valid: bool,
    /// Requests that this process has in flight there.
    pub dispatched: u64,
}

impl LatencyPredictions {
    /// The prediction for the endpoint at this position of the snapshot.
    #[inline]
    pub fn at(&self, position: u32) -> Option<&LatencyPrediction> {
        self.at.get(position as usize)?.as_ref()
    }
}

impl Fact for LatencyPredictions {
    const DATA: DataType = DataType::LatencyPredictionInfo;
}
