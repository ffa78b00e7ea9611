//! What flow control counts: the families.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::metrics::{Legacy, MAX_LABEL_VALUES, OTHER, Timing, Timings, register};

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
    pub(super) waited: HistogramVec,
    /// How long it took to hand a request in.
    pub(super) enqueued: HistogramVec,
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
            let opts = HistogramOpts::new(name(suffix), help(text)).buckets(buckets.to_vec());
            register(registry, HistogramVec::new(opts, labels)?, Some(old))
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
    // Guards the set of label values; taken when a series is made.
    known: Mutex<HashSet<(i32, String, String)>>,
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

    /// The gauges of a priority and a model. They are never removed, so there is a bound.
    pub(super) fn of(&self, priority: i32, model: &str, target: &str) -> (IntGauge, IntGauge) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (priority, model.to_owned(), target.to_owned());
        let is_full = known.len() >= MAX_LABEL_VALUES && !known.contains(&key);
        let (model, target) = if is_full { (OTHER, OTHER) } else { (model, target) };
        known.insert((priority, model.to_owned(), target.to_owned()));
        let priority = priority.to_string();
        let labels = [priority.as_str(), model, target];
        (self.requests.with_label_values(&labels), self.bytes.with_label_values(&labels))
    }

    /// What waits, where anything does.
    pub(super) fn read(&self) -> Vec<(i32, String, String, IntGauge, IntGauge)> {
        let known: Vec<_> =
            self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        let read = |(priority, model, target): (i32, String, String)| {
            let text = priority.to_string();
            let labels = [text.as_str(), model.as_str(), target.as_str()];
            let requests = self.requests.with_label_values(&labels);
            let bytes = self.bytes.with_label_values(&labels);
            (priority, model, target, requests, bytes)
        };
        known.into_iter().map(read).filter(|(.., requests, _)| requests.get() > 0).collect()
    }
}
