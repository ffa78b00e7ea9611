//! `multicluster-queue-scorer` and `multicluster-kv-cache-utilization-scorer`: what
//! `queue-scorer` and `kv-cache-utilization-scorer` do, where every endpoint is a cluster
//! and the numbers are averages over it.

use usher_core::config::ConfigError;
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, beta};

use super::endpoint_attribute::{
    AdaptiveRange, Better, EndpointAttributeScorerParams, FixedRange, Linear, Normalization, by_attribute,
};

/// `multicluster-queue-scorer` in a configuration.
#[rustfmt::skip]
pub static QUEUE: PluginType = beta("multicluster-queue-scorer", &[Kind::Scorer],
    "The shorter the queues of a cluster, the better: of the number llm-d.ai/multicluster-queue-size the smallest scores 1, the largest 0. Clusters without a recent value score 0. It has to be among the customMetrics of the plugin core-metrics-extractor.",
    Build::Reading(multicluster_queue_scorer)).alpha()
    .when("Every endpoint is the gateway of a cluster; as metric, for example, llm_d_epp_average_queue_size.");

/// `multicluster-kv-cache-utilization-scorer` in a configuration.
#[rustfmt::skip]
pub static KV_CACHE: PluginType = beta("multicluster-kv-cache-utilization-scorer", &[Kind::Scorer],
    "The emptier the KV caches of a cluster, the better: 1 minus the number llm-d.ai/multicluster-kv-cache-utilization. Clusters without a recent value score 0. It has to be among the customMetrics of the plugin core-metrics-extractor.",
    Build::Reading(multicluster_kv_cache_scorer)).alpha()
    .when("As multicluster-queue-scorer; as metric, for example, llm_d_epp_average_kv_cache_utilization.");

fn multicluster_queue_scorer(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts { scorer: Some(by_attribute(cx, &multicluster_queue())), ..PluginParts::bare() })
}

fn multicluster_kv_cache_scorer(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts { scorer: Some(by_attribute(cx, &multicluster_kv_cache())), ..PluginParts::bare() })
}

/// Plugin that keeps the numbers up to date in this version.
const PRODUCER: &str = "core-metrics-extractor";

/// The shorter the average queue of a cluster, the better: the shortest of the candidates
/// scores 1, the longest 0, and all 1 when they are equal.
pub fn multicluster_queue() -> EndpointAttributeScorerParams {
    let all = Normalization { adaptive_range: Some(AdaptiveRange {}), fixed_range: None };
    lower_is_better("llm-d.ai/multicluster-queue-size", all)
}

/// The emptier the KV caches of a cluster, the better: 1 minus the share in use.
pub fn multicluster_kv_cache() -> EndpointAttributeScorerParams {
    let share = Normalization { fixed_range: Some(FixedRange { min: 0.0, max: 1.0 }), adaptive_range: None };
    lower_is_better("llm-d.ai/multicluster-kv-cache-utilization", share)
}

fn lower_is_better(attribute: &str, normalization: Normalization) -> EndpointAttributeScorerParams {
    EndpointAttributeScorerParams {
        attribute_key: attribute.to_owned(),
        producer: PRODUCER.to_owned(),
        algorithm: Linear { better: Some(Better::Lower), normalization },
    }
}
