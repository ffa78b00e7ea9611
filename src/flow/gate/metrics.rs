//! Metric families of flow control.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use crate::metrics::{Legacy, SeriesRoom, Spans, Timing, Timings, register};

use super::demand_gauges::DemandFamilies;

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

/// Seconds that requests wait.
pub(super) const WAIT_BUCKETS: [f64; 16] =
    [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Seconds that the queue needs.
pub(super) const ENQUEUE_BUCKETS: [f64; 10] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1];
/// Seconds until a revoked request has ended.
const CONFIRMATION_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The families of flow control, under the names of llm-d-router.
#[derive(Debug)]
pub struct GateMetrics {
    /// Name of the pool, the label `inference_pool`.
    pub(super) pool: String,
    /// Room for series of requests.
    pub(super) room: SeriesRoom,
    /// Durations of waiting, by outcome.
    pub(super) waited: Spans,
    /// Duration of handing a request in.
    pub(super) enqueued: Spans,
    /// One round of letting requests go.
    pub(super) cycle: Timing,
    /// Requests that wait, and their bytes.
    pub(super) size: IntGaugeVec,
    pub(super) bytes: IntGaugeVec,
    /// Requests that left the queue, by outcome.
    pub(super) total: IntCounterVec,
    /// Running requests that were revoked.
    revoked: IntCounterVec,
    pub(super) confirmed: IntCounter,
    pub(super) timed_out: IntCounter,
    pub(super) confirmation: Histogram,
    pub(super) demand: DemandFamilies,
}

impl GateMetrics {
    /// These metrics, within a bound on series that others share.
    #[must_use]
    pub fn within(mut self, room: &SeriesRoom) -> Self {
        self.demand = self.demand.within(room);
        self.room = room.clone();
        self
    }

    /// Registers the families for the pool of this name.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
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
            &help("Duration of a dispatch cycle in seconds."),
            &[],
        )?;
        let cycle_legacy =
            Legacy { name: "inference_extension_flow_control_dispatch_cycle_duration_seconds", labels: &[] };
        let revoked_by_end = counters(
            "revocations_total",
            "Revocations, by whether the request ended in time.",
            &["outcome", "inference_pool"],
        )?;
        let confirmation = HistogramVec::new(
            HistogramOpts::new(
                name("revocation_confirmation_seconds"),
                help("Seconds from a revocation to the end of the request."),
            )
            .buckets(CONFIRMATION_BUCKETS.to_vec()),
            &["inference_pool"],
        )?;
        Ok(Self {
            pool: pool.to_owned(),
            room: SeriesRoom::default(),
            waited: histograms(
                "request_queue_duration_seconds",
                "Seconds that requests were queued, by outcome.",
                &WAIT_BUCKETS,
                &WAITED,
                Legacy {
                    name: "inference_extension_flow_control_request_queue_duration_seconds",
                    labels: WAITED_SAME,
                },
            )?,
            enqueued: histograms(
                "request_enqueue_duration_seconds",
                "Seconds to enqueue a request, by outcome.",
                &ENQUEUE_BUCKETS,
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
                "Bytes of queued request bodies.",
                "inference_extension_flow_control_queue_bytes",
            )?,
            total: counters(
                "requests_total",
                "Requests that left the queue, by outcome.",
                &["outcome", "priority", "inference_pool"],
            )?,
            revoked: counters(
                "revocations_issued_total",
                "Running requests that were revoked, by priority.",
                &["priority", "inference_pool"],
            )?,
            confirmed: revoked_by_end.with_label_values(&["confirmed", pool]),
            timed_out: revoked_by_end.with_label_values(&["timed_out", pool]),
            confirmation: register(registry, confirmation, None)?.with_label_values(&[pool]),
            demand: DemandFamilies::register(registry)?,
        })
    }

    /// Counts a running request of this priority that was revoked.
    pub(super) fn revoked(&self, priority: i32) {
        self.revoked.with_label_values(&[priority.to_string().as_str(), &self.pool]).inc();
    }
}
