//! Data producers.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::Kind::{DataProducer, Extractor, PreRequest, Response};
use usher_plugin::{Build, Built, Parameter, PluginType, Site, beta, later, parameter};

use crate::latency::{SloMetrics, reads_latency, throughput};
use crate::{
    ApproxPrefixKeys, ApproxPrefixParams, ApproxPrefixProducer, P2pSource, P2pSourceParams, PrefixCaches,
    PrefixFamilies,
};
use crate::{BurstFamilies, BurstPrefixParams, BurstPrefixProducer};
use crate::{
    EncoderCaches, EncoderFamilies, InflightFamilies, InflightLoadParams, InflightLoadProducer,
    InflightSeries, MmEmbeddingsCacheProducer, MmEmbeddingsCacheProducerParams, SessionIdParams,
    SessionIdProducer, TokenParams, TokenProducer,
};
use crate::{PredictedLatencyParams, PredictedLatencyProducer, PredictionFamilies, PredictionSeries};

const TOKENS: &[Parameter] = &[
    parameter(
        "estimate",
        "{}",
        "",
        "How to estimate; nothing can be set in this version. Videos are as long and as large as the headers x-llm-d-video-fps, x-llm-d-video-duration-seconds and x-llm-d-video-resolution (640x360) say, or else 10 seconds at 2 frames.",
    ),
    parameter("vllm", "none", "", "Ask a vLLM server to tokenize. Not in this version."),
    parameter("modelName", "none", "", "The tokenizer's model. Not in this version."),
];

#[rustfmt::skip]
const APPROX_PREFIX: &[Parameter] = &[
    parameter("autoTune", "true", "", "Take the size of a block and the size of the caches from what the endpoints report."),
    parameter("blockSizeTokens", "16", "tokens", "Size of a block where none is reported; at least 64 count. The first candidate's report counts for all."),
    parameter("blockSize", "none", "tokens", "Deprecated, the older name of blockSizeTokens."),
    parameter("maxPrefixTokensToMatch", "131072", "tokens", "How much of a request's prompts is looked at. 0: as many blocks as the next parameter says."),
    parameter("maxPrefixBlocksToMatch", "2048", "blocks", "Deprecated. 0: all, which is 131,072 blocks."),
    parameter("lruCapacityPerServer", "31250", "blocks", "Size of a cache where none is reported. Below 1 means the default."),
];

#[rustfmt::skip]
const PREDICTED_LATENCY: &[Parameter] = &[
    parameter("sloBufferFactor", "1", "", "Part of a target for the time per output token that counts, above 0."),
    parameter("contextTTL", "5m", "", "Accepted and ignored: what is known of a request goes with it."),
    parameter("streamingMode", "false", "", "The time per output token counts. Without it only that to the first token does."),
    parameter("endpointRoleLabel", "none", "", "Label of the endpoints' role: where that is prefill, the time per output token doesn't count."),
    parameter("predictInProduce", "true", "", "Predict. With false it only learns, and scorers go by what they do without predictions."),
    parameter("useEncoderCacheFeatures", "false", "", "Accepted and ignored."),
    parameter("samplingMean", "none", "", "Accepted and ignored."),
    parameter("maxDecodeTokenSamplesForPrediction", "none", "", "Accepted and ignored."),
    parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
    parameter("inFlightLoadProducerName", "none", "", "Accepted and ignored: the model counts what is in flight."),
    parameter("encoderCacheMatchInfoProducerName", "none", "", "Accepted and ignored."),
];

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("token-producer", &[DataProducer],
        "Estimates how many tokens a prompt has: one for four bytes of text, or 1,024 pixels.",
        TOKENS, Build::Reading(token_producer))
        .when("Added by itself where a plugin needs the length of prompts."),
    beta("tokenizer", &[DataProducer],
        "The older name of token-producer.",
        TOKENS, Build::Reading(token_producer)).instead("token-producer")
        .when("Not in new configurations."),
    beta("approx-prefix-cache-producer", &[DataProducer, PreRequest],
        "Says how much of a prompt each endpoint has in its prefix cache, by what it was sent before.",
        APPROX_PREFIX, Build::Reading(approx_prefix))
        .when("Added by itself where a plugin reads what is cached; declare it for endpoints that don't report their cache's size, or for longer prompts."),
    beta("multicluster-approx-prefix-cache-producer", &[DataProducer, PreRequest],
        "approx-prefix-cache-producer for endpoints that are clusters.",
        APPROX_PREFIX, Build::Reading(multicluster_approx_prefix)).alpha()
        .when("A picker that chooses among clusters."),
    later("precise-prefix-cache-producer", &[DataProducer, PreRequest, Extractor]),
    beta("burst-prefix-cache-producer", &[DataProducer],
        "Holds requests for a moment, and says of those that have their prompt in common that one endpoint has it cached.",
        &[
            parameter("windowDurationMs", "100", "ms", "How long requests are held, from the first of them on; 1 to 10,000."),
            parameter("maxPerReplica", "-1", "requests", "Most requests with one prompt that an endpoint gets; below 1: all of them. What is too many everywhere goes anywhere."),
            parameter("blockSizeTokens", "64", "tokens", "Size of the blocks in which prompts are compared."),
            parameter("maxPrefixTokensToMatch", "0", "tokens", "How much of a request's prompts is compared. 0: 2048 blocks."),
            parameter("minColocateBlocks", "0", "blocks", "What different prompts have to share at their beginning to go to one endpoint, as long as that has less than its share. 0: only equal prompts do."),
            parameter("maxBatchSize", "1000", "requests", "Requests that are held at a time; others go on at once."),
            parameter("balanceBy", "requests", "", "requests or tokens: what endpoints get equally much of."),
        ],
        Build::Reading(burst_prefix)).alpha()
        .when("Bursts of requests with one prompt, such as samples for reinforcement learning: they come before any cache knows the prompt. A prefix-cache-scorer reads what it says."),
    beta("inflight-load-producer", &[DataProducer, PreRequest, Response],
        "Counts requests and tokens under way at each endpoint, and says what a request would add.",
        &[
            parameter("addEstimatedOutputTokens", "false", "", "Count the tokens that will probably be generated, too."),
            parameter("outputRatio", "1.5", "", "Generated tokens per token of the prompt."),
            parameter("maxEstimatedOutputTokens", "no limit", "tokens", "Most generated tokens counted for a request."),
            parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
            parameter("syncCrossReplicaState", "true", "", "Share what is in flight with other replicas. No effect yet."),
        ],
        Build::Reading(inflight_load_producer))
        .when("Added by itself where a plugin reads what is in flight; declare it to count generated tokens, too."),
    beta("mm-embeddings-cache-producer", &[DataProducer, PreRequest],
        "Remembers which images, videos and clips each endpoint has encoded.",
        &[parameter("cacheSizeInMBPerServer", "4096", "MB", "Size of an endpoint's encoder cache; an item takes 2.")],
        Build::Reading(mm_embeddings_cache_producer))
        .when("Added by itself for mm-embeddings-cache-scorer; declare it for encoder caches of another size."),
    beta("predicted-latency-producer", &[DataProducer, PreRequest, Response],
        "Predicts when each endpoint would send the first token of a request and how fast the others, and how far that is from the request's latency targets.",
        PREDICTED_LATENCY, Build::Reading(predicted_latency))
        .when("Added by itself where a plugin reads predicted latencies; declare it to set its parameters. It learns in this process: no sidecar is called."),
    beta("session-id-producer", &[DataProducer],
        "Says which session a request belongs to. Exactly one of its parameters is given.",
        &[
            parameter("headerName", "none", "", "The header in which clients name their session."),
            parameter("cookieName", "none", "", "The cookie in which they do."),
        ],
        Build::Reading(session_id_producer))
        .when("Where a header or a cookie names the session."),
    beta("p2p-source-producer", &[DataProducer, PreRequest],
        "Names in the header x-kv-cache-source-host-port from which other pod the one that computes a prompt can take what that has cached of it.",
        &[
            parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
            parameter("minCachedTokenDelta", "1", "tokens", "How much more the other pod has to have cached, at least 1."),
            parameter("prefillProfileName", "the profile handler's", "", "The profile whose first pick computes the prompt, where it runs."),
        ],
        Build::Reading(p2p_source)).alpha()
        .when("Pods that can take cached blocks from each other faster than they compute them."),
];

fn token_producer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TokenParams::decode(site.parameters)?;
    let producer = Arc::new(TokenProducer::new(site.produces()));
    Ok(Built { producer: Some(producer), ..Built::with(&params)? })
}

fn approx_prefix(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    approx_prefix_of(site, "approx-prefix-cache-producer")
}

fn multicluster_approx_prefix(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    approx_prefix_of(site, "multicluster-approx-prefix-cache-producer")
}

fn approx_prefix_of(site: &mut Site<'_>, plugin_type: &str) -> Result<Built, ConfigError> {
    let params = ApproxPrefixParams::decode(site.parameters)?;
    let families = site.family(PrefixFamilies::register)?;
    let caches = site.state.try_of(site.name, || match site.state.clock().is_stopped() {
        true => Ok(PrefixCaches::inline(site.state.budget())),
        false => PrefixCaches::start_within(site.state.budget()),
    });
    let caches = caches.map_err(|error| {
        ConfigError::at(site.at, format!("no thread can be started that fills its index: {error}"))
    })?;
    let keys = ApproxPrefixKeys { prefix: site.produces(), blocks: site.produces() };
    let names = (site.name, plugin_type);
    let plugin = Arc::new(ApproxPrefixProducer::new(params, keys, caches, &families, names));
    let built = Built::with(&params)?;
    Ok(Built { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..built })
}

fn inflight_load_producer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = InflightLoadParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    let counters = site.counts_in_flight();
    let tokens = site.reads("token-producer");
    let prefix = site.may_read(&params.prefix_match_info_producer_name);
    let uncached = site.produces();
    let families = site.family(InflightFamilies::register)?;
    let series = site.state.of(site.name, || InflightSeries::new(families, site.name));
    let plugin = Arc::new(InflightLoadProducer::new(params, counters, tokens, prefix, uncached, series));
    Ok(Built { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..built })
}

fn mm_embeddings_cache_producer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = MmEmbeddingsCacheProducerParams::decode(site.parameters)?;
    let families = site.family(EncoderFamilies::register)?;
    let caches = site.state.of(site.name, || EncoderCaches::new(families, site.name));
    let plugin = Arc::new(MmEmbeddingsCacheProducer::new(&params, caches, site.produces()));
    let built = Built::with(&params)?;
    Ok(Built { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..built })
}

fn burst_prefix(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = BurstPrefixParams::decode(site.parameters)?;
    let families = site.family(BurstFamilies::register)?;
    let clock = site.state.clock().clone();
    let plugin = BurstPrefixProducer::new(params, site.produces(), clock, &families, site.name);
    Ok(Built { gatherer: Some(Arc::new(plugin)), ..Built::with(&params)? })
}

fn predicted_latency(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PredictedLatencyParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    let reader = reads_latency(site, throughput(None)?, &params.prefix_match_info_producer_name)?;
    let families = site.family(PredictionFamilies::register)?;
    let series = Arc::new(PredictionSeries::new(families, site.name));
    let metrics = (series, site.family(SloMetrics::register)?);
    let clock = site.state.clock().clone();
    let plugin = Arc::new(PredictedLatencyProducer::new(params, reader, site.produces(), metrics, clock));
    let note = format!(
        "plugin '{}': latencies are predicted by this process; the servers of TRAINING_SERVER_URL and PREDICTION_SERVER_URL are not called",
        site.name
    );
    let notes = vec![note];
    Ok(Built { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), notes, ..built })
}

fn p2p_source(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = P2pSourceParams::decode(site.parameters)?;
    let plugin = Arc::new(P2pSource::new(&params, site.reads(&params.prefix_match_info_producer_name)));
    let profiles = params.prefill_profile_name.iter().map(|name| ("prefillProfileName", name.clone()));
    Ok(Built { pre_request: Some(plugin), profiles: profiles.collect(), ..Built::with(&params)? })
}

fn session_id_producer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = SessionIdParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    let producer = Arc::new(SessionIdProducer::new(params, site.produces()));
    Ok(Built { producer: Some(producer), ..built })
}
