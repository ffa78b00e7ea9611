//! The interface of saturation detectors.

use usher_core::endpoints::View;

/// Reports the saturation of endpoints.
pub trait SaturationDetector: Send + Sync {
    /// The saturation of these endpoints: 0 when they are idle, 1 when they are full,
    /// and more beyond that. 1 without endpoints, which have no room at all.
    ///
    /// `now_ms` is on the clock that stamps the readings of a load; never 0.
    fn saturation(&self, now_ms: u64, endpoints: View<'_>) -> f64;

    /// Saturation including requests sent since the last reading, and the effect of one more: for
    /// sending several requests between readings. The default implementation has no such estimate, so
    /// that its pool can be overrun until the next reading.
    fn level(&self, now_ms: u64, endpoints: View<'_>) -> Level {
        Level { saturation: self.saturation(now_ms, endpoints), per_request: 0.0, per_byte: 0.0 }
    }

    /// Returns `true` if a response's end shows in it at once, and not with the next reading only.
    fn is_live(&self) -> bool {
        false
    }

    /// Number of these endpoints that have nothing recent to say, where that matters.
    fn stale(&self, _now_ms: u64, _endpoints: View<'_>) -> Option<usize> {
        None
    }
}

/// Load of endpoints, and how much requests would add to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Saturation now.
    pub saturation: f64,
    /// Addition of each further request.
    pub per_request: f64,
    /// Addition of each byte of its body, where that is more.
    pub per_byte: f64,
}

impl Level {
    /// The saturation with so many requests more, of so many bytes together.
    #[inline]
    pub fn with(&self, requests: u64, bytes: u64) -> f64 {
        self.saturation + f64::max(requests as f64 * self.per_request, bytes as f64 * self.per_byte)
    }
}
