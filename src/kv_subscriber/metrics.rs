//! `usher_kv_events_*`: how events come in, and how much they tell, computed from the last tick when somebody reads the
//! metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use usher_core::kv_events::{Counts, Skip};
use usher_core::prefix::EngineStatus;

const LABELS: [&str; 2] = ["plugin_name", "endpoint"];

/// Reads a count of an endpoint.
type Count = fn(&EndpointNumbers) -> u64;

const COUNTS: [(&str, &str, Count); 9] = [
    ("usher_kv_events_messages_total", "Live messages of KV events.", |of| of.counts.messages),
    ("usher_kv_events_applied_total", "KV events applied.", |of| of.applied),
    ("usher_kv_events_gaps_total", "Gaps in the numbers of messages.", |of| of.counts.gaps),
    ("usher_kv_events_restarts_total", "Restarts of the engine, seen by its numbers.", |of| {
        of.counts.restarts
    }),
    ("usher_kv_events_replays_total", "Replays begun.", |of| of.counts.replays),
    ("usher_kv_events_failed_replays_total", "Replays given up.", |of| of.counts.failed_replays),
    ("usher_kv_events_resets_total", "Times that all blocks of the endpoint were dropped.", |of| {
        of.counts.resets
    }),
    ("usher_kv_events_silences_total", "Connections given up as the engine served and told nothing.", |of| {
        of.counts.silences
    }),
    ("usher_kv_events_unreadable_total", "Messages whose payload can't be read.", |of| of.unreadable),
];
const SKIPPED: (&str, &str) = ("usher_kv_events_skipped_total", "KV events not applied, by reason.");
const BLOCKS: (&str, &str) =
    ("usher_kv_events_blocks", "Blocks of the engine that are known, held or remembered.");
const KNOWN: (&str, &str) = (
    "usher_kv_events_known",
    "How much is known of what the engine holds: 0 nothing, 1 what it told, 2 that and nothing is missing.",
);
const AGE: (&str, &str) = ("usher_kv_events_age_seconds", "Age of the engine's last batch, by its clock.");
const SUBSCRIBERS: (&str, &str) =
    ("llm_d_epp_kv_cache_events_active_subscribers", "[ALPHA] Endpoints whose KV events are followed.");
const ADMISSIONS: (&str, &str) =
    ("llm_d_epp_kv_cache_index_admissions_total", "[ALPHA] Blocks indexed, or in another tier.");
const DEPTH: (&str, &str) =
    ("llm_d_epp_kv_cache_events_pool_queue_depth", "[ALPHA] Messages of KV events that wait to be applied.");

/// The same with llm-d-router's names.
const THEIR_COUNTS: [(&str, &str, Count); 3] = [
    ("llm_d_epp_kv_cache_events_messages_received_total", "[ALPHA] Live messages of KV events.", |of| {
        of.counts.messages
    }),
    ("llm_d_epp_kv_cache_events_stores_skipped_total", "[ALPHA] Stores of blocks not applied.", |of| {
        of.stores_skipped
    }),
    ("llm_d_epp_kv_cache_events_removals_skipped_total", "[ALPHA] Removals of blocks not applied.", |of| {
        of.removals_skipped
    }),
];

/// Numbers of one endpoint.
#[derive(Clone, Debug)]
pub(super) struct EndpointNumbers {
    pub(super) endpoint: Arc<str>,
    pub(super) counts: Counts,
    pub(super) status: EngineStatus,
    pub(super) blocks: usize,
    pub(super) applied: u64,
    pub(super) unreadable: u64,
    pub(super) skipped: BTreeMap<Skip, u64>,
    pub(super) stores_skipped: u64,
    pub(super) removals_skipped: u64,
    pub(super) last_batch: Option<f64>,
}

/// Numbers of the endpoints of a plugin, as of the last tick.
#[derive(Debug)]
pub(super) struct Numbers {
    plugin: String,
    // Held to replace or copy them.
    endpoints: Mutex<Vec<EndpointNumbers>>,
    admitted: AtomicU64,
    depth: AtomicUsize,
}

impl Numbers {
    pub(super) fn set(&self, endpoints: Vec<EndpointNumbers>, admitted: u64, depth: usize) {
        self.admitted.store(admitted, Relaxed);
        self.depth.store(depth, Relaxed);
        *self.endpoints.lock().unwrap_or_else(PoisonError::into_inner) = endpoints;
    }
}

/// Metrics of KV events.
#[derive(Clone, Debug, Default)]
pub struct KvEventsMetrics {
    plugins: Arc<Mutex<Vec<Arc<Numbers>>>>,
}

impl KvEventsMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self::default();
        registry.register(Box::new(Families { metrics: metrics.clone(), descs: descs()? }))?;
        Ok(metrics)
    }

    pub(super) fn of(&self, plugin: &str) -> Arc<Numbers> {
        let numbers = Arc::new(Numbers {
            plugin: plugin.to_owned(),
            endpoints: Mutex::default(),
            admitted: AtomicU64::new(0),
            depth: AtomicUsize::new(0),
        });
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&numbers));
        numbers
    }
}

struct Families {
    metrics: KvEventsMetrics,
    descs: Vec<Desc>,
}

fn descs() -> prometheus::Result<Vec<Desc>> {
    let desc = |(name, help): (&str, &str), labels: &[&str]| {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        Desc::new(name.to_owned(), help.to_owned(), labels, Default::default())
    };
    let counts = COUNTS.iter().map(|(name, help, _)| desc((name, help), &LABELS));
    let gauges = [BLOCKS, KNOWN, AGE].map(|family| desc(family, &LABELS));
    let theirs = THEIR_COUNTS.iter().map(|(name, help, _)| desc((name, help), &["endpoint"]));
    let others = [
        desc(SKIPPED, &["plugin_name", "reason"]),
        desc(SUBSCRIBERS, &[]),
        desc(ADMISSIONS, &[]),
        desc(DEPTH, &[]),
    ];
    counts.chain(theirs).chain(gauges).chain(others).collect()
}

impl Collector for Families {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let plugins = self.metrics.plugins.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all: Vec<(&str, EndpointNumbers)> = plugins
            .iter()
            .flat_map(|numbers| {
                let endpoints = numbers.endpoints.lock().unwrap_or_else(PoisonError::into_inner).clone();
                endpoints.into_iter().map(|endpoint| (numbers.plugin.as_str(), endpoint))
            })
            .collect();
        let admitted = plugins.iter().map(|numbers| numbers.admitted.load(Relaxed)).sum();
        let depth = plugins.iter().map(|numbers| numbers.depth.load(Relaxed)).sum();
        // Descriptions that were fine at the start are.
        collect(&all, admitted, depth).unwrap_or_default()
    }
}

fn collect(
    all: &[(&str, EndpointNumbers)],
    admitted: u64,
    depth: usize,
) -> prometheus::Result<Vec<MetricFamily>> {
    let opts = |(name, help): (&str, &str)| Opts::new(name, help);
    let mut families = Vec::new();
    for (name, help, read) in COUNTS {
        let family = IntCounterVec::new(opts((name, help)), &LABELS)?;
        for (plugin, numbers) in all {
            family.with_label_values(&[*plugin, &numbers.endpoint]).inc_by(read(numbers));
        }
        families.extend(family.collect());
    }
    for (name, help, read) in THEIR_COUNTS {
        let family = IntCounterVec::new(opts((name, help)), &["endpoint"])?;
        for (_, numbers) in all {
            family.with_label_values(&[&*numbers.endpoint]).inc_by(read(numbers));
        }
        families.extend(family.collect());
    }
    let (blocks, known) = (IntGaugeVec::new(opts(BLOCKS), &LABELS)?, IntGaugeVec::new(opts(KNOWN), &LABELS)?);
    let age = GaugeVec::new(opts(AGE), &LABELS)?;
    let skipped = IntCounterVec::new(opts(SKIPPED), &["plugin_name", "reason"])?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    for (plugin, numbers) in all {
        let labels = [*plugin, &*numbers.endpoint];
        blocks.with_label_values(&labels).set(i64::try_from(numbers.blocks).unwrap_or(i64::MAX));
        known.with_label_values(&labels).set(match numbers.status {
            EngineStatus::Unknown => 0,
            EngineStatus::Partial => 1,
            EngineStatus::Complete => 2,
        });
        if let Some(last) = numbers.last_batch {
            age.with_label_values(&labels).set((now - last).max(0.0));
        }
        for (reason, count) in &numbers.skipped {
            skipped.with_label_values(&[*plugin, reason.name()]).inc_by(*count);
        }
    }
    let subscribers = IntGauge::with_opts(opts(SUBSCRIBERS))?;
    subscribers.set(i64::try_from(all.len()).unwrap_or(i64::MAX));
    let admissions = IntCounter::with_opts(opts(ADMISSIONS))?;
    admissions.inc_by(admitted);
    let waiting = IntGauge::with_opts(opts(DEPTH))?;
    waiting.set(i64::try_from(depth).unwrap_or(i64::MAX));
    families.extend([blocks.collect(), known.collect(), age.collect()].into_iter().flatten());
    families.extend(
        [skipped.collect(), subscribers.collect(), admissions.collect(), waiting.collect()]
            .into_iter()
            .flatten(),
    );
    families.retain(|family| !family.get_metric().is_empty());
    Ok(families)
}
