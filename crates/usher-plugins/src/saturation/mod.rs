//! Saturation detectors, one file per kind: how busy endpoints are. As filters, they
//! keep those that have room.

pub(crate) mod concurrency;
pub(crate) mod utilization;

pub use concurrency::{ConcurrencyDetector, ConcurrencyDetectorParams, ConcurrencyMode};
pub use utilization::{UtilizationDetector, UtilizationDetectorParams};

/// The mean of some numbers in units of `full`; 1 when there are none.
fn mean_or_full(numbers: impl ExactSizeIterator<Item = f64>, full: f64) -> f64 {
    match numbers.len() {
        0 => 1.0,
        count => numbers.sum::<f64>() / (count as f64 * full),
    }
}
