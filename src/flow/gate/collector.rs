//! Gauges of flow control that are computed on each scrape.

use std::sync::{Arc, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};

use super::Gate;
use crate::flow::queue::Count;

/// A gauge: its name behind the prefix, whether llm-d-router's earlier releases had it, its
/// labels, its help.
type Gauge = (&'static str, bool, &'static [&'static str], &'static str);

const SATURATION: Gauge =
    ("pool_saturation", true, &["inference_pool", "stage"], "Saturation of the pool; 1 is full");
const STALE: Gauge = ("stale_endpoints", false, &["detector"], "Endpoints without fresh metrics");
const OF_BAND: [Gauge; 2] = [
    (
        "capacity_utilization_requests",
        false,
        &["priority", "inference_pool"],
        "Share of a priority's limit on queued requests in use",
    ),
    (
        "capacity_utilization_bytes",
        false,
        &["priority", "inference_pool"],
        "Share of a priority's limit on queued bytes in use",
    ),
];
const OF_ALL: [Gauge; 2] = [
    (
        "global_capacity_utilization_requests",
        false,
        &["inference_pool"],
        "Share of the limit on queued requests in use",
    ),
    (
        "global_capacity_utilization_bytes",
        false,
        &["inference_pool"],
        "Share of the limit on queued bytes in use",
    ),
];
const RECLAIM: [Gauge; 2] = [
    ("reclaim_target", false, &["inference_pool"], "Running requests to revoke, at the last decision"),
    ("pending_reclaim", false, &["inference_pool"], "Running requests that were revoked and have not ended"),
];

/// Collects the gauges of a gate.
#[derive(Debug)]
pub struct GateCollector {
    gate: Arc<Gate>,
    descs: Vec<Desc>,
}

impl GateCollector {
    /// A collector for this gate.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric's description is not valid.
    pub fn new(gate: Arc<Gate>) -> prometheus::Result<Self> {
        let mut descs = Vec::new();
        for gauge in [SATURATION, STALE].into_iter().chain(OF_BAND).chain(OF_ALL).chain(RECLAIM) {
            let (.., labels, _) = gauge;
            for (name, help) in names(gauge) {
                let labels = labels.iter().map(|label| (*label).to_owned()).collect();
                descs.push(Desc::new(name, help, labels, Default::default())?);
            }
        }
        Ok(Self { gate, descs })
    }
}

/// Name and help of a gauge, and of its older form.
fn names((name, has_older, _, help): Gauge) -> impl Iterator<Item = (String, String)> {
    let new = format!("llm_d_epp_flow_control_{name}");
    let older = has_older.then(|| {
        let older = format!("inference_extension_flow_control_{name}");
        (older, format!("[ALPHA] [Deprecated: Use {new}] {help}."))
    });
    std::iter::once((new, format!("[ALPHA] {help}."))).chain(older)
}

/// A family with these values.
fn family(gauge: Gauge, values: &[(&[&str], f64)], out: &mut Vec<MetricFamily>) {
    let (.., labels, _) = gauge;
    for (name, help) in names(gauge) {
        if let Ok(family) = GaugeVec::new(Opts::new(name, help), labels) {
            values.iter().for_each(|(labels, value)| family.with_label_values(labels).set(*value));
            out.extend(family.collect());
        }
    }
}

impl Collector for GateCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Gate { clock, metrics, .. } = &*self.gate;
        let now_ms = clock.now_ms();
        let inner = self.gate.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let levels = inner.levels(now_ms);
        let (detector, detector_name) = (Arc::clone(&inner.detector), inner.detector_name.clone());
        let pool_of = inner.stages.candidates().cloned();
        let (granted, waiting, limit) = (inner.queue.granted(), inner.queue.waiting(), inner.queue.limit());
        let bands: Vec<_> = inner.queue.bands().map(|band| (band.priority.to_string(), band)).collect();
        let (pending, target) = inner.queue.evicting();
        drop(inner);

        let (pool, mut out) = (metrics.pool.as_str(), Vec::new());
        let with = |level: crate::schedule::Level| level.with(granted.requests, granted.bytes);
        let mut saturation = vec![(vec![pool, "effective"], levels.capacity().saturation(granted))];
        for (stage, level) in [("prefill", levels.prefill), ("decode", levels.decode)] {
            saturation.extend(level.map(|level| (vec![pool, stage], with(level))));
        }
        let saturation: Vec<_> =
            saturation.iter().map(|(labels, value)| (labels.as_slice(), *value)).collect();
        family(SATURATION, &saturation, &mut out);
        if let Some(stale) = pool_of.and_then(|candidates| detector.stale(now_ms, candidates.view())) {
            family(STALE, &[(&[detector_name.as_str()], stale as f64)], &mut out);
        }
        let of: [fn(Count) -> u64; 2] = [|count| count.requests, |count| count.bytes];
        for ((of_band, of_all), of) in OF_BAND.into_iter().zip(OF_ALL).zip(of) {
            let labels: Vec<[&str; 2]> =
                bands.iter().map(|(priority, _)| [priority.as_str(), pool]).collect();
            let shares = bands.iter().map(|(_, band)| of(band.waiting) as f64 / of(band.limit).max(1) as f64);
            let values: Vec<_> = labels.iter().map(<[&str; 2]>::as_slice).zip(shares).collect();
            family(of_band, &values, &mut out);
            if of(limit) != u64::MAX {
                let share = of(waiting) as f64 / of(limit).max(1) as f64;
                family(of_all, &[(&[pool], share)], &mut out);
            }
        }
        for (gauge, count) in RECLAIM.into_iter().zip([target, pending]) {
            family(gauge, &[(&[pool], count as f64)], &mut out);
        }
        out
    }
}
