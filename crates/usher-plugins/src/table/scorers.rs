//! Scorers.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::Kind::{DataProducer, Filter, PreRequest, Response, Scorer};
use usher_plugin::{Build, Built, DataType, Parameter, PluginType, Site, beta, later, parameter};

use super::session;
use crate::latency::{SloMetrics, reads_latency};
use crate::{
    ActiveRequestParams, ActiveRequestScorer, ContextLengthAware, ContextLengthParams,
    HeaderLabelAffinityScorer, HeaderLabelParams, KvCacheUtilizationScorer, LoadAwareParams, LoadAwareScorer,
    LoraAffinityScorer, MmEmbeddingsCacheParams, MmEmbeddingsCacheScorer, QueueScorer, RunningRequestsScorer,
    TokenLoadParams, TokenLoadScorer,
};
use crate::{ColdOrder, NoHitLruParams, NoHitLruScorer, PrefixCacheScorer, PrefixCacheScorerParams};
use crate::{
    EndpointAttributeScorer, EndpointAttributeScorerParams, multicluster_kv_cache, multicluster_queue,
};
use crate::{ExpectedLatencyParams, ExpectedLatencyScorer, LatencyScorer, LatencyScorerParams};
use crate::{TopologyAffinityScorer, TopologyAffinityScorerParams};

#[rustfmt::skip]
const PREFIX_CACHE: &[Parameter] = &[
    parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
    parameter("matchLengthWeight", "0", "", "How much the length of what is cached counts, 0 to 1, beside its share of the prompt."),
    parameter("matchLengthScaleTokens", "8192", "tokens", "Length that counts in full; above 0 where it counts. What is shorter counts by its square."),
];

#[rustfmt::skip]
const LATENCY: &[Parameter] = &[
    parameter("ttftWeight", "0.8", "", "Weight of the headroom of the time to the first token."),
    parameter("tpotWeight", "0.2", "", "Weight of the headroom of the time per output token."),
    parameter("headroomSelectionStrategy", "least", "", "least or most: which of the endpoints that keep the targets score most. With least, others stay free for tighter targets."),
    parameter("compositeKVWeight", "1", "", "Without predictions: weight of what is free of the KV cache."),
    parameter("compositeQueueWeight", "1", "", "Without predictions: weight of a short queue."),
    parameter("compositePrefixWeight", "1", "", "Without predictions: weight of what is cached of the prompt."),
    parameter("latencyPredictionInfoProducerName", "predicted-latency-producer", "", "The producer of the predictions."),
    parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
];

#[rustfmt::skip]
const EXPECTED_LATENCY: &[Parameter] = &[
    parameter("peakPrefillThroughput", "15928", "tokens/s", "Prompt tokens that an endpoint computes per second, until its first tokens say so."),
    parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
];

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
    beta("running-requests-size-scorer", &[Scorer],
        "The fewer requests an endpoint runs, the better: the fewest score 1, the most 0.",
        &[], Build::Ignoring(running_requests_scorer))
        .when("Long answers: what runs, not only what waits, says how busy an endpoint is."),
    beta("lora-affinity-scorer", &[Scorer],
        "Endpoints that have the model's LoRA adapter score 1, with room for it 0.8, waiting for it 0.6, others 0.",
        &[], Build::Ignoring(lora_affinity_scorer))
        .when("LoRA adapters, more of them than an endpoint holds at once."),
    beta("prefix-cache-scorer", &[Scorer],
        "The more of a prompt an endpoint has in its prefix cache, the better: all of it scores 1.",
        PREFIX_CACHE, Build::Reading(prefix_cache_scorer))
        .when("Prompts that begin alike: conversations, agents, one system prompt for many."),
    later("precise-prefix-cache-scorer", &[Scorer, DataProducer]),
    beta("load-aware-scorer", &[Scorer],
        "The shorter an endpoint's waiting queue, the better: an empty one scores 0.5, a full one 0.",
        &[parameter("threshold", "128", "requests", "Waiting requests at which an endpoint scores 0. Below 1 means the default.")],
        Build::Reading(load_aware_scorer))
        .when("Beside affinity scorers: it takes from endpoints with a queue, and makes no difference among those without."),
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
    beta("token-load-scorer", &[Scorer],
        "The fewer tokens are under way at an endpoint, this request's included, the better.",
        &[
            parameter("queueThresholdTokens", "4194304", "tokens", "Tokens at which an endpoint scores 0. Below 1 means the default."),
            parameter("inFlightLoadProducerName", "inflight-load-producer", "", "The producer that counts."),
        ],
        Build::Reading(token_load_scorer))
        .when("Prompts of very different lengths: tokens say what requests cost."),
    beta("no-hit-lru-scorer", &[Scorer, PreRequest],
        "Prompts that no endpoint has in its cache go round: the endpoint that got such a prompt the longest ago scores 1, the last one 0. For other prompts all score 0.5.",
        &[
            parameter("lruSize", "1024", "endpoints", "Endpoints whose turn is remembered."),
            parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
            parameter("prefixPluginType", "none", "", "Deprecated, without effect."),
            parameter("prefixPluginName", "none", "", "Deprecated, without effect."),
        ],
        Build::Reading(no_hit_lru_scorer))
        .when("Beside prefix-cache-scorer: new prefixes spread evenly instead of piling up where the queue was short."),
    beta("session-affinity-scorer", &[Scorer, PreRequest, Response],
        "Prefers the endpoint that served a request's session before: it scores 1, all others 0.",
        session::PARAMETERS, Build::Reading(session::session_affinity_scorer)).alpha()
        .when("A conversation should stay at its endpoint, and may leave it when that is busy."),
    beta("header-label-affinity-scorer", &[Scorer],
        "Endpoints with a label that says what a header of the request says score 1, others 0.",
        &[
            parameter("headerName", "", "", "The header of the request."),
            parameter("labelKey", "", "", "The label of the pods."),
        ],
        Build::Reading(header_label_affinity_scorer)).alpha()
        .when("Tenants or regions with endpoints of their own that others may use, too."),
    beta("context-length-aware", &[Filter, Scorer],
        "Sends prompts to the endpoints whose label says that they are for prompts of that length.",
        &[
            parameter("label", "llm-d.ai/context-length-range", "", "The label; its value is MIN-MAX in tokens."),
            parameter("enableFiltering", "false", "", "Remove endpoints that are for other lengths, too."),
        ],
        Build::Reading(context_length_aware))
        .when("Pools in which some endpoints are set up for long prompts."),
    beta("mm-embeddings-cache-scorer", &[Scorer],
        "The more of a request's images, videos and clips an endpoint has encoded already, the better.",
        &[parameter("producerName", "mm-embeddings-cache-producer", "", "The producer that knows what is encoded.")],
        Build::Reading(mm_embeddings_cache_scorer))
        .when("Images, videos or clips that come again, as in a conversation about them."),
    beta("latency-scorer", &[Scorer],
        "Scores by headroom, the latency target less what is predicted: endpoints that keep both targets go first, by the strategy; without targets, the soonest.",
        LATENCY, Build::Reading(latency_scorer))
        .when("Configurations of the Go picker with predicted latencies. expected-latency-scorer needs no weights, and also minds what a request costs others."),
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
        Build::Reading(endpoint_attribute_scorer)).alpha()
        .when("A number of yours says how good an endpoint is, such as a GPU's use."),
    beta("expected-latency-scorer", &[Scorer, PreRequest, Response],
        "The less a request would wait at an endpoint and make others wait, the better: by what it has yet to compute and to decode, how fast it is, and what it has cached. Learns from the responses.",
        EXPECTED_LATENCY, Build::Reading(expected_latency_scorer))
        .when("Wherever nothing else is asked for: alone, it weighs warm caches, queues and batches in seconds, without weights. Usher's own."),
    beta("expected-ttft-scorer", &[Scorer, PreRequest, Response],
        "An older name of expected-latency-scorer.",
        EXPECTED_LATENCY, Build::Reading(expected_latency_scorer)).instead("expected-latency-scorer")
        .when("In configurations that have it already."),
    beta("topology-affinity-scorer", &[Scorer],
        "The nearer an endpoint is to the one that another profile picked, the better: the same host scores 1, rack 0.2, zone 0.05, region 0.02.",
        &[parameter("topologyProducerName", "topology-extractor", "", "The plugin that says where endpoints are.")],
        Build::Reading(topology_affinity_scorer)).alpha()
        .when("Disaggregated pools: near is better, but not required."),
    beta("multicluster-queue-scorer", &[Scorer],
        "The shorter the queues of a cluster, the better: of the number llm-d.ai/multicluster-queue-size the smallest scores 1, the largest 0. Who has not got it, or not lately, scores 0. It has to be among the customMetrics of the plugin core-metrics-extractor.",
        &[], Build::Reading(multicluster_queue_scorer)).alpha()
        .when("Every endpoint is the gateway of a cluster; as metric, for example, llm_d_epp_average_queue_size."),
    beta("multicluster-kv-cache-utilization-scorer", &[Scorer],
        "The emptier the KV caches of a cluster, the better: 1 minus the number llm-d.ai/multicluster-kv-cache-utilization. Who has not got it, or not lately, scores 0. It has to be among the customMetrics of the plugin core-metrics-extractor.",
        &[], Build::Reading(multicluster_kv_cache_scorer)).alpha()
        .when("As multicluster-queue-scorer; as metric, for example, llm_d_epp_average_kv_cache_utilization."),
    beta("multicluster-prefix-cache-scorer", &[Scorer],
        "The more of a prompt a cluster has been sent before, the better: prefix-cache-scorer for endpoints that are clusters.",
        PREFIX_CACHE, Build::Reading(prefix_cache_scorer)).alpha()
        .when("A picker that chooses among clusters."),
];

fn prefix_cache_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PrefixCacheScorerParams::decode(site.parameters)?;
    let prefix = site.reads(&params.prefix_match_info_producer_name);
    let scorer = Arc::new(PrefixCacheScorer::new(&params, prefix));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

fn no_hit_lru_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = NoHitLruParams::decode(site.parameters)?;
    let prefix = site.reads(&params.prefix_match_info_producer_name);
    let order = site.state.of(site.name, ColdOrder::default);
    let plugin = Arc::new(NoHitLruScorer::new(&params, prefix, order));
    let scorer = Some(Arc::clone(&plugin) as _);
    Ok(Built { scorer, pre_request: Some(plugin), ..Built::with(&params)? })
}

fn queue_scorer(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { scorer: Some(Arc::new(QueueScorer)), ..Built::bare() })
}

fn kv_cache_scorer(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { scorer: Some(Arc::new(KvCacheUtilizationScorer)), ..Built::bare() })
}

fn active_request_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ActiveRequestParams::decode(site.parameters)?;
    let counters = site.reads_in_flight(&params.in_flight_load_producer_name);
    let scorer = Arc::new(ActiveRequestScorer::new(&params, counters));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

fn endpoint_attribute_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = EndpointAttributeScorerParams::decode(site.parameters)?;
    Ok(Built { scorer: Some(by_attribute(site, &params)), ..Built::with(&params)? })
}

fn multicluster_queue_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built { scorer: Some(by_attribute(site, &multicluster_queue())), ..Built::bare() })
}

fn multicluster_kv_cache_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built { scorer: Some(by_attribute(site, &multicluster_kv_cache())), ..Built::bare() })
}

fn by_attribute(site: &mut Site<'_>, params: &EndpointAttributeScorerParams) -> Arc<EndpointAttributeScorer> {
    let reading = site.reads_attribute(&params.attribute_key, &params.producer);
    Arc::new(EndpointAttributeScorer::new(reading, params))
}

fn expected_latency_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ExpectedLatencyParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    let reader =
        reads_latency(site, params.peak_prefill_throughput, &params.prefix_match_info_producer_name)?;
    let slo = site.family(SloMetrics::register)?;
    let plugin = Arc::new(ExpectedLatencyScorer::new(reader).counting(slo));
    Ok(Built { scorer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), books: true, ..built })
}

fn latency_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = LatencyScorerParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    let predictions = site.reads(&params.latency_prediction_info_producer_name);
    let prefix = site.reads(&params.prefix_match_info_producer_name);
    Ok(Built { scorer: Some(Arc::new(LatencyScorer::new(params, predictions, prefix))), ..built })
}

fn topology_affinity_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TopologyAffinityScorerParams::decode(site.parameters)?;
    site.reads_live(DataType::Topology, &params.topology_producer_name);
    Ok(Built { scorer: Some(Arc::new(TopologyAffinityScorer)), ..Built::with(&params)? })
}

fn context_length_aware(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ContextLengthParams::decode(site.parameters)?;
    let plugin = Arc::new(ContextLengthAware::new(&params, site.reads("token-producer")));
    let filter = params.enable_filtering.then(|| Arc::clone(&plugin) as _);
    Ok(Built { filter, scorer: Some(plugin), ..Built::with(&params)? })
}

fn header_label_affinity_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = HeaderLabelParams::decode(site.parameters)?;
    let scorer = Arc::new(HeaderLabelAffinityScorer::new(&params));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

fn load_aware_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = LoadAwareParams::decode(site.parameters)?;
    let scorer = Arc::new(LoadAwareScorer::new(&params));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

fn lora_affinity_scorer(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { scorer: Some(Arc::new(LoraAffinityScorer)), ..Built::bare() })
}

fn mm_embeddings_cache_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = MmEmbeddingsCacheParams::decode(site.parameters)?;
    let scorer = Arc::new(MmEmbeddingsCacheScorer::new(site.reads(&params.producer_name)));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

fn running_requests_scorer(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { scorer: Some(Arc::new(RunningRequestsScorer)), ..Built::bare() })
}

fn token_load_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TokenLoadParams::decode(site.parameters)?;
    let counters = site.reads_in_flight(&params.in_flight_load_producer_name);
    let uncached = site.reads(&params.in_flight_load_producer_name);
    let scorer = Arc::new(TokenLoadScorer::new(&params, counters, uncached));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}
