//! Scorers, one file per kind.

pub(crate) mod active_request;
pub(crate) mod context_length;
pub(crate) mod endpoint_attribute;
pub(crate) mod expected_latency;
pub(crate) mod header_label;
pub(crate) mod kv_cache;
pub(crate) mod latency;
pub(crate) mod load_aware;
pub(crate) mod lora_affinity;
pub(crate) mod mm_embeddings_cache;
pub(crate) mod multicluster;
pub(crate) mod no_hit_lru;
pub(crate) mod precise_prefix_cache;
pub(crate) mod prefix_cache;
pub(crate) mod queue;
pub(crate) mod running;
mod slo_rank;
pub(crate) mod token_load;
pub(crate) mod topology_affinity;

use usher_core::endpoints::{Gauge, Load, View};
use usher_plugin::Context;

pub use active_request::{ActiveRequestParams, ActiveRequestScorer};
pub use context_length::{ContextLengthAware, ContextLengthParams};
pub use endpoint_attribute::{EndpointAttributeScorer, EndpointAttributeScorerParams};
pub use expected_latency::{ExpectedLatencyParams, ExpectedLatencyScorer};
pub use header_label::{HeaderLabelAffinityScorer, HeaderLabelParams};
pub use kv_cache::KvCacheUtilizationScorer;
pub use latency::{LatencyScorer, LatencyScorerParams, Strategy as HeadroomStrategy};
pub use load_aware::{LoadAwareParams, LoadAwareScorer};
pub use lora_affinity::LoraAffinityScorer;
pub use mm_embeddings_cache::{MmEmbeddingsCacheParams, MmEmbeddingsCacheScorer};
pub use multicluster::{multicluster_kv_cache, multicluster_queue};
pub use no_hit_lru::{ColdOrder, NoHitLruParams, NoHitLruScorer};
pub use prefix_cache::{PrefixCacheScorer, PrefixCacheScorerParams};
pub use queue::QueueScorer;
pub use running::RunningRequestsScorer;
pub use token_load::{TokenLoadParams, TokenLoadScorer};
pub use topology_affinity::{TopologyAffinityScorer, TopologyAffinityScorerParams};

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
/// Returns the range of the readings; 0 to 0 when there is none. `gauge`: the reading, and what
/// to add to it.
fn readings(
    cx: &Context<'_>,
    candidates: View<'_>,
    out: &mut [f32],
    gauge: impl Fn(&Load) -> (&Gauge, u64),
) -> Range {
    let mut range = Range { min: f32::INFINITY, max: f32::NEG_INFINITY };
    let mut missing = false;
    for (reading, endpoint) in out.iter_mut().zip(candidates.iter()) {
        let (gauge, more) = gauge(endpoint.load());
        let fresh = gauge.fresh(cx.now_ms, cx.max_age).map(|value| value as f32 + more as f32);
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

/// Scores (max − reading) / (max − min) over the candidates; all 1 when the readings
/// are equal.
fn smallest_first(
    cx: &Context<'_>,
    candidates: View<'_>,
    out: &mut [f32],
    gauge: impl Fn(&Load) -> (&Gauge, u64),
) {
    let Range { min, max } = readings(cx, candidates, out, gauge);
    let span = max - min;
    for score in out {
        *score = if span > 0.0 { (max - *score) / span } else { 1.0 };
    }
}
