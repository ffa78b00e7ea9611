//! Parameters of the plugins that read model servers' metrics.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::selector::Selector;
use crate::config::{ConfigError, Name, Node, Positioned, units};

/// Parameters of `metrics-data-source`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsSourceParams {
    /// Path of the metrics page, with its slash. Default `/metrics`.
    pub path: String,
    /// Port to ask instead of the endpoint's own, for all endpoints.
    pub port: Option<u16>,
    /// How often; `None`: at every tick of `--refresh-metrics-interval`.
    #[serde(serialize_with = "as_text")]
    pub interval: Option<Duration>,
}

impl Default for MetricsSourceParams {
    fn default() -> Self {
        Self { path: "/metrics".to_owned(), port: None, interval: None }
    }
}

fn as_text<S: Serializer>(interval: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    interval.map(|interval| format!("{interval:?}")).serialize(serializer)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenSource {
    scheme: Option<Name>,
    path: Option<Name>,
    port: Option<Positioned<u16>>,
    /// Means something with https only.
    #[serde(rename = "insecureSkipVerify")]
    _insecure_skip_verify: Option<bool>,
    ca_cert_path: Option<Name>,
    client_cert_path: Option<Name>,
    client_key_path: Option<Name>,
    interval: Option<Name>,
}

impl MetricsSourceParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types and values, and what this version can't do: https.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: WrittenSource = node.decode()?;
        let mut params = Self::default();
        let given = |name: Option<Name>| name.filter(|name| !name.value.is_empty());
        let (cert, key) = (given(written.client_cert_path), given(written.client_key_path));
        if let (Some(one), None) | (None, Some(one)) = (&cert, &key) {
            return Err(ConfigError::at(one.at, "clientCertPath and clientKeyPath go together")
                .hint("set both or neither"));
        }
        for (field, value) in [("caCertPath", given(written.ca_cert_path)), ("clientCertPath", cert)] {
            if let Some(value) = value {
                return Err(unsupported(value.at, field));
            }
        }
        match given(written.scheme) {
            Some(scheme) if scheme.value == "https" => {
                return Err(unsupported(scheme.at, "scheme https"));
            }
            Some(scheme) if scheme.value != "http" => {
                let message = format!("scheme '{}' is not known", scheme.value);
                return Err(ConfigError::at(scheme.at, message).hint("write http"));
            }
            _ => {}
        }
        if let Some(path) = given(written.path) {
            if !path.value.starts_with('/') {
                return Err(ConfigError::at(
                    path.at,
                    format!("path '{}' doesn't begin with a slash", path.value),
                )
                .hint("write for example /metrics"));
            }
            params.path = path.value;
        }
        if let Some(port) = written.port {
            if port.value == 0 {
                return Err(ConfigError::at(port.at, "port 0 can't be asked").hint("1 to 65535"));
            }
            params.port = Some(port.value);
        }
        if let Some(interval) = given(written.interval) {
            let parsed = units::parse_duration(&interval.value);
            let parsed = parsed.map_err(|text| ConfigError::at(interval.at, format!("interval: {text}")))?;
            params.interval = Some(parsed).filter(|interval| !interval.is_zero());
        }
        Ok(params)
    }
}

/// Parameters of `core-metrics-extractor`, as far as this version reads them:
/// every endpoint is taken for the default engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CoreMetricsExtractorParams {
    /// Label of a pod that names its engine.
    pub engine_label_key: String,
    /// The engine of an endpoint whose label says nothing.
    pub default_engine: String,
}

impl Default for CoreMetricsExtractorParams {
    fn default() -> Self {
        Self { engine_label_key: "llm-d.ai/engine-type".to_owned(), default_engine: "vllm".to_owned() }
    }
}

/// Engines whose metrics the peer knows without being told.
const BUILT_IN: [&str; 5] = ["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton"];

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenExtractor {
    engine_label_key: Option<Name>,
    default_engine: Option<Name>,
    engine_configs: Vec<Positioned<WrittenEngine>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenEngine {
    name: Option<Name>,
    queued_requests_spec: Option<Name>,
    running_requests_spec: Option<Name>,
    kv_usage_spec: Option<Name>,
    lora_spec: Option<Name>,
    cache_info_spec: Option<Name>,
    cache_block_size_label_name: Option<Name>,
    cache_num_blocks_label_name: Option<Name>,
    cache_block_size_spec: Option<Name>,
    cache_num_blocks_spec: Option<Name>,
    custom_metrics: Vec<Positioned<WrittenMetric>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenMetric {
    attribute_key: Option<Name>,
    metric_spec: Option<Name>,
}

impl CoreMetricsExtractorParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types and values, and what this version can't do:
    /// engines and mappings other than vLLM's own.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: WrittenExtractor = node.decode()?;
        let params = Self::default();
        let mut names = HashSet::new();
        for engine in &written.engine_configs {
            let name = engine_name(engine)?;
            if !names.insert(&name.value) {
                let message = format!("engineConfigs has two engines named '{}'", name.value);
                return Err(ConfigError::at(name.at, message));
            }
            engine.value.check()?;
        }
        if let Some(engine) = written.default_engine.filter(|engine| !engine.value.is_empty()) {
            let known = || BUILT_IN.into_iter().chain(names.iter().map(|name| name.as_str()));
            if !known().any(|name| name == engine.value) {
                let message = format!("defaultEngine '{}' is not known", engine.value);
                return Err(ConfigError::at(engine.at, message).did_you_mean(&engine.value, known()));
            }
            if engine.value != params.default_engine {
                return Err(unsupported(engine.at, &format!("defaultEngine {}", engine.value)));
            }
        }
        if let Some(label) = written.engine_label_key.filter(|label| !label.value.is_empty())
            && label.value != params.engine_label_key
        {
            return Err(unsupported(label.at, "an engineLabelKey other than llm-d.ai/engine-type"));
        }
        written.engine_configs.iter().try_for_each(refuse_other_mappings)?;
        Ok(params)
    }
}

fn engine_name(engine: &Positioned<WrittenEngine>) -> Result<&Name, ConfigError> {
    match &engine.value.name {
        Some(name) if name.value == "default" => {
            Err(ConfigError::at(name.at, "an engine can't be named 'default'").hint("set defaultEngine"))
        }
        Some(name) if !name.value.is_empty() => Ok(name),
        _ => Err(ConfigError::at(engine.at, "an engine of engineConfigs is missing a name")),
    }
}

impl WrittenEngine {
    /// The fields that name a metric, with the name that vLLM's own mapping has there.
    fn specs(&self) -> [(&'static str, &Option<Name>, &'static str); 7] {
        [
            ("queuedRequestsSpec", &self.queued_requests_spec, "vllm:num_requests_waiting"),
            ("runningRequestsSpec", &self.running_requests_spec, "vllm:num_requests_running"),
            ("kvUsageSpec", &self.kv_usage_spec, "vllm:kv_cache_usage_perc"),
            ("loraSpec", &self.lora_spec, "vllm:lora_requests_info"),
            ("cacheInfoSpec", &self.cache_info_spec, "vllm:cache_config_info"),
            ("cacheBlockSizeSpec", &self.cache_block_size_spec, ""),
            ("cacheNumBlocksSpec", &self.cache_num_blocks_spec, ""),
        ]
    }

    /// The fields that name a label, with their defaults, which are vLLM's.
    fn labels(&self) -> [(&'static str, &Option<Name>, &'static str); 2] {
        [
            ("cacheBlockSizeLabelName", &self.cache_block_size_label_name, "block_size"),
            ("cacheNumBlocksLabelName", &self.cache_num_blocks_label_name, "num_gpu_blocks"),
        ]
    }

    fn check(&self) -> Result<(), ConfigError> {
        for (field, spec, _) in self.specs() {
            if let Some(spec) = spec.as_ref().filter(|spec| !spec.value.is_empty()) {
                check_selector(field, spec)?;
            }
        }
        let mut keys = HashSet::new();
        for Positioned { at, value: metric } in &self.custom_metrics {
            let given = |name: &'static str, value: &'_ Option<Name>| match value {
                Some(value) if !value.value.is_empty() => Ok(value.clone()),
                _ => Err(ConfigError::at(*at, format!("a custom metric is missing its {name}"))),
            };
            let key = given("attributeKey", &metric.attribute_key)?;
            check_selector("metricSpec", &given("metricSpec", &metric.metric_spec)?)?;
            if !keys.insert(key.value.clone()) {
                let message = format!("customMetrics has the attributeKey '{}' twice", key.value);
                return Err(ConfigError::at(key.at, message));
            }
        }
        Ok(())
    }
}

fn check_selector(field: &str, spec: &Name) -> Result<(), ConfigError> {
    Selector::parse(&spec.value).map(|_| ()).map_err(|text| {
        ConfigError::at(spec.at, format!("{field}: {text}")).hint("write name or name{label=value}")
    })
}

/// A configured engine replaces the built-in one of its name as a whole, so it
/// is accepted only if nothing changes.
fn refuse_other_mappings(engine: &Positioned<WrittenEngine>) -> Result<(), ConfigError> {
    let written = &engine.value;
    let name = written.name.as_ref().map_or("", |name| &name.value);
    if name != "vllm" {
        return Err(unsupported(engine.at, &format!("engineConfigs for the engine '{name}'")));
    }
    if let Some(metric) = written.custom_metrics.first() {
        return Err(unsupported(metric.at, "customMetrics"));
    }
    for (field, spec, ours) in written.specs() {
        let metric = spec.as_ref().and_then(|spec| Selector::parse(&spec.value).ok());
        let same = metric.map_or(ours.is_empty(), |m| m.metric == ours && m.labels.is_empty());
        if !same {
            let at = spec.as_ref().map_or(engine.at, |spec| spec.at);
            return Err(unsupported(at, &format!("a {field} of vllm other than '{ours}'")));
        }
    }
    for (field, label, ours) in written.labels() {
        if let Some(label) = label.as_ref().filter(|label| !label.value.is_empty() && label.value != ours) {
            return Err(unsupported(label.at, &format!("a {field} of vllm other than '{ours}'")));
        }
    }
    Ok(())
}

fn unsupported(at: crate::config::Position, what: &str) -> ConfigError {
    ConfigError::at(at, format!("{what}: not supported by this version"))
}
