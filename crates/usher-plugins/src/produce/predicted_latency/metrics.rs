//! `request_predicted_*`, `request_slo_violation_total` and `inference_request_metric`: how
//! predictions and targets compare with what came.

use std::sync::Arc;

use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use usher_core::endpoints::Snapshot;
use usher_core::metrics::{ClientSeries, Family, Legacy, MAX_LABEL_VALUES, OTHER, SeriesRoom, register};
use usher_plugin::Persistent;

const PLUGIN_TYPE: &str = "predicted-latency-producer";
const LABELS: [&str; 4] = ["plugin_name", "plugin_type", "model_name", "target_model_name"];
const TYPED: [&str; 5] = ["plugin_name", "plugin_type", "model_name", "target_model_name", "type"];
const MODELS: &[(&str, &str)] = &[("model_name", "model_name"), ("target_model_name", "target_model_name")];
const MODELS_TYPE: &[(&str, &str)] =
    &[("model_name", "model_name"), ("target_model_name", "target_model_name"), ("type", "type")];
const LATENCY: [f64; 35] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
const TPOT: [f64; 35] = [
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8,
    1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 48.0, 60.0, 90.0, 120.0, 180.0, 270.0, 360.0,
];

/// The families, shared by all producers.
#[derive(Debug)]
pub struct PredictionFamilies {
    ttft: HistogramVec,
    tpot: HistogramVec,
    violations: IntCounterVec,
    latest: GaugeVec,
}

impl PredictionFamilies {
    /// Registers the families, also under the names of earlier releases of llm-d-router.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str, buckets: &[f64], older| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            register(
                registry,
                HistogramVec::new(opts, &LABELS)?,
                Some(Legacy { name: older, labels: MODELS }),
            )
        };
        let violations = Opts::new(
            "llm_d_epp_request_slo_violation_total",
            "[ALPHA] Requests that missed a latency target, by target.",
        );
        let latest = Opts::new(
            "llm_d_epp_inference_request_metric",
            "[ALPHA] Latencies of the latest request in seconds, measured and predicted, and whether it missed a target.",
        );
        Ok(Self {
            ttft: histogram(
                "llm_d_epp_request_predicted_ttft_seconds",
                "[ALPHA] Predicted seconds to the first token.",
                &LATENCY,
                "inference_objective_request_predicted_ttft_seconds",
            )?,
            tpot: histogram(
                "llm_d_epp_request_predicted_tpot_seconds",
                "[ALPHA] Predicted seconds per output token.",
                &TPOT,
                "inference_objective_request_predicted_tpot_seconds",
            )?,
            violations: register(
                registry,
                IntCounterVec::new(violations, &TYPED)?,
                Some(Legacy { name: "inference_objective_request_slo_violation_total", labels: MODELS_TYPE }),
            )?,
            latest: register(
                registry,
                GaugeVec::new(latest, &TYPED)?,
                Some(Legacy { name: "inference_objective_inference_request_metric", labels: MODELS_TYPE }),
            )?,
        })
    }
}

/// A measured latency and its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Time to the first token.
    Ttft,
    /// Time per output token.
    Tpot,
}

/// Lines of a pair of models on a page at most, under both names.
const LINES: usize = 2 * (LATENCY.len() + TPOT.len() + 2 * 3 + KINDS.len() + 2);

/// Series of one producer by models.
#[derive(Debug)]
pub struct PredictionSeries {
    families: Arc<PredictionFamilies>,
    plugin: String,
    by_models: ClientSeries<[String; 2], [String; 2]>,
}

/// Labels of one request.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    series: Arc<PredictionSeries>,
    models: Arc<[String; 2]>,
}

impl Persistent for PredictionSeries {
    fn sweep(&self, _snapshot: &Snapshot, _now_ms: u64) {
        self.by_models.retain(|_, _| true, &|models, _| self.forget(models));
    }
}

impl Drop for PredictionSeries {
    fn drop(&mut self) {
        self.by_models.retain(|_, _| false, &|models, _| self.forget(models));
    }
}

impl PredictionSeries {
    /// The series of the producer of this name.
    pub fn new(families: Arc<PredictionFamilies>, plugin: &str, room: &SeriesRoom) -> Self {
        let by_models = ClientSeries::new(MAX_LABEL_VALUES).within(room, LINES);
        Self { families, plugin: plugin.to_owned(), by_models }
    }

    /// Labels of a request for these models.
    pub(super) fn of(self: &Arc<Self>, model: &str, target: &str) -> Labels {
        const OF: &str = "predicted latencies";
        let models = [model, target].map(|value| self.by_models.label(value, OF).to_owned());
        let other = || [OTHER, OTHER].map(str::to_owned);
        let forget = |models: &[String; 2], _: &[String; 2]| self.forget(models);
        let family = Family { of: OF, other: &other, make: &Clone::clone, forget: &forget };
        let models = self.by_models.get(models, &family);
        Labels { series: Arc::clone(self), models }
    }

    /// Takes the series of these models out of their families.
    fn forget(&self, [model, target]: &[String; 2]) {
        let labels = [self.plugin.as_str(), PLUGIN_TYPE, model, target];
        let PredictionFamilies { ttft, tpot, violations, latest } = &*self.families;
        // Absent where nothing was observed.
        for family in [ttft, tpot] {
            let _ = family.remove_label_values(&labels);
        }
        let [plugin, plugin_type, model, target] = labels;
        for kind in KINDS {
            let _ = latest.remove_label_values(&[plugin, plugin_type, model, target, kind]);
            let _ = violations.remove_label_values(&[plugin, plugin_type, model, target, kind]);
        }
    }
}

/// Values of the label `type`.
const KINDS: [&str; 6] =
    ["ttft", "tpot", "predicted_ttft", "predicted_tpot", "ttft_slo_violation", "tpot_slo_violation"];

impl Labels {
    fn values(&self) -> [&str; 4] {
        [&self.series.plugin, PLUGIN_TYPE, &self.models[0], &self.models[1]]
    }

    fn latest(&self, kind: &str, value: f64) {
        let [plugin, plugin_type, model, target] = self.values();
        let labels = [plugin, plugin_type, model, target, kind];
        self.series.families.latest.with_label_values(&labels).set(value);
    }

    /// A latency in seconds was predicted for the endpoint that was picked.
    pub(super) fn predicted(&self, kind: Kind, seconds: f64) {
        let families = &self.series.families;
        let (family, name) = match kind {
            Kind::Ttft => (&families.ttft, "predicted_ttft"),
            Kind::Tpot => (&families.tpot, "predicted_tpot"),
        };
        family.with_label_values(&self.values()).observe(seconds);
        self.latest(name, seconds);
    }

    /// Records a measured latency in seconds, and whether it missed its target.
    pub(super) fn measured(&self, kind: Kind, seconds: f64, target: Option<f64>) {
        let (name, violation) = match kind {
            Kind::Ttft => ("ttft", "ttft_slo_violation"),
            Kind::Tpot => ("tpot", "tpot_slo_violation"),
        };
        self.latest(name, seconds);
        let Some(target) = target else { return };
        let is_missed = seconds > target;
        self.latest(violation, f64::from(u8::from(is_missed)));
        if is_missed {
            let [plugin, plugin_type, model, target] = self.values();
            let labels = [plugin, plugin_type, model, target, name];
            self.series.families.violations.with_label_values(&labels).inc();
        }
    }
}
