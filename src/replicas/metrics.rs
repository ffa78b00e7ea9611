//! `usher_state_store_*` and `usher_replicas_*`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, SystemTime};

use prometheus::core::Collector;
use prometheus::proto::Metric;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use serde::Serialize;
use usher_core::prefix::share::Exchange;

use crate::metrics::register;

/// Numbers of the store and of the replicas that are heard through it.
#[derive(Clone, Debug)]
pub struct ReplicasMetrics {
    /// State whose connection counts its failures here.
    state: &'static str,
    pub(super) connected: IntGauge,
    failures: IntCounterVec,
    last_failures: GaugeVec,
    pub(super) received: IntCounter,
    pub(super) sent: IntCounter,
    pub(super) messages: IntCounterVec,
    ages: GaugeVec,
    pub(super) prefixes: PrefixMetrics,
    pub(super) learned: LearnedMetrics,
}

impl ReplicasMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name, help| register(registry, IntCounter::new(name, help)?, None);
        let counters = |name, help, label| {
            register(registry, IntCounterVec::new(Opts::new(name, help), &[label])?, None)
        };
        let connected = IntGauge::new(
            "usher_state_store_connected",
            "1 while the state store is connected; 0: this replica knows only its own load.",
        )?;
        let last_failures = Opts::new(
            "usher_state_store_last_failure_timestamp_seconds",
            "Time of the last failure of each connection to the state store, in seconds since 1970, by reason and state: load, prefixes, learned.",
        );
        let ages = Opts::new(
            "usher_replicas_age_seconds",
            "Time since another replica was last heard through the state store, for five minutes.",
        );
        Ok(Self {
            state: "load",
            connected: register(registry, connected, None)?,
            last_failures: register(registry, GaugeVec::new(last_failures, &["state", "reason"])?, None)?,
            failures: counters(
                "usher_state_store_failures_total",
                "Failures of the state store, by reason: connections that ended or could not be made, refused commands.",
                "reason",
            )?,
            received: counter(
                "usher_state_store_received_bytes_total",
                "Bytes received from the state store, own messages included.",
            )?,
            sent: counter("usher_state_store_sent_bytes_total", "Bytes sent to the state store.")?,
            messages: counters(
                "usher_replicas_messages_total",
                "Messages received from replicas: counted, own, or rejected (old, version, length, too_many replicas).",
                "result",
            )?,
            ages: register(registry, GaugeVec::new(ages, &["replica"])?, None)?,
            prefixes: PrefixMetrics::register(registry)?,
            learned: LearnedMetrics::register(registry)?,
        })
    }

    /// The same numbers for the connection of another state.
    pub(super) fn of(self, state: &'static str) -> Self {
        Self { state, ..self }
    }

    /// Counts a failure of the connection or a command, and notes its time.
    pub(super) fn failed(&self, reason: &'static str) {
        self.failures.with_label_values(&[reason]).inc();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last_failures.with_label_values(&[self.state, reason]).set(since.as_secs_f64());
    }

    /// Failures of this reason.
    #[cfg(test)]
    pub(super) fn failures(&self, reason: &str) -> u64 {
        self.failures.with_label_values(&[reason]).get()
    }

    /// The numbers as they are now.
    pub fn report(&self) -> Report {
        let ages = self.ages.collect().into_iter().flat_map(|mut family| family.take_metric());
        let named = |metric: Metric| {
            let name = metric.get_label().first().map(|label| label.value().to_owned());
            Some((name?, metric.get_gauge().get_value()))
        };
        let PrefixMetrics { connected, stream, blocks, matched, .. } = &self.prefixes;
        let sources = ["own", "others", "restored"];
        Report {
            is_connected: self.connected.get() == 1,
            shares_prefixes: connected.get() == 1,
            shares_learned: self.learned.connected.get() == 1,
            ages: ages.filter_map(named).collect(),
            received_bytes: self.received.get(),
            sent_bytes: self.sent.get(),
            stream_bytes: stream.get(),
            dropped_blocks: blocks.with_label_values(&["dropped"]).get(),
            matched: sources.map(|source| (source, matched.with_label_values(&[source]).get())).into(),
        }
    }

    /// Shows ages in place of those `shown`, which become these.
    pub(super) fn show(&self, ages: &HashMap<&str, Duration>, shown: &mut HashSet<String>) {
        shown.retain(|name| {
            let stays = ages.contains_key(name.as_str());
            if !stays {
                // Absent only if somebody else removed it, which is all the same.
                let _ = self.ages.remove_label_values(&[name]);
            }
            stays
        });
        for (name, age) in ages {
            self.ages.with_label_values(&[name]).set(age.as_secs_f64());
            if !shown.contains(*name) {
                shown.insert((*name).to_owned());
            }
        }
    }
}

/// Numbers of the exchange for the page of a pool.
#[derive(Debug, Serialize)]
pub struct Report {
    is_connected: bool,
    shares_prefixes: bool,
    shares_learned: bool,
    /// Names of the other replicas, and seconds since each was heard.
    ages: BTreeMap<String, f64>,
    received_bytes: u64,
    sent_bytes: u64,
    stream_bytes: i64,
    dropped_blocks: u64,
    /// Blocks of prompts that endpoints held, by how this replica knew.
    matched: BTreeMap<&'static str, u64>,
}

/// Metrics of the prefixes that replicas publish.
#[derive(Clone, Debug)]
pub(super) struct PrefixMetrics {
    pub(super) connected: IntGauge,
    pub(super) warm_up_seconds: Gauge,
    blocks: IntCounterVec,
    matched: IntCounterVec,
    pub(super) ignored: IntCounterVec,
    stream: IntGauge,
}

impl PrefixMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name, help| register(registry, IntGauge::new(name, help)?, None);
        let counters = |name, help, label| {
            register(registry, IntCounterVec::new(Opts::new(name, help), &[label])?, None)
        };
        let warm_up_seconds = Gauge::new(
            "usher_replicas_prefix_warm_up_seconds",
            "Time that the last read of the stream from its end took, as at the start.",
        )?;
        Ok(Self {
            connected: gauge(
                "usher_replicas_prefix_connected",
                "1 while prefixes are shared, or there are none to share; 0: this replica knows only those of its own requests.",
            )?,
            warm_up_seconds: register(registry, warm_up_seconds, None)?,
            blocks: counters(
                "usher_replicas_prefix_blocks_total",
                "Blocks of prefixes: sent, dropped (too many waited), imported, restored (read at the start), or left out (unknown endpoint, refused as there are too many replicas).",
                "result",
            )?,
            matched: counters(
                "usher_replicas_prefix_matched_blocks_total",
                "Leading blocks of prompts that their endpoint held already, by how this replica knew: own (it had sent them), others (another replica had), restored (read at the start, or of a replica that is gone).",
                "source",
            )?,
            ignored: counters(
                "usher_replicas_prefix_entries_ignored_total",
                "Entries of the stream that are left out: foreign (of another configuration or version), malformed.",
                "reason",
            )?,
            stream: gauge(
                "usher_replicas_prefix_stream_bytes",
                "Bytes of the stream of prefixes in the state store, as far as this replica has read it.",
            )?,
        })
    }

    /// Shows the counts of an exchange.
    pub(super) fn show(&self, exchange: &Exchange) {
        let (received, published) = (exchange.counts(), exchange.published());
        let blocks = [
            ("sent", published.blocks),
            ("dropped", published.dropped),
            ("imported", received.imported),
            ("restored", received.restored),
            ("unknown", received.unknown),
            ("refused", received.refused),
        ];
        raise(&self.blocks, &blocks);
        let matched = exchange.matched();
        let sources = [("own", matched.own), ("others", matched.others), ("restored", matched.restored)];
        raise(&self.matched, &sources);
        raise(&self.ignored, &[("foreign", received.foreign), ("malformed", received.malformed)]);
        self.stream.set(i64::try_from(exchange.stream_bytes()).unwrap_or(i64::MAX));
    }
}

/// Numbers of the learned state that replicas hand on.
#[derive(Clone, Debug)]
pub(super) struct LearnedMetrics {
    pub(super) connected: IntGauge,
    bytes: IntCounterVec,
    pub(super) imported: IntCounterVec,
    ignored: IntCounterVec,
}

impl LearnedMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name, help, label| {
            register(registry, IntCounterVec::new(Opts::new(name, help), &[label])?, None)
        };
        let connected = IntGauge::new(
            "usher_replicas_learned_connected",
            "1 while sessions and learned latencies are handed on, or there are none to hand on; 0: this replica knows only what it learned itself.",
        )?;
        Ok(Self {
            connected: register(registry, connected, None)?,
            bytes: counters(
                "usher_replicas_learned_bytes_total",
                "Bytes of sessions and learned latencies: sent to the state store, or received from other replicas.",
                "direction",
            )?,
            imported: counters(
                "usher_replicas_learned_imported_total",
                "Sessions, and latencies and lengths of endpoints, their groups, models and flows, taken over from other replicas, by plugin.",
                "plugin_name",
            )?,
            ignored: counters(
                "usher_replicas_learned_entries_ignored_total",
                "Entries of the stream of learned state that are left out: foreign (of another configuration or version), malformed.",
                "reason",
            )?,
        })
    }

    /// Adds an entry that was sent.
    pub(super) fn sent(&self, bytes: usize) {
        self.bytes.with_label_values(&["sent"]).inc_by(bytes as u64);
    }

    /// Adds entries that were received, and those that are left out as foreign or malformed.
    pub(super) fn received(&self, bytes: u64, (foreign, malformed): (u64, u64)) {
        self.bytes.with_label_values(&["received"]).inc_by(bytes);
        self.ignored.with_label_values(&["foreign"]).inc_by(foreign);
        self.ignored.with_label_values(&["malformed"]).inc_by(malformed);
    }
}

/// Raises counters to these totals. A total that sinks, as that of an index that is gone, changes nothing.
fn raise(counters: &IntCounterVec, totals: &[(&str, u64)]) {
    for (label, total) in totals {
        let counter = counters.with_label_values(&[label]);
        counter.inc_by(total.saturating_sub(counter.get()));
    }
}
