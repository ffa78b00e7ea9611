//! Parameters of `core-metrics-extractor`: which metric of which engine says what.

use std::collections::HashSet;

use serde::{Deserialize, Serialize, Serializer};

use crate::config::{ConfigError, Name, Node, Positioned};
use crate::endpoints::{AttributeId, Lease, Reading};
use crate::scrape::engine::{AttributeReading, AttributeSpec, ENGINE_LABEL, Engine, EngineSpec, Engines};
use crate::scrape::exposition::MetricSpec;
use crate::scrape::selector;

/// Parameters of `core-metrics-extractor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CoreMetricsExtractorParams {
    /// Label of a pod that names its engine. Default `llm-d.ai/engine-type`; where a pod
    /// hasn't got it, its former name is looked for.
    pub engine_label_key: String,
    /// The engine of an endpoint whose label says nothing, or nothing known. Default `vllm`.
    pub default_engine: String,
    /// Engines beside the built-in ones, or in the place of one with the same name.
    pub engine_configs: Vec<EngineParams>,
}

impl Default for CoreMetricsExtractorParams {
    fn default() -> Self {
        Self {
            engine_label_key: ENGINE_LABEL.to_owned(),
            default_engine: "vllm".to_owned(),
            engine_configs: Vec::new(),
        }
    }
}

/// The metrics of an engine. A metric that isn't given isn't read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineParams {
    /// Name of the engine, as the label has it.
    pub name: String,
    /// Requests waiting.
    pub queued_requests_spec: Option<MetricText>,
    /// Requests running.
    pub running_requests_spec: Option<MetricText>,
    /// Share of the KV cache in use, 0..=1.
    pub kv_usage_spec: Option<MetricText>,
    /// LoRA adapters in labels.
    pub lora_spec: Option<MetricText>,
    /// The cache's geometry in labels.
    pub cache_info_spec: Option<MetricText>,
    /// Label with the tokens per block. Default `block_size`.
    pub cache_block_size_label_name: String,
    /// Label with the number of blocks. Default `num_gpu_blocks`.
    pub cache_num_blocks_label_name: String,
    /// Tokens per block as a value.
    pub cache_block_size_spec: Option<MetricText>,
    /// The number of blocks as a value.
    pub cache_num_blocks_spec: Option<MetricText>,
    /// Numbers that are read beside these.
    pub custom_metrics: Vec<CustomMetric>,
}

/// A number of endpoints that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomMetric {
    /// What filters and scorers call it.
    pub attribute_key: String,
    /// The metric.
    pub metric_spec: MetricText,
}

/// A metric and how the configuration writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricText {
    text: String,
    metric: MetricSpec,
}

impl MetricText {
    /// The metric.
    pub fn metric(&self) -> &MetricSpec {
        &self.metric
    }

    fn parse(field: &str, written: &Name) -> Result<Self, ConfigError> {
        let text = written.value.trim();
        let metric = selector::parse(text).map_err(|problem| {
            ConfigError::at(written.at, format!("{field}: {problem}")).hint("write name or name{label=value}")
        })?;
        Ok(Self { text: text.to_owned(), metric })
    }
}

impl Serialize for MetricText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

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
    cache_block_size_label_name: Option<String>,
    cache_num_blocks_label_name: Option<String>,
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
    /// Unknown keys, wrong types, engines and attributes without a name or with one that
    /// is taken, metrics that can't be read, and a default engine that doesn't exist.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: WrittenExtractor = node.decode()?;
        let mut params = Self::default();
        for Positioned { at, value: engine } in written.engine_configs {
            let name = match engine.name.clone() {
                Some(name) if !name.value.is_empty() => name,
                _ => return Err(ConfigError::at(at, "an engine of engineConfigs is missing a name")),
            };
            if name.value == "default" {
                return Err(
                    ConfigError::at(name.at, "an engine can't be named 'default'").hint("set defaultEngine")
                );
            }
            if params.engine_configs.iter().any(|known| known.name == name.value) {
                let message = format!("engineConfigs has two engines named '{}'", name.value);
                return Err(ConfigError::at(name.at, message).hint("remove one of them"));
            }
            params.engine_configs.push(engine.read(name.value)?);
        }
        if let Some(engine) = written.default_engine.filter(|engine| !engine.value.is_empty()) {
            let built_in = EngineSpec::built_in();
            let configured = params.engine_configs.iter().map(|engine| engine.name.as_str());
            let known: Vec<&str> =
                built_in.iter().map(|engine| engine.name.as_str()).chain(configured).collect();
            if !known.contains(&engine.value.as_str()) {
                let message = format!("defaultEngine '{}' is not known", engine.value);
                return Err(ConfigError::at(engine.at, message)
                    .hint(format!("known here: {}", known.join(", ")))
                    .did_you_mean(&engine.value, known));
            }
            params.default_engine = engine.value;
        }
        if let Some(label) = written.engine_label_key.filter(|label| !label.value.is_empty()) {
            params.engine_label_key = label.value;
        }
        Ok(params)
    }

    /// The attributes that custom metrics fill, each once.
    pub fn attribute_keys(&self) -> impl Iterator<Item = &str> {
        let mut seen = HashSet::new();
        let metrics = self.engine_configs.iter().flat_map(|engine| &engine.custom_metrics);
        metrics.map(|metric| metric.attribute_key.as_str()).filter(move |key| seen.insert(*key))
    }

    /// What scrapes read: these engines and the built-in ones that none of them replaces.
    /// `id_of` says where an attribute is kept; one that has no place isn't read.
    pub fn engines(&self, id_of: impl Fn(&str) -> Option<Lease<AttributeId>>) -> Engines {
        let mut specs: Vec<EngineSpec> =
            self.engine_configs.iter().map(|engine| engine.spec(&id_of)).collect();
        for built_in in EngineSpec::built_in() {
            if specs.iter().all(|spec| spec.name != built_in.name) {
                specs.push(built_in);
            }
        }
        let default = specs.iter().position(|spec| spec.name == self.default_engine);
        let default = default.map_or_else(EngineSpec::vllm, |index| specs.swap_remove(index));
        let others = specs.into_iter().map(Engine::new).collect();
        Engines::new(&self.engine_label_key, Engine::new(default), others)
    }
}

impl EngineParams {
    fn spec(&self, id_of: impl Fn(&str) -> Option<Lease<AttributeId>>) -> EngineSpec {
        let metric = |text: &Option<MetricText>| text.as_ref().map(|text| text.metric.clone());
        let attribute = |custom: &CustomMetric| {
            let id = id_of(&custom.attribute_key)?;
            let (name, metric) = (custom.attribute_key.clone(), custom.metric_spec.metric.clone());
            Some(AttributeSpec { id, name, metric, reading: AttributeReading::default() })
        };
        EngineSpec {
            name: self.name.clone(),
            waiting: metric(&self.queued_requests_spec),
            running: metric(&self.running_requests_spec),
            kv_usage: metric(&self.kv_usage_spec),
            adapters: metric(&self.lora_spec),
            cache_info: metric(&self.cache_info_spec),
            block_size_label: self.cache_block_size_label_name.clone(),
            num_blocks_label: self.cache_num_blocks_label_name.clone(),
            block_size: metric(&self.cache_block_size_spec),
            num_blocks: metric(&self.cache_num_blocks_spec),
            attributes: self.custom_metrics.iter().filter_map(attribute).collect(),
        }
    }
}

impl WrittenEngine {
    fn read(self, name: String) -> Result<EngineParams, ConfigError> {
        let metric = |field: &str, written: &Option<Name>| {
            let written = written.as_ref().filter(|written| !written.value.is_empty());
            written.map(|written| MetricText::parse(field, written)).transpose()
        };
        let label = |written: Option<String>, default: &str| {
            written.filter(|label| !label.is_empty()).unwrap_or_else(|| default.to_owned())
        };
        Ok(EngineParams {
            name,
            queued_requests_spec: metric("queuedRequestsSpec", &self.queued_requests_spec)?,
            running_requests_spec: metric("runningRequestsSpec", &self.running_requests_spec)?,
            kv_usage_spec: metric("kvUsageSpec", &self.kv_usage_spec)?,
            lora_spec: metric("loraSpec", &self.lora_spec)?,
            cache_info_spec: metric("cacheInfoSpec", &self.cache_info_spec)?,
            cache_block_size_label_name: label(self.cache_block_size_label_name, "block_size"),
            cache_num_blocks_label_name: label(self.cache_num_blocks_label_name, "num_gpu_blocks"),
            cache_block_size_spec: metric("cacheBlockSizeSpec", &self.cache_block_size_spec)?,
            cache_num_blocks_spec: metric("cacheNumBlocksSpec", &self.cache_num_blocks_spec)?,
            custom_metrics: custom_metrics(self.custom_metrics)?,
        })
    }
}

fn custom_metrics(written: Vec<Positioned<WrittenMetric>>) -> Result<Vec<CustomMetric>, ConfigError> {
    let mut metrics: Vec<CustomMetric> = Vec::with_capacity(written.len());
    for Positioned { at, value } in written {
        let given = |field: &str, value: Option<Name>| {
            value
                .filter(|value| !value.value.is_empty())
                .ok_or_else(|| ConfigError::at(at, format!("a custom metric is missing its {field}")))
        };
        let key = given("attributeKey", value.attribute_key)?;
        let metric_spec = MetricText::parse("metricSpec", &given("metricSpec", value.metric_spec)?)?;
        if metrics.iter().any(|metric| metric.attribute_key == key.value) {
            let message = format!("customMetrics has the attributeKey '{}' twice", key.value);
            return Err(ConfigError::at(key.at, message).hint("give one of them another key"));
        }
        if Reading::named(&key.value).is_some() {
            let message =
                format!("the attributeKey '{}' is the name of what every engine reports", key.value);
            return Err(ConfigError::at(key.at, message).hint("choose another key"));
        }
        metrics.push(CustomMetric { attribute_key: key.value, metric_spec });
    }
    Ok(metrics)
}
