//! What flow control counts: the families.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::metrics::{Legacy, MAX_LABEL_VALUES, OTHER, Spans, Timing, Timings, register};

const FLOW: [&str; 3] = ["fairness_id", "priority", "outcome"];
const QUEUE: [&str; 5] = ["fairness_id", "priority", "inference_pool", "model_name", "target_model_name"];
const QUEUE_SAME: &[(&str, &str)] = &[
    ("fairness_id", "fairness_id"),
    ("priority", "priority"),
    ("inference_pool", "inference_pool"),
    ("model_name", "model_name"),
    ("target_model_name", "target_model_name"),
];
const WAITED: [&str; 6] =
    ["fairness_id", "priority", "outcome", "inference_pool", "model_name", "target_model_name"];
const WAITED_SAME: &[(&str, &str)] = &[
    ("fairness_id", "fairness_id"),
    ("priority", "priority"),
    ("outcome", "outcome"),
    ("inference_pool", "inference_pool"),
    ("model_name", "model_name"),
    ("target_model_name", "target_model_name"),
];
const FLOW_SAME: &[(&str, &str)] =
    &[("fairness_id", "fairness_id"), ("priority", "priority"), ("outcome", "outcome")];
const DEMAND: [&str; 3] = ["priority", "model_name", "target_model_name"];

/// Seconds that requests wait.
const WAITS: [f64; 16] =
    [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Seconds that the queue needs.
const MICRO: [f64; 10] = [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1];
/// Seconds until a request that was told to end has ended.
const CONFIRMATION: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The families of flow control, under the names of the peer.
#[derive(Debug)]
pub struct GateMetrics {
    /// Name of the pool, the label `inference_pool`.
    pub(super) pool: String,
    /// How long requests waited, by how that ended.
    pub(super) waited: Spans,
    /// How long it took to hand a request in.
    pub(super) enqueued: Spans,
    /// One round of letting requests go.
    pub(super) cycle: Timing,
    /// Requests that wait, and their bytes.
    pub(super) size: IntGaugeVec,
    pub(super) bytes: IntGaugeVec,
    /// Requests by how their waiting ended.
    pub(super) total: IntCounterVec,
    /// Running requests that were told to end.
    revoked: IntCounterVec,
    pub(super) confirmed: IntCounter,
    pub(super) timed_out: IntCounter,
    pub(super) confirmation: Histogram,
    pub(super) demand: DemandFamilies,
}

impl GateMetrics {
    /// Registers the families for the pool of this name.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry, pool: &str) -> prometheus::Result<Self> {
        let name = |name: &str| format!("llm_d_epp_flow_control_{name}");
        let help = |help: &str| format!("[ALPHA] {help}");
        let counters = |suffix: &str, text: &str, labels: &[&str]| {
            register(registry, IntCounterVec::new(Opts::new(name(suffix), help(text)), labels)?, None)
        };
        let histograms = |suffix: &str, text: &str, buckets: &[f64], labels: &[&str], old: Legacy| {
            register(registry, Spans::new(&name(suffix), &help(text), buckets, labels)?, Some(old))
        };
        let gauges = |suffix: &str, text: &str, old: &'static str| {
            let family = IntGaugeVec::new(Opts::new(name(suffix), help(text)), &QUEUE)?;
            register(registry, family, Some(Legacy { name: old, labels: QUEUE_SAME }))
        };
        let cycle = Timings::new(
            &name("dispatch_cycle_duration_seconds"),
            &help("Seconds that a round of letting requests go took."),
            &[],
        )?;
        let cycle_legacy =
            Legacy { name: "inference_extension_flow_control_dispatch_cycle_duration_seconds", labels: &[] };
        let revoked_by_end = counters(
            "revocations_total",
            "Running requests that were told to end, by whether they did in time.",
            &["outcome", "inference_pool"],
        )?;
        let confirmation = HistogramVec::new(
            HistogramOpts::new(
                name("revocation_confirmation_seconds"),
                help("Seconds from telling a running request to end to its end."),
            )
            .buckets(CONFIRMATION.to_vec()),
            &["inference_pool"],
        )?;
        Ok(Self {
            pool: pool.to_owned(),
            waited: histograms(
                "request_queue_duration_seconds",
                "Seconds that requests waited, by how that ended.",
                &WAITS,
                &WAITED,
                Legacy {
                    name: "inference_extension_flow_control_request_queue_duration_seconds",
                    labels: WAITED_SAME,
                },
            )?,
            enqueued: histograms(
                "request_enqueue_duration_seconds",
                "Seconds that it took to hand a request in, by how its waiting ended.",
                &MICRO,
                &FLOW,
                Legacy {
                    name: "inference_extension_flow_control_request_enqueue_duration_seconds",
                    labels: FLOW_SAME,
                },
            )?,
            cycle: register(registry, cycle, Some(cycle_legacy))?.with(&[]),
            size: gauges("queue_size", "Requests that wait.", "inference_extension_flow_control_queue_size")?,
            bytes: gauges(
                "queue_bytes",
                "Bytes of the bodies of requests that wait.",
                "inference_extension_flow_control_queue_bytes",
            )?,
            total: counters(
                "requests_total",
                "Requests by how their waiting ended.",
                &["outcome", "priority", "inference_pool"],
            )?,
            revoked: counters(
                "revocations_issued_total",
                "Running requests that were told to end, by their priority.",
                &["priority", "inference_pool"],
            )?,
            confirmed: revoked_by_end.with_label_values(&["confirmed", pool]),
            timed_out: revoked_by_end.with_label_values(&["timed_out", pool]),
            confirmation: register(registry, confirmation, None)?.with_label_values(&[pool]),
            demand: DemandFamilies::register(registry)?,
        })
    }

    /// A running request of this priority was told to end.
    pub(super) fn revoked(&self, priority: i32) {
        self.revoked.with_label_values(&[priority.to_string().as_str(), &self.pool]).inc();
    }
}

/// What waits by priority and model: ours, for whoever decides how many servers there
/// should be.
#[derive(Debug)]
pub(super) struct DemandFamilies {
    requests: IntGaugeVec,
    bytes: IntGaugeVec,
    // Guards the gauges by their label values; taken when a series is made.
    known: Mutex<HashMap<DemandKey, Arc<DemandGauges>>>,
}

/// Priority, model and target model.
type DemandKey = (i32, String, String);

/// What waits of one priority for one model.
#[derive(Debug)]
pub(super) struct DemandGauges {
    pub(super) requests: IntGauge,
    pub(super) bytes: IntGauge,
}

impl DemandFamilies {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = |name: &str, help: &str| {
            register(registry, IntGaugeVec::new(Opts::new(name, help), &DEMAND)?, None)
        };
        Ok(Self {
            requests: family("usher_demand_requests", "Requests that wait, by priority and model.")?,
            bytes: family("usher_demand_bytes", "Bytes of the bodies of requests that wait.")?,
            known: Mutex::default(),
        })
    }

    /// The gauges of a priority and a model. They stay while somebody has them.
    pub(super) fn of(&self, priority: i32, model: &str, target: &str) -> Arc<DemandGauges> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (priority, model.to_owned(), target.to_owned());
        if known.len() >= MAX_LABEL_VALUES && !known.contains_key(&key) {
            key = (priority, OTHER.to_owned(), OTHER.to_owned());
        }
        let gauges = known.entry(key).or_insert_with_key(|(priority, model, target)| {
            let priority = priority.to_string();
            let labels = [priority.as_str(), model, target];
            let requests = self.requests.with_label_values(&labels);
            Arc::new(DemandGauges { requests, bytes: self.bytes.with_label_values(&labels) })
        });
        Arc::clone(gauges)
    }

    /// Removes the gauges that nobody has, where there are many. As long as there are few they
    /// stay: whoever scales by one is to read 0 of a model that rests, not nothing.
    pub(super) fn sweep(&self) {
        // Locked meanwhile, so nobody can take one that goes.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() <= MAX_LABEL_VALUES / 2 {
            return;
        }
        known.retain(|(priority, model, target), gauges| {
            let stays = Arc::strong_count(gauges) > 1;
            if !stays {
                let priority = priority.to_string();
                for family in [&self.requests, &self.bytes] {
                    // Absent only if somebody else removed it, which is all the same.
                    let _ = family.remove_label_values(&[priority.as_str(), model, target]);
                }
            }
            stays
        });
    }

    /// What waits, where anything does.
    pub(super) fn read(&self) -> Vec<(DemandKey, Arc<DemandGauges>)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = known.iter().filter(|(_, gauges)| gauges.requests.get() > 0);
        waits.map(|(key, gauges)| (key.clone(), Arc::clone(gauges))).collect()
    }
}
