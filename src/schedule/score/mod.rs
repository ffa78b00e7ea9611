//! Scorers, one file per kind.

mod active_request;
mod endpoint_attribute;
mod kv_cache;
mod queue;
mod topology_affinity;

pub use active_request::{ActiveRequestParams, ActiveRequestScorer};
pub use endpoint_attribute::{EndpointAttributeScorer, EndpointAttributeScorerParams};
pub use kv_cache::KvCacheUtilizationScorer;
pub use queue::QueueScorer;
pub use topology_affinity::{TopologyAffinityScorer, TopologyAffinityScorerParams};

use crate::endpoints::{Gauge, Load, View};

use super::Context;

/// Smallest and largest of some readings.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    min: f32,
    max: f32,
}

/// Fills `out` with one reading per candidate, lower being better. A candidate
/// whose reading is missing, stale or not a finite number gets the largest of
/// the others, so that an endpoint that nobody hears from doesn't draw the
/// traffic; if there is no other, all get 0.
///
/// Returns the range of the readings; 0 to 0 when there is none.
fn readings(
    cx: &Context<'_>,
    candidates: View<'_>,
    out: &mut [f32],
    gauge: impl Fn(&Load) -> &Gauge,
) -> Range {
    let mut range = Range { min: f32::INFINITY, max: f32::NEG_INFINITY };
    let mut missing = false;
    for (reading, endpoint) in out.iter_mut().zip(candidates.iter()) {
        let fresh = gauge(endpoint.load()).fresh(cx.now_ms, cx.max_age).map(|value| value as f32);
        if let Some(value) = fresh.filter(|value| value.is_finite()) {
            range = Range { min: range.min.min(value), max: range.max.max(value) };
            *reading = value;
        } else {
            missing = true;
            *reading = f32::NAN;
        }
    }
    if range.max < range.min {
        range = Range { min: 0.0, max: 0.0 };
    }
    if missing {
        for reading in out.iter_mut().filter(|reading| reading.is_nan()) {
            *reading = range.max;
        }
    }
    range
}
