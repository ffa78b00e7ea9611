//! Scorers.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{DataProducer, Filter, PreRequest, Response, Scorer};
use super::super::types::{PluginType, beta, later, parameter};
use super::session;
use crate::config::ConfigError;
use crate::schedule::{ActiveRequestParams, ActiveRequestScorer, KvCacheUtilizationScorer, QueueScorer};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("queue-scorer", &[Scorer],
        "The shorter an endpoint's waiting queue, the better: the shortest scores 1, the longest 0.",
        &[], Build::Ignoring(queue_scorer)),
    beta("kv-cache-utilization-scorer", &[Scorer],
        "The emptier an endpoint's KV cache, the better: 1 minus the share in use.",
        &[], Build::Ignoring(kv_cache_scorer)),
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
            parameter("requestTimeout", "", "", "Deprecated, without effect."),
        ],
        Build::Reading(active_request_scorer)),
    later("token-load-scorer", &[Scorer]),
    later("no-hit-lru-scorer", &[Scorer, PreRequest]),
    beta("session-affinity-scorer", &[Scorer, PreRequest, Response],
        "Prefers the endpoint that served a request's session before: it scores 1, all others 0.",
        session::PARAMETERS, Build::Reading(session::session_affinity_scorer)).alpha(),
    later("header-label-affinity-scorer", &[Scorer]).alpha(),
    later("context-length-aware", &[Filter, Scorer]),
    later("mm-embeddings-cache-scorer", &[Scorer]),
    later("latency-scorer", &[Scorer]),
    later("endpoint-attribute-scorer", &[Scorer]).alpha(),
    later("topology-affinity-scorer", &[Scorer]).alpha(),
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
