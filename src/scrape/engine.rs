//! Metrics of an engine, and what they mean.

use std::collections::HashMap;
use std::sync::Arc;

use crate::endpoints::{AttributeId, Endpoint, Gauge, Lease, Load};

use super::exposition::{MetricSpec, Wanted};
use super::metrics::EXTRACTOR_TYPE;

/// Label of a pod that names its engine.
pub const ENGINE_LABEL: &str = "llm-d.ai/engine-type";

/// Former name of the label, for pods that don't have the other.
const FORMER_ENGINE_LABEL: &str = "inference.networking.k8s.io/engine-type";

/// A field of a [`Load`] that scrapes fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Attribute that the configuration added: any finite number. Its [`AttributeReading`] joins several
    /// series; by default the first counts, as what they mean together is not known.
    Attribute(AttributeId),
}

/// Fields that an engine may report without configuration, with their names in logs.
const CORE: [(Field, &str); 6] = [
    (Field::Waiting, "waiting"),
    (Field::Running, "running"),
    (Field::KvUsage, "kv usage"),
    (Field::BlockSize, "block size"),
    (Field::NumBlocks, "number of blocks"),
    (Field::Adapters, "adapters"),
];

impl Field {
    /// Number of fields that there can be.
    pub(super) const COUNT: usize = CORE.len() + AttributeId::MAX;

    /// A number below [`COUNT`](Self::COUNT).
    pub(super) fn index(self) -> usize {
        match self {
            Self::Waiting => 0,
            Self::Running => 1,
            Self::KvUsage => 2,
            Self::BlockSize => 3,
            Self::NumBlocks => 4,
            Self::Adapters => 5,
            Self::Attribute(id) => CORE.len() + id.index(),
        }
    }

    /// Returns `true` if the field can have this value.
    pub(super) fn allows(self, value: f64) -> bool {
        value.is_finite() && (value >= 0.0 || matches!(self, Self::Attribute(_)))
    }

    /// Join of several series. An endpoint has several when one server process runs several
    /// engines.
    pub(super) fn join(self) -> Join {
        match self {
            Self::Waiting | Self::Running | Self::NumBlocks => Join::Sum,
            Self::KvUsage | Self::BlockSize | Self::Adapters => Join::Largest,
            Self::Attribute(_) => Join::First,
        }
    }

    /// Gauge of the field's number; adapters are no number.
    pub(super) fn gauge(self, load: &Load) -> Option<&Gauge> {
        match self {
            Self::Waiting => Some(&load.waiting),
            Self::Running => Some(&load.running),
            Self::KvUsage => Some(&load.kv_usage),
            Self::BlockSize => Some(&load.block_size),
            Self::NumBlocks => Some(&load.num_blocks),
            Self::Adapters => None,
            Self::Attribute(id) => Some(load.attribute(id)),
        }
    }
}

/// The metrics of one engine. A metric that is `None` isn't read.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Tokens per block as a value; then the label isn't read.
    pub block_size: Option<MetricSpec>,
    /// The number of blocks as a value; then the label isn't read.
    pub num_blocks: Option<MetricSpec>,
    /// Metrics that the configuration adds.
    pub attributes: Vec<AttributeSpec>,
}

/// A metric that the configuration adds to those of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributeSpec {
    /// Attribute of its number.
    pub id: Lease<AttributeId>,
    /// Name by which filters and scorers refer to it.
    pub name: String,
    /// The metric.
    pub metric: MetricSpec,
    /// Reading of its series.
    pub reading: AttributeReading,
}

/// Reading of series as a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttributeReading {
    /// Join of several series.
    pub join: Join,
    /// Factor by which a value is multiplied.
    pub factor: f64,
    /// Only series of the endpoint's pod count: those whose labels `pod` and `namespace`
    /// are missing, empty or the pod's.
    pub of_pod: bool,
}

/// Ways to join several series to one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// The first of them, or the one with the newest timestamp.
    #[default]
    First,
    /// Their sum.
    Sum,
    /// The largest of them.
    Largest,
}

impl Default for AttributeReading {
    /// The first series, as it is.
    fn default() -> Self {
        Self { join: Join::First, factor: 1.0, of_pod: false }
    }
}

/// Fields that a wanted metric feeds, and from which part of its lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Feed {
    /// The value of each series.
    Value(Field),
    /// The value of each series, as the configuration says.
    Attribute(AttributeId, AttributeReading),
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
            Self::Attribute(id, _) => Fields::of(Field::Attribute(id)),
            Self::CacheInfo => Fields::of(Field::BlockSize).with(Field::NumBlocks),
            Self::Adapters => Fields::of(Field::Adapters),
        }
    }
}

/// A set of fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields(u32);

// A bit for each field.
const _: () = assert!(Field::COUNT <= u32::BITS as usize);

impl Fields {
    /// The set of one field.
    pub fn of(field: Field) -> Self {
        Self(1 << field.index())
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

    /// Returns `true` if a field is in the set.
    pub fn has(self, field: Field) -> bool {
        self.0 & Self::of(field).0 != 0
    }

    /// Returns `true` if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// An [`EngineSpec`], compiled for the scanner.
#[derive(Clone, Debug)]
pub struct Engine {
    name: String,
    wanted: Wanted,
    /// By position in `wanted`.
    pub(super) feeds: Vec<Feed>,
    /// Labels with the cache's geometry; `None`: not read from a label.
    pub(super) block_size_label: Option<String>,
    pub(super) num_blocks_label: Option<String>,
    /// Attributes that the configuration added, by the name that it gave them.
    attributes: Vec<(Lease<AttributeId>, String)>,
}

impl Engine {
    /// Compiles the metrics of an engine.
    pub fn new(spec: EngineSpec) -> Self {
        let block_size_label = spec.block_size.is_none().then_some(spec.block_size_label);
        let num_blocks_label = spec.num_blocks.is_none().then_some(spec.num_blocks_label);
        let rows = [
            (spec.waiting, Feed::Value(Field::Waiting)),
            (spec.running, Feed::Value(Field::Running)),
            (spec.kv_usage, Feed::Value(Field::KvUsage)),
            (spec.cache_info, Feed::CacheInfo),
            (spec.block_size, Feed::Value(Field::BlockSize)),
            (spec.num_blocks, Feed::Value(Field::NumBlocks)),
            (spec.adapters, Feed::Adapters),
        ];
        let rows = rows.into_iter().filter_map(|(metric, feed)| Some((metric?, feed)));
        let (mut metrics, mut feeds): (Vec<_>, Vec<_>) = rows.unzip();
        let mut attributes = Vec::with_capacity(spec.attributes.len());
        for AttributeSpec { id, name, metric, reading } in spec.attributes {
            metrics.push(metric);
            feeds.push(Feed::Attribute(id.id(), reading));
            attributes.push((id, name));
        }
        let wanted = Wanted::new(metrics);
        Self { name: spec.name, wanted, feeds, block_size_label, num_blocks_label, attributes }
    }

    /// Name of the engine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Metrics of the engine, for a scanner. [`Readings`](super::Readings) take what that finds.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Names of the attributes that the configuration added.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(|(_, name)| name.as_str())
    }

    /// Fields that are read of a page, with their names in logs.
    pub(super) fn fields(&self) -> impl Iterator<Item = (Field, &str)> {
        let attributes = self.attributes.iter().map(|(id, name)| (Field::Attribute(id.id()), name.as_str()));
        CORE.into_iter().chain(attributes)
    }

    /// Fields that every page should have. A server without adapters has no
    /// metric about them, so these may be missing.
    pub(super) fn expected(&self) -> Fields {
        let adapters = Fields::of(Field::Adapters);
        self.feeds.iter().fold(Fields::default(), |set, feed| set.and(feed.fields())).without(adapters)
    }

    /// Names of fields, for logs.
    pub(super) fn names(&self, fields: Fields) -> String {
        let names: Vec<&str> =
            self.fields().filter(|(field, _)| fields.has(*field)).map(|(_, name)| name).collect();
        names.join(", ")
    }
}

/// The engines of a pool: each endpoint's by its label, else the default.
#[derive(Clone, Debug)]
pub struct Engines {
    label: String,
    extractor_type: &'static str,
    default: Arc<Engine>,
    named: HashMap<String, Arc<Engine>>,
}

impl Engines {
    /// Engines chosen by the value of `label`, or of the label's former name where that
    /// is missing or empty; an endpoint without either, or with an engine that isn't in
    /// the list, gets `default`.
    pub fn new(label: &str, default: Engine, others: Vec<Engine>) -> Self {
        let default = Arc::new(default);
        let mut named: HashMap<_, _> =
            others.into_iter().map(|engine| (engine.name.clone(), Arc::new(engine))).collect();
        named.entry(default.name.clone()).or_insert_with(|| Arc::clone(&default));
        Self { label: label.to_owned(), extractor_type: EXTRACTOR_TYPE, default, named }
    }

    /// One engine for all endpoints, read by a plugin of this type.
    pub fn only(extractor_type: &'static str, engine: Engine) -> Self {
        Self { label: String::new(), extractor_type, default: Arc::new(engine), named: HashMap::new() }
    }

    /// Type of the plugin that reads them.
    pub fn extractor_type(&self) -> &'static str {
        self.extractor_type
    }

    /// The engine of an endpoint.
    pub fn of(&self, endpoint: &Endpoint) -> &Arc<Engine> {
        let label = |key| endpoint.label(key).filter(|name| !name.is_empty());
        let name = label(&self.label).or_else(|| label(FORMER_ENGINE_LABEL));
        name.and_then(|name| self.named.get(name)).unwrap_or(&self.default)
    }

    /// Attributes that the configuration added to any of them, by the name that it gave them.
    pub fn attributes(&self) -> impl Iterator<Item = (AttributeId, &str)> {
        let engines = std::iter::once(&self.default).chain(self.named.values());
        engines.flat_map(|engine| engine.attributes.iter().map(|(id, name)| (id.id(), name.as_str())))
    }

    /// Returns `true` if any of them says how full an endpoint is: how many requests wait,
    /// or how much of the KV cache is in use.
    pub fn say_how_full(&self) -> bool {
        let mut engines = std::iter::once(&self.default).chain(self.named.values());
        engines.any(|engine| {
            let expected = engine.expected();
            expected.has(Field::Waiting) || expected.has(Field::KvUsage)
        })
    }

    /// The engine of endpoints that don't say theirs.
    pub fn default_engine(&self) -> &Arc<Engine> {
        &self.default
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, Store};

    #[test]
    fn the_label_chooses_the_engine() {
        let other = Engine::new(EngineSpec { name: "other".to_owned(), ..EngineSpec::default() });
        let engines = Engines::new("engine", Engine::new(EngineSpec::vllm()), vec![other]);
        let former = FORMER_ENGINE_LABEL;
        let table: [(&[(&str, &str)], &str); 8] = [
            (&[], "vllm"),
            (&[("engine", "vllm")], "vllm"),
            (&[("engine", "other")], "other"),
            (&[("engine", "new")], "vllm"),
            (&[(former, "other")], "other"),
            (&[("engine", ""), (former, "other")], "other"),
            (&[("engine", "vllm"), (former, "other")], "vllm"),
            (&[("engine", "new"), (former, "other")], "vllm"),
        ];
        let store = Store::default();
        let specs = table.iter().zip(1..).map(|((labels, _), number)| EndpointSpec {
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..EndpointSpec::new(format!("pod-{number}"), ([10, 0, 0, number], 8000))
        });
        store.replace(specs.collect());
        for (endpoint, (labels, engine)) in store.snapshot().endpoints().iter().zip(table) {
            assert_eq!(engines.of(endpoint).name(), engine, "{labels:?}");
        }
    }

    #[test]
    fn field_names_depend_on_the_engine() {
        let id = AttributeId::new(AttributeId::MAX - 1).unwrap();
        let metric = MetricSpec::named("gpu_temperature");
        let reading = AttributeReading::default();
        let attributes =
            vec![AttributeSpec { id: id.into(), name: "temperature".to_owned(), metric, reading }];
        let engine = Engine::new(EngineSpec { attributes, ..EngineSpec::vllm() });
        let set = Fields::of(Field::Attribute(id)).with(Field::Waiting);
        assert_eq!(engine.names(set), "waiting, temperature");
        assert_eq!(set.without(Fields::of(Field::Waiting)), Fields::of(Field::Attribute(id)));
        let expected = "waiting, running, kv usage, block size, number of blocks, temperature";
        assert_eq!(engine.names(engine.expected()), expected);
        assert!(Engine::new(EngineSpec::default()).expected().is_empty());
    }

    #[test]
    fn field_numbers_are_unique() {
        let attributes = (0..AttributeId::MAX).filter_map(AttributeId::new).map(Field::Attribute);
        let fields = CORE.into_iter().map(|(field, _)| field).chain(attributes);
        let numbers: Vec<usize> = fields.map(Field::index).collect();
        assert_eq!(numbers, (0..Field::COUNT).collect::<Vec<_>>());
    }
}
