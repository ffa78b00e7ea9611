//! Where endpoints and their numbers come from.

use std::collections::HashMap;

use usher_plugin::Kind::{DataSource, Discovery, Extractor};
use usher_plugin::{Build, Built, DataType, Parameter, PluginType, Site, beta, later, parameter};

use crate::config::ConfigError;
use crate::discovery::params::FileDiscoveryParams;
use crate::scrape::params::{CoreMetricsExtractorParams, NotificationParams, SourceKind, SourceParams};
use crate::scrape::{DCGM_EXTRACTOR_TYPE, Engines};

#[rustfmt::skip]
const CORE_METRICS: &[Parameter] = &[
    parameter("engineLabelKey", "llm-d.ai/engine-type", "", "Label that names an endpoint's engine. Where it is missing or empty, inference.networking.k8s.io/engine-type is read."),
    parameter("defaultEngine", "vllm", "", "Engine of endpoints whose label names none, or none that is known."),
    parameter("engineConfigs", "[]", "", "Engines beside the built-in ones; one with the name of a built-in engine replaces it as a whole."),
    parameter("engineConfigs[].name", "", "", "Name of the engine; not default."),
    parameter("engineConfigs[].queuedRequestsSpec", "none", "", "Metric with the requests waiting. All metrics are written name or name{label=value}, and several series are added up unless something else is said here. One that is left out isn't read."),
    parameter("engineConfigs[].runningRequestsSpec", "none", "", "Metric with the requests running."),
    parameter("engineConfigs[].kvUsageSpec", "none", "", "Metric with the share of the KV cache in use, 0 to 1; of several series the largest."),
    parameter("engineConfigs[].loraSpec", "none", "", "Metric with LoRA adapters in the labels running_lora_adapters, waiting_lora_adapters and max_lora; of several series the one with the largest value."),
    parameter("engineConfigs[].cacheInfoSpec", "none", "", "Metric with the geometry of the KV cache in labels."),
    parameter("engineConfigs[].cacheBlockSizeLabelName", "block_size", "", "Its label with the tokens per block."),
    parameter("engineConfigs[].cacheNumBlocksLabelName", "num_gpu_blocks", "", "Its label with the number of blocks."),
    parameter("engineConfigs[].cacheBlockSizeSpec", "none", "", "Metric with the tokens per block, instead of the label; of several series the largest."),
    parameter("engineConfigs[].cacheNumBlocksSpec", "none", "", "Metric with the number of blocks, instead of the label."),
    parameter("engineConfigs[].customMetrics", "[]", "", "Further numbers, for endpoint-attribute-scorer and endpoint-attribute-filter; 16 in all."),
    parameter("engineConfigs[].customMetrics[].attributeKey", "", "", "What these plugins call it. Several engines may have the same."),
    parameter("engineConfigs[].customMetrics[].metricSpec", "", "", "Its metric; of several series the one with the newest timestamp, else the first."),
];

const INSECURE: Parameter = parameter("insecureSkipVerify", "true", "", "With https, take any certificate.");
const CA: Parameter = parameter(
    "caCertPath",
    "the system's",
    "",
    "PEM file of who may sign certificates, which are for the endpoints' IP addresses.",
);
const CLIENT_CERT: Parameter =
    parameter("clientCertPath", "none", "", "PEM file of the certificate to show, with clientKeyPath.");
const CLIENT_KEY: Parameter = parameter("clientKeyPath", "none", "", "PEM file of its key.");

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("file-discovery", &[Discovery],
        "Reads the endpoints from a file.",
        &[
            parameter("path", "", "", "The endpoints file; a relative path counts from the working directory."),
            parameter("watchFile", "false", "", "Read the file again whenever it changes."),
        ],
        Build::Reading(file_discovery))
        .when("Without Kubernetes, or with an endpoints file that something else writes."),
    later("multicluster-file-discovery", &[Discovery]).alpha(),
    beta("metrics-data-source", &[DataSource],
        "Polls the metrics page of every endpoint.",
        &[
            parameter("scheme", "http", "", "http or https."),
            parameter("path", "/metrics", "", "Path of the metrics page."),
            parameter("port", "the endpoint's", "", "Port to ask, for all endpoints."),
            parameter("interval", "--refresh-metrics-interval", "duration", "How often; at least 50ms."),
            INSECURE, CA, CLIENT_CERT, CLIENT_KEY,
            parameter("acceptGzip", "false", "", "Usher's own: ask for compressed pages, where the network costs more than a processor."),
            parameter("selectMetrics", "false", "", "Usher's own: ask for the metrics in use only, with path/?name[]=…, which vLLM answers without computing the others. A server whose answer then lacks one is asked for whole pages."),
        ],
        Build::Reading(metrics_data_source))
        .when("Whenever a plugin reads load. Part of the default; declare it for another path, port or interval."),
    beta("models-data-source", &[DataSource],
        "Polls every endpoint's list of models.",
        &[
            parameter("scheme", "http", "", "http or https."),
            parameter("path", "/v1/models", "", "Path of the list."),
            parameter("interval", "1s", "duration", "How often; at least 50ms."),
            INSECURE, CA, CLIENT_CERT, CLIENT_KEY,
        ],
        Build::Reading(models_data_source))
        .when("To see on the admin port which endpoint has which models and adapters."),
    beta("dcgm-data-source", &[DataSource],
        "Polls NVIDIA's DCGM exporter of every endpoint.",
        &[
            parameter("scheme", "http", "", "http or https."),
            parameter("path", "/metrics", "", "Path of the metrics page."),
            parameter("port", "9400", "", "Port of the exporter."),
            parameter("useNodeAddress", "false", "", "The exporter runs on the endpoint's node, not in its pod. An endpoint whose node discovery doesn't know isn't asked."),
            parameter("interval", "1s", "duration", "How often; at least 50ms."),
            INSECURE,
        ],
        Build::Reading(dcgm_data_source)).alpha()
        .when("With dcgm-extractor, where GPUs do other work than the model servers'."),
    beta("k8s-notification-source", &[DataSource],
        "Would tell plugins of changes of objects in Kubernetes. Accepted; plugins hear of endpoints from discovery.",
        &[
            parameter("group", "none", "", "API group of the objects; none is the core group."),
            parameter("version", "", "", "Version of their API."),
            parameter("kind", "", "", "Their kind."),
        ],
        Build::Reading(k8s_notification_source))
        .when("Never; a configuration that has it works."),
    beta("endpoint-notification-source", &[DataSource],
        "Would tell plugins of endpoints that come and go. Accepted; plugins hear of that from discovery.",
        &[], Build::Reading(endpoint_notification_source))
        .when("Never; a configuration that has it works."),
    later("multicluster-metrics-data-source", &[DataSource]).alpha(),
    beta("core-metrics-extractor", &[Extractor],
        "Takes load, cache geometry and numbers of your choice from the metrics page of an engine: vllm, sglang, trtllm-serve, triton-tensorrt-llm, triton, or one that you describe.",
        CORE_METRICS, Build::Reading(core_metrics_extractor))
        .when("With metrics-data-source. Part of the default; declare it for engines other than vLLM, or for numbers of your own."),
    beta("models-data-extractor", &[Extractor],
        "Takes an endpoint's models from its list.",
        &[], Build::Reading(models_data_extractor))
        .when("With models-data-source."),
    beta("dcgm-extractor", &[Extractor],
        "Takes how busy an endpoint's GPUs are from DCGM_FI_DEV_GPU_UTIL, 0 to 1: the attribute GPUUtilization, of several GPUs the busiest. Series with labels pod and namespace count for that pod only.",
        &[], Build::Reading(dcgm_extractor)).alpha()
        .when("With dcgm-data-source; endpoint-attribute-scorer and endpoint-attribute-filter read the attribute of the producer dcgm-extractor, whatever this is called."),
    beta("topology-extractor", &[Extractor],
        "Says on which host, in which rack, zone and region each endpoint is, by its labels kubernetes.io/hostname and topology.kubernetes.io/rack, zone and region. It needs no data source.",
        &[], Build::Reading(topology_extractor)).alpha()
        .when("With topology-affinity-scorer or topology-affinity-filter; added by itself for them."),
    later("multicluster-metrics-extractor", &[Extractor]).alpha(),
];

/// Where data about endpoints come from.
#[derive(Clone, Debug)]
pub(in crate::schedule::registry) enum Source {
    /// It is polled.
    Polled(SourceParams),
    /// It tells of changes, which plugins here hear of from discovery.
    Notifications,
}

/// Marks an extractor that reads lists of models.
pub(in crate::schedule::registry) struct ReadsModels;

fn file_discovery(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = FileDiscoveryParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    Ok(built.with_extra(params))
}

fn metrics_data_source(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    polled(site, SourceKind::Metrics)
}

fn models_data_source(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    polled(site, SourceKind::Models)
}

fn dcgm_data_source(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    polled(site, SourceKind::Dcgm)
}

fn polled(site: &mut Site<'_>, kind: SourceKind) -> Result<Built, ConfigError> {
    let params = SourceParams::decode(kind, site.parameters)?;
    let built = Built::with(&params)?;
    Ok(built.with_extra(Source::Polled(params)))
}

fn k8s_notification_source(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let built = Built::with(&NotificationParams::decode(site.parameters)?)?;
    Ok(built.with_extra(Source::Notifications))
}

fn endpoint_notification_source(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built::bare().with_extra(Source::Notifications))
}

fn models_data_extractor(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built::bare().with_extra(ReadsModels))
}

fn dcgm_extractor(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    let id = site.produces_attribute_as(DCGM_EXTRACTOR_TYPE, "GPUUtilization");
    Ok(Built::bare().with_extra(Engines::dcgm(id)))
}

fn core_metrics_extractor(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = CoreMetricsExtractorParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    site.produces_readings();
    let mut ids = HashMap::new();
    for key in params.attribute_keys() {
        ids.insert(key, site.produces_attribute(key));
    }
    let engines = params.engines(|key| ids.get(key).cloned());
    Ok(built.with_extra(engines))
}

fn topology_extractor(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    site.produces_live(DataType::Topology);
    Ok(Built::bare())
}
