//! Where endpoints and their numbers come from.

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{DataSource, Discovery, Extractor};
use super::super::types::{PluginType, beta, later, parameter};
use crate::config::ConfigError;
use crate::discovery::params::FileDiscoveryParams;
use crate::scrape::params::{CoreMetricsExtractorParams, MetricsSourceParams};

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
            parameter("scheme", "http", "", "Only http in this version."),
            parameter("path", "/metrics", "", "Path of the metrics page."),
            parameter("port", "the endpoint's", "", "Port to ask, for all endpoints."),
            parameter("interval", "--refresh-metrics-interval", "duration", "How often."),
            parameter("insecureSkipVerify", "true", "", "Accepted; means something with https only."),
        ],
        Build::Reading(metrics_data_source))
        .when("Whenever a plugin reads load. Part of the default; declare it for another path, port or interval."),
    later("models-data-source", &[DataSource]),
    later("dcgm-data-source", &[DataSource]).alpha(),
    later("k8s-notification-source", &[DataSource]),
    later("endpoint-notification-source", &[DataSource]),
    later("multicluster-metrics-data-source", &[DataSource]).alpha(),
    beta("core-metrics-extractor", &[Extractor],
        "Takes load and cache geometry from the metrics page of an engine.",
        &[
            parameter("engineLabelKey", "llm-d.ai/engine-type", "", "Label that names an endpoint's engine; only the default in this version."),
            parameter("defaultEngine", "vllm", "", "Engine of endpoints without the label; only vllm in this version."),
            parameter("engineConfigs", "[]", "", "Metric names by engine; only vLLM's own in this version."),
        ],
        Build::Reading(core_metrics_extractor))
        .when("With metrics-data-source. Part of the default."),
    later("models-data-extractor", &[Extractor]),
    later("dcgm-extractor", &[Extractor]).alpha(),
    later("topology-extractor", &[Extractor]).alpha(),
    later("multicluster-metrics-extractor", &[Extractor]).alpha(),
];

fn file_discovery(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = FileDiscoveryParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    Ok(Built { discovery: Some(params), ..built })
}

fn metrics_data_source(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = MetricsSourceParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    Ok(Built { source: Some(params), ..built })
}

fn core_metrics_extractor(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = CoreMetricsExtractorParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    Ok(Built { extractor: Some(params), ..built })
}
