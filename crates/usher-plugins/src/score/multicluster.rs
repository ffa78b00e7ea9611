//! `multicluster-queue-scorer` and `multicluster-kv-cache-utilization-scorer`: what
//! `queue-scorer` and `kv-cache-utilization-scorer` do, where every endpoint is a cluster
//! and the numbers are averages over it.

use super::endpoint_attribute::{Better, EndpointAttributeScorerParams, Linear, Normalization};

/// Who keeps the numbers up to date in this version.
const PRODUCER: &str = "core-metrics-extractor";

/// The shorter the average queue of a cluster, the better: the shortest of the candidates
/// scores 1, the longest 0, and all 1 when they are equal.
pub fn multicluster_queue() -> EndpointAttributeScorerParams {
    lower_is_better("llm-d.ai/multicluster-queue-size", Normalization::AdaptiveRange {})
}

/// The emptier the KV caches of a cluster, the better: 1 minus the share in use.
pub fn multicluster_kv_cache() -> EndpointAttributeScorerParams {
    let share = Normalization::FixedRange { min: 0.0, max: 1.0 };
    lower_is_better("llm-d.ai/multicluster-kv-cache-utilization", share)
}

fn lower_is_better(attribute: &str, normalization: Normalization) -> EndpointAttributeScorerParams {
    EndpointAttributeScorerParams {
        attribute_key: attribute.to_owned(),
        producer: PRODUCER.to_owned(),
        algorithm: Linear { better: Better::Lower, normalization },
    }
}
