//! Admission without flow control: nothing waits, and requests of negative priority are
//! refused while the pool is full.

use crate::endpoints::Candidates;
use crate::schedule::SaturationDetector;

use super::Rejection;

/// Saturation at which the pool is full.
const FULL: f64 = 1.0;

/// Refuses a request, one of negative priority, when its candidates are full, which none
/// at all are, too.
///
/// # Errors
/// `Rejection` with status 429 and llm-d-router's message.
pub(super) fn check(
    detector: &dyn SaturationDetector,
    candidates: &Candidates,
    now_ms: u64,
) -> Result<(), Rejection> {
    if detector.saturation(now_ms, candidates.view()) < FULL {
        return Ok(());
    }
    Err(Rejection::saturated("system saturated, sheddable request dropped"))
}
