//! Saturation detectors, one file per kind: how busy endpoints are. As filters, they
//! keep those that have room.

mod concurrency;
mod utilization;

pub use concurrency::{ConcurrencyDetector, ConcurrencyDetectorParams, ConcurrencyMode};
pub use utilization::{UtilizationDetector, UtilizationDetectorParams};

use crate::endpoints::View;

/// Says how busy endpoints are.
pub trait SaturationDetector: Send + Sync {
    /// The saturation of these endpoints: 0 when they are idle, 1 when they are full,
    /// and more beyond that. 1 without endpoints, as nobody can take anything.
    ///
    /// `now_ms` is on the clock that stamps the readings of a load; never 0.
    fn saturation(&self, now_ms: u64, endpoints: View<'_>) -> f64;
}

/// The mean of some numbers in units of `full`; 1 when there are none.
fn mean_or_full(numbers: impl ExactSizeIterator<Item = f64>, full: f64) -> f64 {
    match numbers.len() {
        0 => 1.0,
        count => numbers.sum::<f64>() / (count as f64 * full),
    }
}
