//! Flow control.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::Kind::{
    Eviction, FairnessPolicy, Filter, OrderingPolicy, SaturationDetector, UsageLimitPolicy,
};
use usher_plugin::{Build, Built, PluginType, Site, beta, parameter};

use crate::waiting::{
    Fairness, HoldbackParams, Ordering, ProgramAwareParams, StaticUsageLimitParams, UsageLimit,
};
use crate::{ConcurrencyDetector, ConcurrencyDetectorParams, UtilizationDetector, UtilizationDetectorParams};

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
        "Serves all flows of a priority as one queue.",
        &[], Build::Ignoring(global_strict))
        .when("Part of the default: who shares the pool doesn't matter."),
    beta("round-robin-fairness-policy", &[FairnessPolicy],
        "Serves the flows of a priority in turns, a request each.",
        &[], Build::Ignoring(round_robin))
        .when("Tenants share the pool, and none may crowd the others out."),
    beta("program-aware-fairness", &[FairnessPolicy],
        "Serves the flow first that got the fewest tokens lately, generated ones counted twice, and gives those a push that wait long.",
        &[
            parameter("strategy", "las", "", "How flows are compared; las, least attained service, is the only way."),
            parameter("evictionTtlSeconds", "3600", "seconds", "How long a flow that sends nothing is remembered."),
            parameter("evictionSweepSeconds", "300", "seconds", "How often such flows are looked for."),
            parameter("lasWeightService", "0.8", "", "Weight of the tokens that a flow got."),
            parameter("lasWeightHeadWait", "0.2", "", "Weight of how long its first request waits."),
            parameter("lasHalfLifeSeconds", "60", "seconds", "Time after which half of what a flow got is forgotten."),
        ],
        Build::Reading(program_aware))
        .when("Agents or tenants whose requests differ much in size."),
    beta("fcfs-ordering-policy", &[OrderingPolicy],
        "Who came first goes first.",
        &[], Build::Ignoring(fcfs))
        .when("Part of the default: all requests of a flow are alike."),
    beta("edf-ordering-policy", &[OrderingPolicy],
        "Whose time to wait ends first goes first; those that may wait for ever go last.",
        &[], Build::Ignoring(edf))
        .when("Requests may wait for different times. With one for all it is the order of arrival."),
    beta("slo-deadline-ordering-policy", &[OrderingPolicy],
        "Whose first token is due first goes first, by the header x-llm-d-slo-ttft-ms (or x-slo-ttft-ms); those without it go last.",
        &[], Build::Ignoring(slo_deadline))
        .when("Clients say how soon they need an answer."),
    beta("static-usage-limit-policy", &[UsageLimitPolicy],
        "Lets every priority fill the same share of the pool.",
        &[parameter("threshold", "1", "saturation", "Saturation up to which requests are let through.")],
        Build::Reading(static_usage_limit))
        .when("Part of the default: no priority keeps room free for another."),
    beta("priority-holdback-policy", &[UsageLimitPolicy],
        "Lets lower priorities fill less of the pool than higher ones.",
        &[
            parameter("shape", "linear", "", "How ceilings lie between the lowest and the highest; linear is the only way."),
            parameter("domain", "rank", "", "What they are in proportion to: rank, the places in the order, or value, the priorities themselves."),
            parameter("minCeiling", "", "saturation", "Ceiling of the lowest priority, at least 0 and below 1."),
            parameter("maxCeiling", "1", "saturation", "Ceiling of the highest priority."),
        ],
        Build::Reading(holdback)).alpha()
        .when("Important requests have to find room at once."),
    beta("soft-reflective-ceiling-policy", &[UsageLimitPolicy],
        "Lets lower priorities through ever more rarely as the pool fills, the lowest first.",
        &[], Build::Reading(soft_reflective)).alpha()
        .when("As above, where a fixed share held back would be idle too often."),
    beta("sheddable-eviction-filter", &[Eviction],
        "Running requests of priorities below 0 may be given up. So it is with flowControl.enableEviction, whether it is declared or not.",
        &[], Build::Reading(eviction)).alpha()
        .when("It need not be declared."),
    beta("priority-then-time-eviction-order-policy", &[Eviction],
        "The lowest priority is given up first, and of it the newest request. So it is with flowControl.enableEviction, whether it is declared or not.",
        &[], Build::Reading(eviction)).alpha()
        .when("It need not be declared."),
];

fn utilization_detector(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = UtilizationDetectorParams::decode(site.parameters)?;
    let plugin = Arc::new(UtilizationDetector::new(params));
    let filter = Some(Arc::clone(&plugin) as _);
    let staleness = Some(params.metrics_staleness_threshold);
    Ok(Built { filter, detector: Some(plugin), staleness, ..Built::with(&params)? })
}

fn concurrency_detector(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ConcurrencyDetectorParams::decode(site.parameters)?;
    let counters = site.reads_in_flight(&params.in_flight_load_producer_name);
    let plugin = Arc::new(ConcurrencyDetector::new(&params, counters));
    let filter = Some(Arc::clone(&plugin) as _);
    Ok(Built { filter, detector: Some(plugin), ..Built::with(&params)? })
}

fn global_strict(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built::bare().with_extra(Fairness::GlobalStrict))
}

fn round_robin(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built::bare().with_extra(Fairness::RoundRobin))
}

fn program_aware(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ProgramAwareParams::decode(site.parameters)?;
    Ok(Built::with(&params)?.with_extra(Fairness::ProgramAware(params.clone())))
}

fn fcfs(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built::bare().with_extra(Ordering::Fcfs))
}

fn edf(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built::bare().with_extra(Ordering::Edf))
}

fn slo_deadline(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built::bare().with_extra(Ordering::SloDeadline))
}

fn static_usage_limit(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = StaticUsageLimitParams::decode(site.parameters)?;
    Ok(Built::with(&params)?.with_extra(UsageLimit::Static(params)))
}

fn holdback(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = HoldbackParams::decode(site.parameters)?;
    Ok(Built::with(&params)?.with_extra(UsageLimit::Holdback(params)))
}

fn soft_reflective(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built::bare().with_extra(UsageLimit::SoftReflective))
}

/// The queue evicts as these say, and knows no other way.
fn eviction(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built::bare())
}
