//! Flow control.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::site::{Build, Built, Site, shown};
use super::super::types::Kind::{
    Eviction, FairnessPolicy, Filter, OrderingPolicy, SaturationDetector, UsageLimitPolicy,
};
use super::super::types::{PluginType, beta, later, parameter};
use crate::config::ConfigError;
use crate::schedule::waiting::StaticUsageLimitParams;
use crate::schedule::{
    ConcurrencyDetector, ConcurrencyDetectorParams, UtilizationDetector, UtilizationDetectorParams,
};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("utilization-detector", &[SaturationDetector, Filter],
        "Says how busy the pool is, by waiting queues and KV caches. As a filter, keeps the endpoints that have room, or all when none has.",
        &[
            parameter("queueDepthThreshold", "5", "requests", "Waiting requests at which an endpoint is full."),
            parameter("kvCacheUtilThreshold", "0.8", "share", "Share of the KV cache at which it is."),
            parameter("metricsStalenessThreshold", "200ms", "duration", "Age at which its numbers count as full."),
            parameter("headroom", "0", "share", "How far beyond the thresholds the filter lets it go."),
        ],
        Build::Reading(utilization_detector))
        .when("Part of the default. Declare it for other thresholds."),
    beta("concurrency-detector", &[SaturationDetector, Filter],
        "Says how busy the pool is, by what is under way. As a filter, keeps the endpoints that have room, also when none has.",
        &[
            parameter("maxConcurrency", "100", "requests", "Requests under way at which an endpoint is full."),
            parameter("concurrencyMode", "requests", "", "What counts: requests, tokens, or hybrid, whichever is nearer to its limit."),
            parameter("maxTokenConcurrency", "1000000", "tokens", "Tokens under way at which an endpoint is full."),
            parameter("headroom", "0", "share", "How far beyond the limits the filter lets it go."),
            parameter("inFlightLoadProducerName", "inflight-load-producer", "", "The producer that counts."),
        ],
        Build::Reading(concurrency_detector))
        .when("Servers without metrics, or bursts: it counts what this picker sent."),
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

fn utilization_detector(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = UtilizationDetectorParams::decode(site.parameters)?;
    let plugin = Arc::new(UtilizationDetector::new(params));
    let filter = Some(Arc::clone(&plugin) as _);
    Ok(Built { filter, detector: Some(plugin), ..Built::with(&params)? })
}

fn concurrency_detector(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ConcurrencyDetectorParams::decode(site.parameters)?;
    let counters = site.reads_in_flight(&params.in_flight_load_producer_name);
    let plugin = Arc::new(ConcurrencyDetector::new(&params, counters));
    let filter = Some(Arc::clone(&plugin) as _);
    Ok(Built { filter, detector: Some(plugin), ..Built::with(&params)? })
}

fn ignored_parameters(_site: &mut Site<'_>) -> Result<Value, ConfigError> {
    Ok(json!({}))
}

fn static_usage_limit_policy(site: &mut Site<'_>) -> Result<Value, ConfigError> {
    shown(&StaticUsageLimitParams::decode(site.parameters)?)
}
