//! Flow control.

use serde_json::{Value, json};

use super::super::site::{Build, Site, shown};
use super::super::types::Kind::{
    Eviction, FairnessPolicy, Filter, OrderingPolicy, SaturationDetector, UsageLimitPolicy,
};
use super::super::types::{PluginType, beta, later, parameter};
use crate::config::ConfigError;
use crate::schedule::params::{StaticUsageLimitParams, UtilizationDetectorParams};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("utilization-detector", &[SaturationDetector, Filter],
        "Says how busy the pool is, by waiting queues and KV caches. No effect yet.",
        &[
            parameter("queueDepthThreshold", "5", "requests", "Waiting requests at which an endpoint is full."),
            parameter("kvCacheUtilThreshold", "0.8", "share", "Share of the KV cache at which it is."),
            parameter("metricsStalenessThreshold", "200ms", "duration", "Age at which its numbers count as full."),
            parameter("headroom", "0", "share", "How far beyond the thresholds the filter lets it go."),
        ],
        Build::NoEffect(utilization_detector))
        .when("Part of the default. Declare it for other thresholds."),
    later("concurrency-detector", &[SaturationDetector, Filter]),
    beta("global-strict-fairness-policy", &[FairnessPolicy],
        "Serves all flows of a priority as one queue. No effect yet.",
        &[], Build::NoEffect(ignored_parameters))
        .when("Part of the default: who shares the pool doesn't matter."),
    later("round-robin-fairness-policy", &[FairnessPolicy]),
    later("program-aware-fairness", &[FairnessPolicy]),
    beta("fcfs-ordering-policy", &[OrderingPolicy],
        "Who came first goes first. No effect yet.",
        &[], Build::NoEffect(ignored_parameters))
        .when("Part of the default: all requests of a flow are alike."),
    later("edf-ordering-policy", &[OrderingPolicy]),
    later("slo-deadline-ordering-policy", &[OrderingPolicy]),
    beta("static-usage-limit-policy", &[UsageLimitPolicy],
        "Lets every priority fill the same share of the pool. No effect yet.",
        &[parameter("threshold", "1", "saturation", "Saturation up to which requests are let through.")],
        Build::NoEffect(static_usage_limit_policy))
        .when("Part of the default: no priority keeps room free for another."),
    later("priority-holdback-policy", &[UsageLimitPolicy]).alpha(),
    later("soft-reflective-ceiling-policy", &[UsageLimitPolicy]).alpha(),
    later("sheddable-eviction-filter", &[Eviction]).alpha(),
    later("priority-then-time-eviction-order-policy", &[Eviction]).alpha(),
];

fn utilization_detector(site: &mut Site<'_>) -> Result<Value, ConfigError> {
    shown(&UtilizationDetectorParams::decode(site.parameters)?)
}

fn ignored_parameters(_site: &mut Site<'_>) -> Result<Value, ConfigError> {
    Ok(json!({}))
}

fn static_usage_limit_policy(site: &mut Site<'_>) -> Result<Value, ConfigError> {
    shown(&StaticUsageLimitParams::decode(site.parameters)?)
}
