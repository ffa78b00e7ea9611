//! Parameters of `core-metrics-extractor`: which metric of which engine says what.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use usher_plugin::params::{any_word, or_default};

use crate::config::{ConfigError, Node};
use crate::endpoints::{AttributeId, Lease, Reading};
use crate::scrape::engine::{AttributeReading, AttributeSpec, ENGINE_LABEL, Engine, EngineSpec, Engines};
use crate::scrape::exposition::MetricSpec;
use crate::scrape::selector;

/// Parameters of `core-metrics-extractor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CoreMetricsExtractorParams {
    /// Label that names an endpoint's engine. Where it is missing or empty,
    /// inference.networking.k8s.io/engine-type is read.
    pub engine_label_key: String,
    /// Engine of endpoints whose label names none, or none that is known.
    pub default_engine: String,
    /// Engines beside the built-in ones; one with the name of a built-in engine replaces it as a whole.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EngineParams {
    /// Name of the engine; not default.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Metric with the requests waiting. All metrics are written name or name{label=value}, and several
    /// series are added up unless something else is said here. One that is left out isn't read.
    #[serde(deserialize_with = "any_word")]
    #[schemars(with = "Option<String>")]
    pub queued_requests_spec: Option<MetricText>,
    /// Metric with the requests running.
    #[serde(deserialize_with = "any_word")]
    #[schemars(with = "Option<String>")]
    pub running_requests_spec: Option<MetricText>,
    /// Metric with the share of the KV cache in use, 0 to 1; of several series the largest.
    #[serde(deserialize_with = "any_word")]
    #[schemars(with = "Option<String>")]
    pub kv_usage_spec: Option<MetricText>,
    /// Metric with LoRA adapters in the labels running_lora_adapters, waiting_lora_adapters and
    /// max_lora; of several series the one with the largest value.
    #[serde(deserialize_with = "any_word")]
    #[schemars(with = "Option<String>")]
    pub lora_spec: Option<MetricText>,
    /// Metric with the geometry of the KV cache in labels.
    #[serde(deserialize_with = "any_word")]
    #[schemars(with = "Option<String>")]
    pub cache_info_spec: Option<MetricText>,
    /// Label with the tokens per block.
    pub cache_block_size_label_name: String,
    /// Label with the number of blocks.
    pub cache_num_blocks_label_name: String,
    /// Metric with the tokens per block, instead of the label; of several series the largest.
    #[serde(deserialize_with = "any_word")]
    #[schemars(with = "Option<String>")]
    pub cache_block_size_spec: Option<MetricText>,
    /// Metric with the number of blocks, instead of the label.
    #[serde(deserialize_with = "any_word")]
    #[schemars(with = "Option<String>")]
    pub cache_num_blocks_spec: Option<MetricText>,
    /// Further numbers, for endpoint-attribute-scorer and endpoint-attribute-filter; 16 in all.
    pub custom_metrics: Vec<CustomMetric>,
}

impl Default for EngineParams {
    fn default() -> Self {
        Self {
            name: String::new(),
            queued_requests_spec: None,
            running_requests_spec: None,
            kv_usage_spec: None,
            lora_spec: None,
            cache_info_spec: None,
            cache_block_size_label_name: BLOCK_SIZE_LABEL.to_owned(),
            cache_num_blocks_label_name: NUM_BLOCKS_LABEL.to_owned(),
            cache_block_size_spec: None,
            cache_num_blocks_spec: None,
            custom_metrics: Vec::new(),
        }
    }
}

const BLOCK_SIZE_LABEL: &str = "block_size";
const NUM_BLOCKS_LABEL: &str = "num_gpu_blocks";

/// A number of endpoints that the configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomMetric {
    /// Name by which these plugins refer to it. Several engines may have the same.
    #[schemars(extend("x-required" = true))]
    pub attribute_key: String,
    /// Metric; of several series the one with the newest timestamp, else the first.
    #[serde(deserialize_with = "any_word")]
    #[schemars(with = "String", extend("x-required" = true))]
    pub metric_spec: MetricText,
}

/// A metric and how the configuration writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricText {
    text: String,
    metric: MetricSpec,
}

impl MetricText {
    /// The metric.
    pub fn metric(&self) -> &MetricSpec {
        &self.metric
    }

    /// Reads the metric under this key; `None`: there is none, or an empty text.
    fn read(node: &Node, key: &str) -> Result<Option<Self>, ConfigError> {
        let Some(text) = node.find(key).and_then(Node::text).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let text = text.trim();
        let metric = selector::parse(text).map_err(|problem| {
            ConfigError::at(node.position_of(key), format!("{key}: {problem}"))
                .hint("write name or name{label=value}")
        })?;
        Ok(Some(Self { text: text.to_owned(), metric }))
    }
}

impl Serialize for MetricText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl CoreMetricsExtractorParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` for unknown keys, wrong types, engines and attributes without a name or with one that is
    /// taken, metrics that can't be read, and a default engine that doesn't exist.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        let items = node.get("engineConfigs").map(Node::items).unwrap_or_default();
        let mut names = HashSet::new();
        for (engine, item) in params.engine_configs.iter_mut().zip(items) {
            let at = item.position_of("name");
            if engine.name.is_empty() {
                return Err(ConfigError::at(item.at, "an engine of engineConfigs is missing a name"));
            }
            if engine.name == "default" {
                return Err(
                    ConfigError::at(at, "an engine can't be named 'default'").hint("set defaultEngine")
                );
            }
            if !names.insert(engine.name.clone()) {
                let message = format!("engineConfigs has two engines named '{}'", engine.name);
                return Err(ConfigError::at(at, message).hint("remove one of them"));
            }
            engine.read(item)?;
        }
        let default = Self::default();
        or_default(&mut params.default_engine, &default.default_engine);
        or_default(&mut params.engine_label_key, &default.engine_label_key);
        let (engine, built_in) = (&params.default_engine, EngineSpec::built_in());
        let configured = params.engine_configs.iter().map(|engine| engine.name.as_str());
        let known: Vec<&str> = built_in.iter().map(|engine| engine.name.as_str()).chain(configured).collect();
        if !known.contains(&engine.as_str()) {
            let message = format!("defaultEngine '{engine}' is not known");
            return Err(ConfigError::at(node.position_of("defaultEngine"), message)
                .hint(format!("known here: {}", known.join(", ")))
                .did_you_mean(engine, known));
        }
        Ok(params)
    }

    /// The attributes that custom metrics fill, each once.
    pub fn attribute_keys(&self) -> impl Iterator<Item = &str> {
        let mut seen = HashSet::new();
        let metrics = self.engine_configs.iter().flat_map(|engine| &engine.custom_metrics);
        metrics.map(|metric| metric.attribute_key.as_str()).filter(move |key| seen.insert(*key))
    }

    /// Engines that scrapes read: these and the built-in ones that none of them replaces.
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

impl EngineParams {
    /// Reads the metrics that are written at this node.
    fn read(&mut self, node: &Node) -> Result<(), ConfigError> {
        for (key, metric) in [
            ("queuedRequestsSpec", &mut self.queued_requests_spec),
            ("runningRequestsSpec", &mut self.running_requests_spec),
            ("kvUsageSpec", &mut self.kv_usage_spec),
            ("loraSpec", &mut self.lora_spec),
            ("cacheInfoSpec", &mut self.cache_info_spec),
            ("cacheBlockSizeSpec", &mut self.cache_block_size_spec),
            ("cacheNumBlocksSpec", &mut self.cache_num_blocks_spec),
        ] {
            *metric = MetricText::read(node, key)?;
        }
        or_default(&mut self.cache_block_size_label_name, BLOCK_SIZE_LABEL);
        or_default(&mut self.cache_num_blocks_label_name, NUM_BLOCKS_LABEL);
        let items = node.get("customMetrics").map(Node::items).unwrap_or_default();
        let mut keys = HashSet::new();
        for (custom, item) in self.custom_metrics.iter_mut().zip(items) {
            let missing =
                |key: &str| ConfigError::at(item.at, format!("a custom metric is missing its {key}"));
            let (key, at) = (&custom.attribute_key, item.position_of("attributeKey"));
            if key.is_empty() {
                return Err(missing("attributeKey"));
            }
            custom.metric_spec =
                MetricText::read(item, "metricSpec")?.ok_or_else(|| missing("metricSpec"))?;
            if !keys.insert(key.clone()) {
                let message = format!("customMetrics has the attributeKey '{key}' twice");
                return Err(ConfigError::at(at, message).hint("give one of them another key"));
            }
            if Reading::named(key).is_some() {
                let message = format!("the attributeKey '{key}' is the name of what every engine reports");
                return Err(ConfigError::at(at, message).hint("choose another key"));
            }
        }
        Ok(())
    }
}
