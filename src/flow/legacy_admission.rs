//! Admission without flow control: nothing waits, and requests of negative priority are
//! refused while the pool is full.

use crate::endpoints::Candidates;
use crate::request::Request;
use crate::schedule::SaturationDetector;

use super::Rejection;

/// Saturation at which the pool is full.
const FULL: f64 = 1.0;

/// Refuses a request of negative priority when its candidates are full, which none at
/// all are, too. Without a detector nothing is refused.
///
/// # Errors
/// 429 with the peer's words.
pub(super) fn check(
    request: &Request,
    candidates: &Candidates,
    now_ms: u64,
    detector: Option<&dyn SaturationDetector>,
) -> Result<(), Rejection> {
    let Some(detector) = detector.filter(|_| request.priority < 0) else { return Ok(()) };
    if detector.saturation(now_ms, candidates.view()) < FULL {
        return Ok(());
    }
    Err(Rejection::saturated("system saturated, sheddable request dropped"))
}
