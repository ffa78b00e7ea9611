//! Scorers.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{DataProducer, Filter, PreRequest, Response, Scorer};
use super::super::types::{PluginType, beta, later, parameter};
use crate::config::ConfigError;
use crate::schedule::{ActiveRequestParams, ActiveRequestScorer, KvCacheUtilizationScorer, QueueScorer};
use crate::schedule::{DataType, TopologyAffinityScorer, TopologyAffinityScorerParams};
use crate::schedule::{EndpointAttributeScorer, EndpointAttributeScorerParams};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("queue-scorer", &[Scorer],
        "The shorter an endpoint's waiting queue, the better: the shortest scores 1, the longest 0.",
        &[], Build::Ignoring(queue_scorer))
        .when("Always, unless requests hardly ever wait: it keeps them away from where others queue."),
    beta("kv-cache-utilization-scorer", &[Scorer],
        "The emptier an endpoint's KV cache, the better: 1 minus the share in use.",
        &[], Build::Ignoring(kv_cache_scorer))
        .when("Long prompts or long answers: an endpoint with a full cache preempts or makes requests wait."),
    later("running-requests-size-scorer", &[Scorer]),
    later("lora-affinity-scorer", &[Scorer]),
    later("prefix-cache-scorer", &[Scorer]),
    later("precise-prefix-cache-scorer", &[Scorer, DataProducer]),
    later("load-aware-scorer", &[Scorer]),
    beta("active-request-scorer", &[Scorer],
        "The fewer requests are under way at an endpoint, the better.",
        &[
            parameter("idleThreshold", "0", "requests", "Requests up to which an endpoint counts as idle."),
            parameter("maxBusyScore", "1", "score", "Best score of an endpoint that isn't idle."),
            parameter("inFlightLoadProducerName", "inflight-load-producer", "", "The producer that counts."),
            parameter("requestTimeout", "none", "", "Deprecated, without effect."),
        ],
        Build::Reading(active_request_scorer))
        .when("Bursts: it counts at once what this picker sent, where the scraped queue is a moment old."),
    later("token-load-scorer", &[Scorer]),
    later("no-hit-lru-scorer", &[Scorer, PreRequest]),
    later("session-affinity-scorer", &[Scorer, PreRequest, Response]).alpha(),
    later("header-label-affinity-scorer", &[Scorer]).alpha(),
    later("context-length-aware", &[Filter, Scorer]),
    later("mm-embeddings-cache-scorer", &[Scorer]),
    later("latency-scorer", &[Scorer]),
    beta("endpoint-attribute-scorer", &[Scorer],
        "Scores by a number of the endpoints that the configuration names. Who has not got it, or not lately, scores 0.",
        &[
            parameter("attributeKey", "", "", "The number: an attributeKey of the producer's customMetrics, or WaitingQueueSize, RunningRequestsSize or KVCacheUsagePercent of a core-metrics-extractor."),
            parameter("producer", "core-metrics-extractor", "", "The plugin that keeps the number up to date."),
            parameter("algorithm.type", "", "", "linear_lower_is_better or linear_higher_is_better."),
            parameter("algorithm.normalization.adaptiveRange", "{}", "", "Scores lie between the smallest and the largest number of the candidates; equals score 1. This is the default."),
            parameter("algorithm.normalization.fixedRange.min", "0", "as the number", "Scores lie between this number"),
            parameter("algorithm.normalization.fixedRange.max", "", "as the number", "and this one; what is outside counts as the nearer."),
        ],
        Build::Reading(endpoint_attribute_scorer)).alpha(),
    beta("topology-affinity-scorer", &[Scorer],
        "The nearer an endpoint is to the one that another profile picked, the better: the same host scores 1, rack 0.2, zone 0.05, region 0.02.",
        &[parameter("topologyProducerName", "topology-extractor", "", "The plugin that says where endpoints are.")],
        Build::Reading(topology_affinity_scorer)).alpha(),
    later("multicluster-queue-scorer", &[Scorer]).alpha(),
    later("multicluster-kv-cache-utilization-scorer", &[Scorer]).alpha(),
    later("multicluster-prefix-cache-scorer", &[Scorer]).alpha(),
];

fn queue_scorer(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { scorer: Some(Arc::new(QueueScorer)), ..Built::bare() })
}

fn kv_cache_scorer(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { scorer: Some(Arc::new(KvCacheUtilizationScorer)), ..Built::bare() })
}

fn active_request_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ActiveRequestParams::decode(site.parameters)?;
    let counters = site.reads_in_flight(&params.in_flight_load_producer_name)?;
    let scorer = Arc::new(ActiveRequestScorer::new(&params, counters));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

fn endpoint_attribute_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = EndpointAttributeScorerParams::decode(site.parameters)?;
    let reading = site.reads_attribute(&params.attribute_key, &params.producer)?;
    let scorer = Arc::new(EndpointAttributeScorer::new(reading, &params));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

fn topology_affinity_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TopologyAffinityScorerParams::decode(site.parameters)?;
    site.reads_live(DataType::Topology, &params.topology_producer_name);
    Ok(Built { scorer: Some(Arc::new(TopologyAffinityScorer)), ..Built::with(&params)? })
}
