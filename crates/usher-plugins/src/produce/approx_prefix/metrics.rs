//! `prefix_indexer_*`: how much the index knows, and how much of it requests find.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};
use usher_core::metrics::{Legacy, register};
use usher_core::request::estimate::BYTES_PER_TOKEN;
use usher_plugin::data::PrefixMatch;

use super::PrefixCaches;
use super::capacity::Compared;

const LABELS: [&str; 2] = ["plugin_name", "plugin_type"];
const RATIO: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
const BYTES: [f64; 14] =
    [0.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0];

/// The families, shared by all producers.
pub struct PrefixFamilies {
    ratio: HistogramVec,
    bytes: HistogramVec,
    predicted: IntCounterVec,
    cached: IntCounterVec,
    indexes: Arc<Indexes>,
}

/// Existing indexes, and their numbers on each scrape.
struct Indexes {
    /// The last one of several with the same labels is shown, as long as a producer uses it.
    // Taken when a producer is built and when the metrics are read.
    known: Mutex<Vec<Known>>,
    size: IntGaugeVec,
    memory: IntGaugeVec,
    limit: IntGaugeVec,
    crowded_out: IntCounterVec,
    dropped: IntCounterVec,
    capacity: GaugeVec,
    tokens: GaugeVec,
}

struct Known {
    labels: [String; 2],
    caches: Weak<PrefixCaches>,
}

impl PrefixFamilies {
    /// Registers the families, also under the names of earlier releases of llm-d-router.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let older = |name| Some(Legacy { name, labels: &[] });
        let histogram = |name: &str, help: &str, buckets: &[f64], legacy| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            register(registry, HistogramVec::new(opts, &LABELS)?, older(legacy))
        };
        let opts = |name: &str, help: &str| Opts::new(name, help);
        let indexes = Arc::new(Indexes {
            known: Mutex::default(),
            size: IntGaugeVec::new(
                opts(
                    "llm_d_epp_prefix_indexer_size",
                    "[ALPHA] Blocks in the prefix index; a block counts once for each endpoint.",
                ),
                &LABELS,
            )?,
            memory: IntGaugeVec::new(
                opts("usher_prefix_index_bytes", "Memory of the prefix index in bytes."),
                &LABELS,
            )?,
            limit: IntGaugeVec::new(
                opts(
                    "usher_prefix_index_limit_blocks",
                    "Limit of the prefix index in blocks; a block counts once for each endpoint.",
                ),
                &LABELS,
            )?,
            crowded_out: IntCounterVec::new(
                opts(
                    "usher_prefix_index_crowded_out_total",
                    "Blocks evicted because the prefix index or the memory budget was full, although their endpoint had room.",
                ),
                &LABELS,
            )?,
            dropped: IntCounterVec::new(
                opts(
                    "usher_prefix_index_dropped_total",
                    "Updates of the prefix index that were dropped because too many were queued.",
                ),
                &LABELS,
            )?,
            capacity: GaugeVec::new(
                opts(
                    "usher_prefix_index_capacity_ratio",
                    "Mean share of the endpoints' KV cache that holds prefixes, learned from responses.",
                ),
                &LABELS,
            )?,
            tokens: GaugeVec::new(
                opts(
                    "usher_prefix_index_tokens_ratio",
                    "Tokens of prompts as model servers count them, per token that was estimated; a moving mean.",
                ),
                &LABELS,
            )?,
        });
        let read = |family| OnRead { family, indexes: Arc::clone(&indexes) };
        register(
            registry,
            read(Family::Gauge(indexes.size.clone())),
            older("inference_extension_prefix_indexer_size"),
        )?;
        register(registry, read(Family::Gauge(indexes.memory.clone())), None)?;
        register(registry, read(Family::Gauge(indexes.limit.clone())), None)?;
        for counter in [&indexes.crowded_out, &indexes.dropped] {
            register(registry, read(Family::Counter(counter.clone())), None)?;
        }
        for ratio in [&indexes.capacity, &indexes.tokens] {
            register(registry, read(Family::Ratio(ratio.clone())), None)?;
        }
        let counter =
            |name: &str, help: &str| register(registry, IntCounterVec::new(opts(name, help), &LABELS)?, None);
        Ok(Self {
            ratio: histogram(
                "llm_d_epp_prefix_indexer_hit_ratio",
                "[ALPHA] Share of the prompt's blocks predicted to be in the endpoint's prefix cache.",
                &RATIO,
                "inference_extension_prefix_indexer_hit_ratio",
            )?,
            bytes: histogram(
                "llm_d_epp_prefix_indexer_hit_bytes",
                "[ALPHA] Bytes of the prompt predicted to be in the endpoint's prefix cache.",
                &BYTES,
                "inference_extension_prefix_indexer_hit_bytes",
            )?,
            predicted: counter(
                "usher_prefix_index_predicted_tokens_total",
                "Prompt tokens predicted to be cached, of the requests in usher_prefix_index_cached_tokens_total.",
            )?,
            cached: counter(
                "usher_prefix_index_cached_tokens_total",
                "Cached prompt tokens, from the usage of responses.",
            )?,
            indexes,
        })
    }

    /// Metrics of the requests of the producer of this name and type.
    pub(super) fn hits(&self, name: &str, plugin_type: &str) -> Hits {
        let labels = [name, plugin_type];
        Hits {
            ratio: self.ratio.with_label_values(&labels),
            bytes: self.bytes.with_label_values(&labels),
            predicted: self.predicted.with_label_values(&labels),
            cached: self.cached.with_label_values(&labels),
        }
    }

    /// Shows an index as long as a producer uses it, before an earlier one of this name.
    pub(super) fn show(&self, name: &str, plugin_type: &str, caches: &Arc<PrefixCaches>) {
        let mut known = self.indexes.known.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = [name.to_owned(), plugin_type.to_owned()];
        // Another index of this name counts from the beginning.
        let is_same = |known: &Known| Weak::ptr_eq(&known.caches, &Arc::downgrade(caches));
        if known.iter().any(|known| known.labels == labels && !is_same(known)) {
            self.indexes.forget(&labels);
        }
        known.retain(|known| known.labels != labels || !is_same(known));
        known.push(Known { labels, caches: Arc::downgrade(caches) });
    }
}

impl fmt::Debug for PrefixFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrefixFamilies")
    }
}

impl Indexes {
    /// Drops the series of an index that is gone; they may be absent.
    fn forget(&self, labels: &[String; 2]) {
        for family in [&self.size, &self.memory, &self.limit] {
            let _ = family.remove_label_values(labels);
        }
        for family in [&self.crowded_out, &self.dropped] {
            let _ = family.remove_label_values(labels);
        }
        for family in [&self.capacity, &self.tokens] {
            let _ = family.remove_label_values(labels);
        }
    }

    /// Brings the numbers up to date.
    fn read(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|Known { labels, caches }| {
            let is_used = caches.upgrade().is_some_and(|caches| caches.is_used());
            if !is_used {
                self.forget(labels);
            }
            is_used
        });
        for (at, Known { labels, caches }) in known.iter().enumerate() {
            let is_replaced = known[at + 1..].iter().any(|later| later.labels == *labels);
            let Some(caches) = caches.upgrade().filter(|_| !is_replaced) else { continue };
            let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
            self.size.with_label_values(labels).set(number(caches.index().entries()));
            self.memory.with_label_values(labels).set(number(caches.index().bytes()));
            self.limit.with_label_values(labels).set(number(caches.limit()));
            let raise = |family: &IntCounterVec, value: u64| {
                let counter = family.with_label_values(labels);
                counter.inc_by(value.saturating_sub(counter.get()));
            };
            raise(&self.crowded_out, caches.index().crowded_out() as u64);
            raise(&self.dropped, caches.dropped());
            let capacities = caches.capacities();
            self.capacity.with_label_values(labels).set(capacities.mean_factor());
            if let Some(tokens) = capacities.tokens_per_estimate() {
                self.tokens.with_label_values(labels).set(tokens);
            }
        }
    }
}

/// A family that is brought up to date when it is read.
#[derive(Clone)]
struct OnRead {
    family: Family,
    indexes: Arc<Indexes>,
}

#[derive(Clone)]
enum Family {
    Gauge(IntGaugeVec),
    Ratio(GaugeVec),
    Counter(IntCounterVec),
}

impl Collector for OnRead {
    fn desc(&self) -> Vec<&Desc> {
        match &self.family {
            Family::Gauge(family) => family.desc(),
            Family::Ratio(family) => family.desc(),
            Family::Counter(family) => family.desc(),
        }
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.indexes.read();
        match &self.family {
            Family::Gauge(family) => family.collect(),
            Family::Ratio(family) => family.collect(),
            Family::Counter(family) => family.collect(),
        }
    }
}

/// Metrics of one producer's requests.
#[derive(Clone, Debug)]
pub(super) struct Hits {
    ratio: Histogram,
    bytes: Histogram,
    predicted: IntCounter,
    cached: IntCounter,
}

impl Hits {
    /// A request goes to an endpoint that holds so many blocks of it.
    pub(super) fn request(&self, known: &PrefixMatch, blocks: u32) {
        self.ratio.observe(f64::from(blocks) / f64::from(known.total.max(1)));
        self.bytes.observe(f64::from(blocks) * f64::from(known.block_size) * BYTES_PER_TOKEN as f64);
    }
    /// A response says how much was cached.
    pub(super) fn compared(&self, Compared { predicted, cached }: Compared) {
        self.predicted.inc_by(predicted);
        self.cached.inc_by(cached);
    }
}
