//! `usher_kv_events_*` and `usher_precise_prefix_*`: events, blocks and mismatches, computed from the last
//! tick on each read of the metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use usher_core::kv_events::Counts;
use usher_core::prefix::EngineStatus;
use usher_plugins::Agreement;

use super::skipped::{Kind, Skipped, their_reason};

const LABELS: [&str; 2] = ["plugin_name", "endpoint"];
const MISMATCH_LABELS: [&str; 3] = ["plugin_name", "endpoint", "kind"];

/// Reads a count of an endpoint.
type Count = fn(&EndpointNumbers) -> u64;

const COUNTS: [(&str, &str, Count); 13] = [
    (
        "usher_kv_events_messages_total",
        "KV event messages received from the engine, without replayed ones.",
        |of| of.counts.messages,
    ),
    ("usher_kv_events_applied_total", "KV events applied.", |of| of.applied),
    ("usher_kv_events_failed_connections_total", "Connections that ended or could not be made.", |of| {
        of.failed_connections
    }),
    ("usher_kv_events_gaps_total", "Gaps in the sequence numbers of KV event messages.", |of| of.counts.gaps),
    ("usher_kv_events_restarts_total", "Restarts of the engine, seen by its numbers or its metrics.", |of| {
        of.counts.restarts
    }),
    ("usher_kv_events_replays_total", "Replays of missed KV events that were asked for.", |of| {
        of.counts.replays
    }),
    ("usher_kv_events_failed_replays_total", "Replays of missed KV events that failed or timed out.", |of| {
        of.counts.failed_replays
    }),
    ("usher_kv_events_resets_total", "Times that all known KV blocks of the endpoint were dropped.", |of| {
        of.counts.resets
    }),
    (
        "usher_kv_events_overflows_total",
        "KV event messages without room among those that wait for the end of a replay.",
        |of| of.counts.overflows,
    ),
    (
        "usher_kv_events_silences_total",
        "KV event connections closed as the engine served requests and published nothing.",
        |of| of.counts.silences,
    ),
    ("usher_kv_events_unreadable_total", "KV event messages whose payload can't be read.", |of| {
        of.unreadable
    }),
    (
        "usher_kv_events_evicted_total",
        "Blocks of the engine dropped as the memory for prefix indexes was used up.",
        |of| of.evicted,
    ),
    (
        "usher_precise_prefix_compared_total",
        "Requests of more than two blocks whose cached tokens were compared with the engine's KV events.",
        |of| of.agreement.compared,
    ),
];
const MISMATCHES: (&str, &str) = (
    "usher_precise_prefix_mismatches_total",
    "Compared requests of which KV events and usage differ by more than half: not_cached (events say more) or not_told (usage says more).",
);
const SKIPPED: (&str, &str) = ("usher_kv_events_skipped_total", "KV events not applied, by reason.");
const UNKNOWN_PODS: (&str, &str) = (
    "usher_kv_events_unknown_pods_total",
    "Messages whose topic names no endpoint at the address that they came from.",
);
const BLOCKS: (&str, &str) =
    ("usher_kv_events_blocks", "KV blocks of the engine that the index knows, held or remembered.");
const KNOWN: (&str, &str) = (
    "usher_kv_events_known",
    "Knowledge of the engine's KV blocks: 0 none, 1 partial (events were missed, or blocks evicted), 2 complete.",
);
const AGE: (&str, &str) =
    ("usher_kv_events_age_seconds", "Age of the engine's last batch of KV events, by its clock.");
const HELD: (&str, &str) =
    ("usher_kv_events_held_bytes", "Bytes of KV event messages that wait for the end of a replay.");
const SUBSCRIBERS: (&str, &str) =
    ("llm_d_epp_kv_cache_events_active_subscribers", "[ALPHA] Endpoints whose KV events are followed.");
const ADMISSIONS: (&str, &str) = (
    "llm_d_epp_kv_cache_index_admissions_total",
    "[ALPHA] Blocks added to the index, or moved to another tier.",
);
const OLDER_ADMISSIONS: (&str, &str) = (
    "kvcache_index_admissions_total",
    "[ALPHA] [Deprecated: Use llm_d_epp_kv_cache_index_admissions_total] Blocks added to the index, or moved to another tier.",
);
const DEPTH: (&str, &str) =
    ("llm_d_epp_kv_cache_events_pool_queue_depth", "[ALPHA] Messages of KV events that wait to be applied.");
const CAPACITY: (&str, &str) =
    ("llm_d_epp_kv_cache_events_pool_capacity", "[ALPHA] Threads that apply KV events: one per plugin.");

/// Families that have labels of llm-d-router.
const THEIR_MESSAGES: (&str, &str) = (
    "llm_d_epp_kv_cache_events_messages_received_total",
    "[ALPHA] KV event messages received from the engine, without replayed ones.",
);
const POD: [&str; 1] = ["pod_identifier"];
const THEIR_SKIPPED: [(Kind, (&str, &str)); 2] = [
    (
        Kind::Store,
        ("llm_d_epp_kv_cache_events_stores_skipped_total", "[ALPHA] Stores of blocks not applied."),
    ),
    (
        Kind::Removal,
        ("llm_d_epp_kv_cache_events_removals_skipped_total", "[ALPHA] Removals of blocks not applied."),
    ),
];
const SKIPPED_LABELS: [&str; 2] = ["cache_kind", "reason"];

/// Numbers of one endpoint.
#[derive(Clone, Debug)]
pub(super) struct EndpointNumbers {
    pub(super) endpoint: Arc<str>,
    pub(super) counts: Counts,
    pub(super) status: EngineStatus,
    pub(super) blocks: usize,
    pub(super) held_bytes: usize,
    pub(super) evicted: u64,
    pub(super) applied: u64,
    pub(super) failed_connections: u64,
    pub(super) unreadable: u64,
    pub(super) skipped: Skipped,
    pub(super) agreement: Agreement,
    pub(super) last_batch: Option<f64>,
}

/// Numbers of the endpoints of a plugin, as of the last tick.
#[derive(Debug)]
pub(super) struct Numbers {
    plugin: String,
    // Held to replace or copy them.
    endpoints: Mutex<Vec<EndpointNumbers>>,
    totals: Mutex<Totals>,
}

/// Numbers of a plugin, over all endpoints.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) admitted: u64,
    pub(super) depth: usize,
    pub(super) unknown_pods: u64,
    /// Skipped messages of endpoints that are gone.
    pub(super) skipped: Skipped,
}

/// Endpoints and queue of a plugin that follows KV events, as of the last tick.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// Messages that wait to be applied.
    pub queued: usize,
    /// By the ids of endpoints.
    pub endpoints: HashMap<Arc<str>, EndpointState>,
}

/// State and counts of an endpoint's KV events.
#[derive(Clone, Copy, Debug)]
pub struct EndpointState {
    /// State of the knowledge about its engine's cache.
    pub status: EngineStatus,
    /// Gaps in the numbers of its messages, ever.
    pub gaps: u64,
    /// Restarts of its engine, ever.
    pub restarts: u64,
    /// Time of its newest batch by the engine's clock, in milliseconds since 1970.
    pub newest_ms: Option<u64>,
}

impl Numbers {
    pub(super) fn set(&self, endpoints: Vec<EndpointNumbers>, totals: Totals) {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner) = totals;
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
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self::default();
        registry.register(Box::new(Families { metrics: metrics.clone(), descs: descs()? }))?;
        Ok(metrics)
    }

    /// The first plugin that follows KV events; `None` before there is one.
    pub fn first(&self) -> Option<Followed> {
        let numbers = self.plugins.lock().unwrap_or_else(PoisonError::into_inner).first().map(Arc::clone)?;
        let state = |of: &EndpointNumbers| EndpointState {
            status: of.status,
            gaps: of.counts.gaps,
            restarts: of.counts.restarts,
            newest_ms: of.last_batch.map(|seconds| (seconds * 1e3) as u64),
        };
        let endpoints = numbers.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoints = endpoints.iter().map(|of| (Arc::clone(&of.endpoint), state(of))).collect();
        let queued = numbers.totals.lock().unwrap_or_else(PoisonError::into_inner).depth;
        Some(Followed { queued, endpoints })
    }

    pub(super) fn of(&self, plugin: &str) -> Arc<Numbers> {
        let numbers = Arc::new(Numbers {
            plugin: plugin.to_owned(),
            endpoints: Mutex::default(),
            totals: Mutex::default(),
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
    let gauges = [BLOCKS, HELD, KNOWN, AGE].map(|family| desc(family, &LABELS));
    let theirs = THEIR_SKIPPED.map(|(_, family)| desc(family, &SKIPPED_LABELS));
    let others = [
        desc(THEIR_MESSAGES, &POD),
        desc(MISMATCHES, &MISMATCH_LABELS),
        desc(SKIPPED, &["plugin_name", "reason"]),
        desc(UNKNOWN_PODS, &["plugin_name"]),
        desc(SUBSCRIBERS, &[]),
        desc(ADMISSIONS, &[]),
        desc(OLDER_ADMISSIONS, &[]),
        desc(DEPTH, &[]),
        desc(CAPACITY, &[]),
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
        let totals: Vec<(&str, Totals)> = plugins
            .iter()
            .map(|numbers| {
                let totals = numbers.totals.lock().unwrap_or_else(PoisonError::into_inner).clone();
                (numbers.plugin.as_str(), totals)
            })
            .collect();
        // Descriptions that were fine at the start are.
        collect(&all, &totals).unwrap_or_default()
    }
}

fn collect(
    all: &[(&str, EndpointNumbers)],
    totals: &[(&str, Totals)],
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
    let messages = IntCounterVec::new(opts(THEIR_MESSAGES), &POD)?;
    for (_, numbers) in all {
        messages.with_label_values(&[&*numbers.endpoint]).inc_by(numbers.counts.messages);
    }
    families.extend(messages.collect());
    let (blocks, known) = (IntGaugeVec::new(opts(BLOCKS), &LABELS)?, IntGaugeVec::new(opts(KNOWN), &LABELS)?);
    let held = IntGaugeVec::new(opts(HELD), &LABELS)?;
    let age = GaugeVec::new(opts(AGE), &LABELS)?;
    let mismatches = IntCounterVec::new(opts(MISMATCHES), &MISMATCH_LABELS)?;
    let skipped = IntCounterVec::new(opts(SKIPPED), &["plugin_name", "reason"])?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    for (plugin, numbers) in all {
        let labels = [*plugin, &*numbers.endpoint];
        blocks.with_label_values(&labels).set(i64::try_from(numbers.blocks).unwrap_or(i64::MAX));
        held.with_label_values(&labels).set(i64::try_from(numbers.held_bytes).unwrap_or(i64::MAX));
        known.with_label_values(&labels).set(match numbers.status {
            EngineStatus::Unknown | EngineStatus::Restarted => 0,
            EngineStatus::Partial => 1,
            EngineStatus::Complete => 2,
        });
        if let Some(last) = numbers.last_batch {
            age.with_label_values(&labels).set((now - last).max(0.0));
        }
        let Agreement { not_cached, not_told, .. } = numbers.agreement;
        for (kind, count) in [("not_cached", not_cached), ("not_told", not_told)] {
            mismatches.with_label_values(&[labels[0], labels[1], kind]).inc_by(count);
        }
    }
    let unknown_pods = IntCounterVec::new(opts(UNKNOWN_PODS), &["plugin_name"])?;
    let (mut admitted, mut depth) = (0, 0);
    for (plugin, totals) in totals {
        unknown_pods.with_label_values(&[*plugin]).inc_by(totals.unknown_pods);
        admitted += totals.admitted;
        depth += totals.depth;
    }
    let there = all.iter().map(|(plugin, numbers)| (plugin, &numbers.skipped));
    let gone = totals.iter().map(|(plugin, totals)| (plugin, &totals.skipped));
    let theirs = THEIR_SKIPPED.map(|(kind, family)| {
        let family = IntCounterVec::new(opts(family), &SKIPPED_LABELS);
        family.map(|family| (kind, family))
    });
    let theirs = theirs.into_iter().collect::<prometheus::Result<Vec<_>>>()?;
    for (plugin, counts) in there.chain(gone) {
        for ((kind, cache, skip), count) in counts {
            skipped.with_label_values(&[*plugin, skip.name()]).inc_by(*count);
            let labels = [cache.name(), their_reason(*skip)];
            for (_, family) in theirs.iter().filter(|(of, _)| of == kind) {
                family.with_label_values(&labels).inc_by(*count);
            }
        }
    }
    families.extend(theirs.iter().flat_map(|(_, family)| family.collect()));
    let gauge = |family, value: usize| {
        let gauge = IntGauge::with_opts(opts(family))?;
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        Ok::<_, prometheus::Error>(gauge)
    };
    let gauges = [gauge(SUBSCRIBERS, all.len())?, gauge(DEPTH, depth)?, gauge(CAPACITY, totals.len())?];
    families.extend(gauges.iter().flat_map(IntGauge::collect));
    for family in [ADMISSIONS, OLDER_ADMISSIONS] {
        let admissions = IntCounter::with_opts(opts(family))?;
        admissions.inc_by(admitted);
        families.extend(admissions.collect());
    }
    families.extend([blocks.collect(), held.collect(), known.collect(), age.collect()].into_iter().flatten());
    families.extend([mismatches.collect(), skipped.collect(), unknown_pods.collect()].into_iter().flatten());
    families.retain(|family| !family.get_metric().is_empty());
    Ok(families)
}

#[cfg(test)]
mod tests {
    use usher_core::kv_events::{CacheKind, Skip};

    use super::*;

    #[test]
    fn skipped_messages_of_removed_endpoints_stay_counted() {
        let registry = Registry::new();
        let metrics = KvEventsMetrics::register(&registry).unwrap();
        let of = |kind| (kind, CacheKind::SlidingWindow, Skip::OtherGroup);
        let skipped = [(of(Kind::Store), 2), (of(Kind::Removal), 1)].into();
        let totals = Totals { unknown_pods: 2, skipped, ..Totals::default() };
        metrics.of("precise").set(vec![], totals);
        let families = registry.gather();
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name() == name).unwrap();
            family.get_metric()[0].get_counter().get_value()
        };
        assert_eq!(value("usher_kv_events_skipped_total"), 3.0);
        assert_eq!(value("usher_kv_events_unknown_pods_total"), 2.0);
        let text = crate::metrics::render(&registry);
        for (family, count) in [("stores", 2), ("removals", 1)] {
            let labels = "cache_kind=\"sliding_window\",reason=\"unsupported_cache_kind\"";
            let line = format!("llm_d_epp_kv_cache_events_{family}_skipped_total{{{labels}}} {count}\n");
            assert!(text.contains(&line), "{text}");
        }
    }
}
