//! `usher_latency_*`: how well times are predicted, and how fast endpoints are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};
use usher_core::metrics::register;

use super::accuracy::BandAccuracy;
use super::model::Model;

const OF_BAND: [&str; 2] = ["time", "load_decile"];
const OF_GROUP: [&str; 2] = ["accelerator", "role"];

/// Metrics of a pool's latency model, read from it on each scrape.
#[derive(Clone, Debug)]
pub struct LatencyMetrics {
    // Taken when a plugin is built, and when the metrics are read.
    model: Arc<Mutex<Weak<Model>>>,
    error: GaugeVec,
    coverage: GaugeVec,
    predictions: IntCounterVec,
    throughput: GaugeVec,
    ratio: GaugeVec,
}

impl LatencyMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
        let metrics = Self {
            model: Arc::default(),
            error: gauge(
                "usher_latency_prediction_error_ratio",
                "Median of |predicted - measured| / measured of the latest predictions, by time (ttft, tpot) and tenth of load.",
                &OF_BAND,
            )?,
            coverage: gauge(
                "usher_latency_prediction_coverage_ratio",
                "Share of the latest measured times at or below the predicted 90th percentile, by time and tenth of load.",
                &OF_BAND,
            )?,
            predictions: IntCounterVec::new(
                Opts::new(
                    "usher_latency_predictions_total",
                    "Predicted times that were measured afterwards, by time and tenth of load.",
                ),
                &OF_BAND,
            )?,
            throughput: gauge(
                "usher_latency_prefill_tokens_per_second",
                "Prompt tokens that an endpoint computes per second as learned, by accelerator and role.",
                &OF_GROUP,
            )?,
            ratio: gauge(
                "usher_latency_prefill_throughput_ratio",
                "Learned prompt tokens per second over the configured peakPrefillThroughput, by accelerator and role.",
                &OF_GROUP,
            )?,
        };
        register(registry, metrics.clone(), None)?;
        Ok(metrics)
    }

    /// Shows this model from now on.
    pub(crate) fn show(&self, model: &Arc<Model>) {
        let (mut shown, model) = (self.model(), Arc::downgrade(model));
        if !Weak::ptr_eq(&shown, &model) {
            // Another model counts from the beginning.
            self.reset();
            *shown = model;
        }
    }

    fn model(&self) -> MutexGuard<'_, Weak<Model>> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reset(&self) {
        [&self.error, &self.coverage, &self.throughput, &self.ratio].into_iter().for_each(GaugeVec::reset);
        self.predictions.reset();
    }

    /// Reads the model. It stays as it was read while the guard is held.
    fn read(&self) -> MutexGuard<'_, Weak<Model>> {
        let shown = self.model();
        let Some(report) = shown.upgrade().map(|model| model.report()) else {
            self.reset();
            return shown;
        };
        for (time, bands) in [("ttft", &report.prediction.ttft), ("tpot", &report.prediction.tpot)] {
            bands.iter().for_each(|band| self.set(time, band));
        }
        // Groups that are gone have no series.
        [&self.throughput, &self.ratio].into_iter().for_each(GaugeVec::reset);
        for group in &report.groups {
            let labels = [group.accelerator.as_str(), group.role.as_str()];
            self.throughput.with_label_values(&labels).set(group.prefill_throughput);
            if let Some(ratio) = group.throughput_ratio {
                self.ratio.with_label_values(&labels).set(ratio);
            }
        }
        shown
    }

    fn set(&self, time: &str, band: &BandAccuracy) {
        let decile = band.decile.to_string();
        let labels = [time, decile.as_str()];
        self.error.with_label_values(&labels).set(band.median_error);
        self.coverage.with_label_values(&labels).set(band.p90_coverage);
        let counter = self.predictions.with_label_values(&labels);
        counter.inc_by(band.predictions.saturating_sub(counter.get()));
    }
}

impl Collector for LatencyMetrics {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = [&self.error, &self.coverage, &self.throughput, &self.ratio];
        let descs = gauges.into_iter().flat_map(Collector::desc);
        descs.chain(self.predictions.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _shown = self.read();
        let gauges = [&self.error, &self.coverage, &self.throughput, &self.ratio];
        let families = gauges.into_iter().flat_map(Collector::collect);
        families.chain(self.predictions.collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::endpoints::{Clock, EndpointSpec, Store};

    #[test]
    fn errors_and_speeds_are_shown_by_load_and_accelerator() {
        let registry = Registry::new();
        let metrics = LatencyMetrics::register(&registry).unwrap();
        let text = || prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(!text().contains("usher_latency_"), "no model, no series");
        let model = Arc::new(Model::new(1000.0, Clock::stopped()));
        metrics.show(&model);
        for _ in 0..3 {
            model.accuracies().first.record(0.35, 1.5, 2.0, 1.0);
        }
        assert!(text().contains("usher_latency_prediction_error_ratio{load_decile=\"3\",time=\"ttft\"} 0.5"));
        for _ in 0..2 {
            assert!(text().contains("usher_latency_predictions_total{load_decile=\"3\",time=\"ttft\"} 3"));
        }
        let other = Arc::new(Model::new(1000.0, Clock::stopped()));
        other.accuracies().first.record(0.35, 1.5, 2.0, 1.0);
        metrics.show(&other);
        let counted = "usher_latency_predictions_total{load_decile=\"3\",time=\"ttft\"} 1";
        assert!(text().contains(counted), "another model counts from the beginning");
        metrics.show(&other);
        assert!(text().contains(counted));
        drop((model, other));
        assert!(!text().contains("usher_latency_"), "a model that is gone is not shown");
    }
    #[test]
    fn groups_that_are_gone_have_no_series() {
        let registry = Registry::new();
        let metrics = LatencyMetrics::register(&registry).unwrap();
        let text = || prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let model = Arc::new(Model::new(1000.0, Clock::stopped()));
        metrics.show(&model);
        let pool = |accelerators: &[&str]| {
            let store = Store::default();
            let spec = |accelerator: &&str| {
                let mut spec = EndpointSpec::new(*accelerator, ([10, 0, 0, 1], 8000));
                spec.labels.insert("llm-d.ai/accelerator".to_owned(), (*accelerator).to_owned());
                spec
            };
            store.replace(accelerators.iter().map(spec).collect());
            store.snapshot()
        };
        let pods = pool(&["a", "b"]);
        pods.endpoints().iter().for_each(|endpoint| _ = model.groups.of(endpoint, 1000.0));
        assert!(text().contains("tokens_per_second{accelerator=\"b\",role=\"\"} 1000"), "{}", text());
        model.groups.sweep(&pool(&["a"]), 0);
        assert!(text().contains("accelerator=\"a\"") && !text().contains("accelerator=\"b\""), "{}", text());
    }
}
