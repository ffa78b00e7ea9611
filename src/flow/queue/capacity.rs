//! Room of the pool.

use smallvec::SmallVec;

use super::count::Count;
use crate::schedule::Level;

/// Distance from a ceiling that counts as none: sums of shares are not exact.
pub(super) const EPSILON: f64 = 1e-9;

/// Load of the pool, and what one more request adds to it. A pool whose endpoints have
/// roles has a level for each stage, and the fullest counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capacity {
    levels: SmallVec<[Level; 2]>,
}

impl Capacity {
    /// The room of a pool with these stages.
    pub fn new(levels: impl IntoIterator<Item = Level>) -> Self {
        Self { levels: levels.into_iter().collect() }
    }

    /// The saturation with so much more under way. A pool without any stage is full, and
    /// so is one whose saturation is no number.
    pub fn saturation(&self, more: Count) -> f64 {
        let levels = self.levels.iter().map(|level| level.with(more.requests, more.bytes));
        levels
            .map(|saturation| if saturation.is_nan() { f64::INFINITY } else { saturation })
            .reduce(f64::max)
            .unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturation_is_of_the_fullest_stage_with_dispatched_requests() {
        let level = |saturation, per_request, per_byte| Level { saturation, per_request, per_byte };
        let pool = Capacity::new([level(0.5, 0.1, 0.0), level(0.6, 0.01, 0.001)]);
        let at = |requests, bytes| pool.saturation(Count { requests, bytes });
        assert_eq!(at(0, 0), 0.6);
        assert_eq!(at(2, 0), 0.7, "the first stage fills faster");
        assert_eq!(at(1, 500), 1.1, "bytes count where they are more");
        assert_eq!(Capacity::default().saturation(Count::default()), 1.0);
        let nan = Capacity::new([level(f64::NAN, 0.0, 0.0), level(0.1, 0.0, 0.0)]);
        assert_eq!(nan.saturation(Count::default()), f64::INFINITY);
    }
}
