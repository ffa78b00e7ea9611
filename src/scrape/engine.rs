//! Which metric of an engine says what.

use std::collections::HashMap;
use std::sync::Arc;

use crate::endpoints::{Endpoint, Gauge, Load};

use super::exposition::{MetricSpec, Wanted};

/// Label of a pod that names its engine.
pub const ENGINE_LABEL: &str = "llm-d.ai/engine-type";

/// A field of a [`Load`] that scrapes fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Field {
    /// Requests waiting; the sum over the series.
    Waiting,
    /// Requests running; the sum over the series.
    Running,
    /// Share of the KV cache in use; the largest of the series, as a request
    /// fails or waits where its engine is full, however empty the others are.
    /// More than 1 is 1.
    KvUsage,
    /// Tokens per block; the largest of the series.
    BlockSize,
    /// Blocks; the sum over the series: what the endpoint holds in all.
    NumBlocks,
    /// LoRA adapters.
    Adapters,
}

impl Field {
    /// Every field, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Running, Self::KvUsage, Self::BlockSize, Self::NumBlocks, Self::Adapters];

    /// Short name for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::KvUsage => "kv usage",
            Self::BlockSize => "block size",
            Self::NumBlocks => "number of blocks",
            Self::Adapters => "adapters",
        }
    }

    /// Joins the values of two series. An endpoint has several when one server
    /// process runs several engines.
    pub(super) fn join(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Waiting | Self::Running | Self::NumBlocks => a + b,
            Self::KvUsage | Self::BlockSize | Self::Adapters => a.max(b),
        }
    }

    /// Where the field's number is kept; adapters are no number.
    pub(super) fn gauge(self, load: &Load) -> Option<&Gauge> {
        match self {
            Self::Waiting => Some(&load.waiting),
            Self::Running => Some(&load.running),
            Self::KvUsage => Some(&load.kv_usage),
            Self::BlockSize => Some(&load.block_size),
            Self::NumBlocks => Some(&load.num_blocks),
            Self::Adapters => None,
        }
    }
}

/// The metrics of one engine. A metric that is `None` isn't read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineSpec {
    /// Name of the engine, as the label [`ENGINE_LABEL`] gives it.
    pub name: String,
    /// Requests waiting.
    pub waiting: Option<MetricSpec>,
    /// Requests running.
    pub running: Option<MetricSpec>,
    /// Share of the KV cache in use, 0..=1.
    pub kv_usage: Option<MetricSpec>,
    /// Adapters in labels; the value is the time of the last change.
    pub adapters: Option<MetricSpec>,
    /// The cache's geometry in labels.
    pub cache_info: Option<MetricSpec>,
    /// Label of `cache_info` with the tokens per block.
    pub block_size_label: String,
    /// Label of `cache_info` with the number of blocks.
    pub num_blocks_label: String,
}

impl EngineSpec {
    /// vLLM, version 1 of its engine.
    pub fn vllm() -> Self {
        Self {
            name: "vllm".to_owned(),
            waiting: Some(MetricSpec::named("vllm:num_requests_waiting")),
            running: Some(MetricSpec::named("vllm:num_requests_running")),
            kv_usage: Some(MetricSpec::named("vllm:kv_cache_usage_perc")),
            adapters: Some(MetricSpec::named("vllm:lora_requests_info")),
            cache_info: Some(MetricSpec::named("vllm:cache_config_info")),
            block_size_label: "block_size".to_owned(),
            num_blocks_label: "num_gpu_blocks".to_owned(),
        }
    }
}

/// What a wanted metric feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    /// The value of each series.
    Value(Field),
    /// Labels with the geometry of the cache.
    CacheInfo,
    /// Labels with lists of adapters.
    Adapters,
}

impl Feed {
    /// The fields that can't be read when this can't.
    pub(super) fn fields(self) -> Fields {
        match self {
            Self::Value(field) => Fields::of(field),
            Self::CacheInfo => Fields::of(Field::BlockSize).with(Field::NumBlocks),
            Self::Adapters => Fields::of(Field::Adapters),
        }
    }
}

/// A set of fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields(u8);

impl Fields {
    /// The set of one field.
    pub fn of(field: Field) -> Self {
        Self(1 << field as u8)
    }

    /// The set with another field.
    #[must_use]
    pub fn with(self, field: Field) -> Self {
        self.and(Self::of(field))
    }

    /// The fields of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The set without the fields of another.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether a field is in the set.
    pub fn has(self, field: Field) -> bool {
        self.0 & Self::of(field).0 != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Display for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        for field in Field::ALL.into_iter().filter(|field| self.has(*field)) {
            write!(f, "{separator}{}", field.name())?;
            separator = ", ";
        }
        Ok(())
    }
}

/// An [`EngineSpec`], compiled for the scanner.
#[derive(Clone, Debug)]
pub struct Engine {
    name: String,
    wanted: Wanted,
    /// By position in `wanted`.
    pub(super) feeds: Vec<Feed>,
    pub(super) block_size_label: String,
    pub(super) num_blocks_label: String,
}

impl Engine {
    /// Compiles the metrics of an engine.
    pub fn new(spec: EngineSpec) -> Self {
        let rows = [
            (spec.waiting, Feed::Value(Field::Waiting)),
            (spec.running, Feed::Value(Field::Running)),
            (spec.kv_usage, Feed::Value(Field::KvUsage)),
            (spec.cache_info, Feed::CacheInfo),
            (spec.adapters, Feed::Adapters),
        ];
        let rows = rows.into_iter().filter_map(|(metric, feed)| Some((metric?, feed)));
        let (metrics, feeds) = rows.unzip();
        Self {
            name: spec.name,
            wanted: Wanted::new(metrics),
            feeds,
            block_size_label: spec.block_size_label,
            num_blocks_label: spec.num_blocks_label,
        }
    }

    /// Name of the engine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its metrics, for a scanner. [`Readings`](super::Readings) take what that finds.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Fields that every page should have. A server without adapters has no
    /// metric about them, so these may be missing.
    pub(super) fn expected(&self) -> Fields {
        let adapters = Fields::of(Field::Adapters);
        self.feeds.iter().fold(Fields::default(), |set, feed| set.and(feed.fields())).without(adapters)
    }
}

/// The engines of a pool: each endpoint's by its label, else the default.
#[derive(Clone, Debug)]
pub struct Engines {
    label: String,
    default: Arc<Engine>,
    named: HashMap<String, Arc<Engine>>,
}

impl Engines {
    /// Engines chosen by the value of `label`; an endpoint without the label,
    /// or with an engine that isn't in the list, gets `default`.
    pub fn new(label: &str, default: Engine, others: Vec<Engine>) -> Self {
        let default = Arc::new(default);
        let mut named: HashMap<_, _> =
            others.into_iter().map(|engine| (engine.name.clone(), Arc::new(engine))).collect();
        named.entry(default.name.clone()).or_insert_with(|| Arc::clone(&default));
        Self { label: label.to_owned(), default, named }
    }

    /// The engine of an endpoint.
    pub fn of(&self, endpoint: &Endpoint) -> &Arc<Engine> {
        endpoint.label(&self.label).and_then(|name| self.named.get(name)).unwrap_or(&self.default)
    }
}

impl Default for Engines {
    /// vLLM for everybody.
    fn default() -> Self {
        Self::new(ENGINE_LABEL, Engine::new(EngineSpec::vllm()), Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, Store};

    #[test]
    fn the_label_chooses_the_engine() {
        let other = Engine::new(EngineSpec { name: "other".to_owned(), ..EngineSpec::default() });
        let engines = Engines::new(ENGINE_LABEL, Engine::new(EngineSpec::vllm()), vec![other]);
        let store = Store::default();
        let table = [(None, "vllm"), (Some("vllm"), "vllm"), (Some("other"), "other"), (Some("new"), "vllm")];
        let spec = |label: Option<&str>| EndpointSpec {
            labels: label.map(|value| (ENGINE_LABEL.to_owned(), value.to_owned())).into_iter().collect(),
            pod: "pod".into(),
            ..EndpointSpec::new(label.unwrap_or("none"), ([10, 0, 0, 1], 8000))
        };
        store.replace(table.iter().map(|(label, _)| spec(*label)).collect());
        for (endpoint, (label, engine)) in store.snapshot().endpoints().iter().zip(table) {
            assert_eq!(engines.of(endpoint).name(), engine, "{label:?}");
        }
    }

    #[test]
    fn a_set_of_fields_names_its_members() {
        let set = Fields::of(Field::NumBlocks).with(Field::Waiting);
        assert_eq!(set.to_string(), "waiting, number of blocks");
        assert_eq!(set.without(Fields::of(Field::Waiting)), Fields::of(Field::NumBlocks));
        let expected = Engine::new(EngineSpec::vllm()).expected();
        assert_eq!(expected.to_string(), "waiting, running, kv usage, block size, number of blocks");
        assert!(Engine::new(EngineSpec::default()).expected().is_empty());
    }
}
