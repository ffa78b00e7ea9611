//! Sources of endpoints and their numbers.

use std::collections::HashMap;

use usher_plugin::Kind::{DataSource, Discovery, Extractor};
use usher_plugin::{Build, BuildContext, DataType, PluginParts, PluginType, beta, later};

use crate::config::ConfigError;
use crate::discovery::params::FileDiscoveryParams;
use crate::scrape::params::{
    CoreMetricsExtractorParams, DcgmSourceParams, MetricsSourceParams, ModelsSourceParams,
    NotificationParams, SourceKind, SourceParams,
};
use crate::scrape::{DCGM_EXTRACTOR_TYPE, Engines};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("file-discovery", &[Discovery],
        "Reads the endpoints from a file.",
        Build::Reading(file_discovery)).takes::<FileDiscoveryParams>()
        .when("Without Kubernetes, or with an endpoints file that something else writes."),
    later("multicluster-file-discovery", &[Discovery]).alpha(),
    beta("metrics-data-source", &[DataSource],
        "Polls the metrics page of every endpoint.",
        Build::Reading(metrics_data_source)).takes::<MetricsSourceParams>()
        .when("Whenever a plugin reads load. Part of the default; declare it for another path, port or interval."),
    beta("models-data-source", &[DataSource],
        "Polls every endpoint's list of models.",
        Build::Reading(models_data_source)).takes::<ModelsSourceParams>()
        .when("To see on the admin port which endpoint has which models and adapters."),
    beta("dcgm-data-source", &[DataSource],
        "Polls NVIDIA's DCGM exporter of every endpoint.",
        Build::Reading(dcgm_data_source)).takes::<DcgmSourceParams>().alpha()
        .when("With dcgm-extractor, where GPUs do other work than the model servers'."),
    beta("k8s-notification-source", &[DataSource],
        "Would notify plugins of changes of objects in Kubernetes. Accepted; plugins learn of endpoints from discovery.",
        Build::Reading(k8s_notification_source)).takes::<NotificationParams>()
        .when("Never; a configuration that has it works."),
    beta("endpoint-notification-source", &[DataSource],
        "Would notify plugins of endpoints that come and go. Accepted; plugins learn of that from discovery.",
        Build::Reading(endpoint_notification_source))
        .when("Never; a configuration that has it works."),
    later("multicluster-metrics-data-source", &[DataSource]).alpha(),
    beta("core-metrics-extractor", &[Extractor],
        "Takes load, cache geometry and numbers of your choice from the metrics page of an engine: vllm, sglang, trtllm-serve, triton-tensorrt-llm, triton, or one that you describe.",
        Build::Reading(core_metrics_extractor)).takes::<CoreMetricsExtractorParams>()
        .when("With metrics-data-source. Part of the default; declare it for engines other than vLLM, or for numbers of your own."),
    beta("models-data-extractor", &[Extractor],
        "Takes an endpoint's models from its list.",
        Build::Reading(models_data_extractor))
        .when("With models-data-source."),
    beta("dcgm-extractor", &[Extractor],
        "Reads GPU utilization from DCGM_FI_DEV_GPU_UTIL, 0 to 1: the attribute GPUUtilization, of several GPUs the busiest. Series with labels pod and namespace count for that pod only.",
        Build::Reading(dcgm_extractor)).alpha()
        .when("With dcgm-data-source; endpoint-attribute-scorer and endpoint-attribute-filter read the attribute of the producer dcgm-extractor, whatever this is called."),
    beta("topology-extractor", &[Extractor],
        "Says on which host, in which rack, zone and region each endpoint is, by its labels kubernetes.io/hostname and topology.kubernetes.io/rack, zone and region. It needs no data source.",
        Build::Reading(topology_extractor)).alpha()
        .when("With topology-affinity-scorer or topology-affinity-filter; added by itself for them."),
    later("multicluster-metrics-extractor", &[Extractor]).alpha(),
];

/// Sources of data about endpoints.
#[derive(Clone, Debug)]
pub(in crate::registry) enum Source {
    /// Polled at an interval.
    Polled(SourceParams),
    /// Sends changes, which plugins here get from discovery.
    Notifications,
}

/// Marks an extractor that reads lists of models.
pub(in crate::registry) struct ReadsModels;

fn file_discovery(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = FileDiscoveryParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    Ok(parts.with_extra(params))
}

fn metrics_data_source(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    polled(cx, SourceKind::Metrics)
}

fn models_data_source(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    polled(cx, SourceKind::Models)
}

fn dcgm_data_source(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    polled(cx, SourceKind::Dcgm)
}

fn polled(cx: &mut BuildContext<'_>, kind: SourceKind) -> Result<PluginParts, ConfigError> {
    let params = SourceParams::decode(kind, cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    Ok(parts.with_extra(Source::Polled(params)))
}

fn k8s_notification_source(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let parts = PluginParts::with(&NotificationParams::decode(cx.parameters)?)?;
    Ok(parts.with_extra(Source::Notifications))
}

fn endpoint_notification_source(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts::bare().with_extra(Source::Notifications))
}

fn models_data_extractor(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts::bare().with_extra(ReadsModels))
}

fn dcgm_extractor(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    let id = cx.produces_attribute_as(DCGM_EXTRACTOR_TYPE, "GPUUtilization");
    Ok(PluginParts::bare().with_extra(Engines::dcgm(id)))
}

fn core_metrics_extractor(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = CoreMetricsExtractorParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    cx.produces_readings();
    let mut ids = HashMap::new();
    for key in params.attribute_keys() {
        ids.insert(key, cx.produces_attribute(key));
    }
    let engines = params.engines(|key| ids.get(key).cloned());
    Ok(parts.with_extra(engines))
}

fn topology_extractor(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    cx.produces_live(DataType::Topology);
    Ok(PluginParts::bare())
}
