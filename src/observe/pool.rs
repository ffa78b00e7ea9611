//! The pool's gauges, computed on each scrape: they are as fresh as
//! the endpoints' own numbers, and an endpoint that is gone leaves no series.

use std::sync::Arc;
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, Opts};

use crate::endpoints::{Clock, Endpoint, Gauge as Reading, Load, Store};
use crate::version::{COMMIT, VERSION};

const NAME: &[&str] = &["name"];
/// New name, older name, help.
const MEANS: [(&str, Option<&str>, &str); 6] = [
    (
        "llm_d_epp_average_kv_cache_utilization",
        Some("inference_pool_average_kv_cache_utilization"),
        "Mean share of the KV cache in use",
    ),
    (
        "llm_d_epp_average_queue_size",
        Some("inference_pool_average_queue_size"),
        "Mean number of requests that wait in a model server",
    ),
    (
        "llm_d_epp_average_running_requests",
        Some("inference_pool_average_running_requests"),
        "Mean number of requests that run in a model server",
    ),
    (
        "llm_d_epp_std_dev_kv_cache_utilization",
        None,
        "Standard deviation of the share of the KV cache in use",
    ),
    ("llm_d_epp_std_dev_queue_size", None, "Standard deviation of the number of waiting requests"),
    ("llm_d_epp_std_dev_running_requests", None, "Standard deviation of the number of running requests"),
];
const READY: (&str, &str) = ("llm_d_epp_ready_endpoints", "inference_pool_ready_pods");
const QUEUE: (&str, &str) = ("llm_d_epp_per_endpoint_queue_size", "inference_pool_per_pod_queue_size");

/// Collects the pool's gauges from the endpoint store.
#[derive(Debug)]
pub struct PoolCollector {
    store: Arc<Store>,
    clock: Clock,
    max_age: Duration,
    pool: String,
    descs: Vec<Desc>,
}

impl PoolCollector {
    /// A collector for the pool of this name. Only endpoints with metrics younger
    /// than `max_age` count.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric's description is not valid.
    pub fn new(store: Arc<Store>, clock: Clock, max_age: Duration, pool: String) -> prometheus::Result<Self> {
        let desc = |name: &str, labels: &[&str]| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(name.to_owned(), "[ALPHA] pool".to_owned(), labels, Default::default())
        };
        let mut descs = Vec::new();
        for (new, old, _) in MEANS {
            descs.push(desc(new, NAME)?);
            if let Some(old) = old {
                descs.push(desc(old, NAME)?);
            }
        }
        descs.push(desc(READY.0, NAME)?);
        descs.push(desc(READY.1, NAME)?);
        descs.push(desc(QUEUE.0, &["name", "model_server_endpoint"])?);
        descs.push(desc(QUEUE.1, &["name", "model_server_pod"])?);
        Ok(Self { store, clock, max_age, pool, descs })
    }

    /// Gauges of the whole pool under a new and an older name.
    fn pool_gauges(&self, names: (&str, Option<&str>), help: &str, value: f64, out: &mut Vec<MetricFamily>) {
        for (name, help) in under_both(names, help) {
            if let Ok(family) = GaugeVec::new(Opts::new(name, help), NAME) {
                family.with_label_values(&[&self.pool]).set(value);
                out.extend(family.collect());
            }
        }
    }

    fn queue_gauges(&self, queues: &[(&str, f64)], out: &mut Vec<MetricFamily>) {
        let labels = ["model_server_endpoint", "model_server_pod"];
        let help = "Requests that wait in a model server";
        for ((name, help), label) in under_both((QUEUE.0, Some(QUEUE.1)), help).zip(labels) {
            if let Ok(family) = GaugeVec::new(Opts::new(name, help), &["name", label]) {
                for (endpoint, queue) in queues {
                    family.with_label_values(&[self.pool.as_str(), endpoint]).set(*queue);
                }
                out.extend(family.collect());
            }
        }
    }
}

impl Collector for PoolCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let snapshot = self.store.snapshot();
        let now_ms = self.clock.now_ms();
        let fresh: Vec<Arc<Endpoint>> = snapshot
            .endpoints()
            .iter()
            .filter(|endpoint| endpoint.load().is_fresh(now_ms, self.max_age))
            .cloned()
            .collect();
        let readings: [fn(&Load) -> &Reading; 3] = [|l| &l.kv_usage, |l| &l.waiting, |l| &l.running];
        let values = readings.map(|reading| {
            // A field can be missing or old on a page that is fresh otherwise.
            let read = |endpoint: &Arc<Endpoint>| reading(endpoint.load()).fresh(now_ms, self.max_age);
            fresh.iter().filter_map(read).collect::<Vec<f64>>()
        });
        let statistics =
            values.each_ref().map(|v| mean(v)).into_iter().chain(values.each_ref().map(|v| deviation(v)));
        let mut out = Vec::with_capacity(self.descs.len());
        for ((new, old, help), value) in MEANS.into_iter().zip(statistics) {
            self.pool_gauges((new, old), help, round(value), &mut out);
        }
        let help = "Endpoints whose metrics are fresh";
        self.pool_gauges((READY.0, Some(READY.1)), help, fresh.len() as f64, &mut out);
        let queues: Vec<(&str, f64)> = fresh
            .iter()
            .filter_map(|e| Some((e.name(), e.load().waiting.fresh(now_ms, self.max_age)?)))
            .collect();
        self.queue_gauges(&queues, &mut out);
        out
    }
}

/// Name and help of a gauge, new and old.
fn under_both<'a>(names: (&'a str, Option<&'a str>), help: &str) -> impl Iterator<Item = (&'a str, String)> {
    let (new, old) = names;
    let older = old.map(|old| (old, format!("[ALPHA] [Deprecated: Use {new}] {help}.")));
    std::iter::once((new, format!("[ALPHA] {help}."))).chain(older)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The standard deviation of a sample, divided by n - 1 (at least 1).
fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    (squares / values.len().saturating_sub(1).max(1) as f64).sqrt()
}

/// To two decimals, as llm-d-router does.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The gauge with the build that runs.
///
/// # Errors
/// `prometheus::Error` if its name is not valid.
pub fn build_info() -> prometheus::Result<Gauge> {
    let opts = Opts::new("llm_d_epp_info", "[ALPHA] The build that runs.")
        .const_label("commit", COMMIT)
        .const_label("build_ref", VERSION);
    let gauge = Gauge::with_opts(opts)?;
    gauge.set(1.0);
    Ok(gauge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::EndpointSpec;
    use prometheus::Registry;

    #[test]
    fn only_fresh_readings_count() {
        let store = Arc::new(Store::default());
        let spec = |i: u8| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000));
        store.replace((1..=4).map(spec).collect());
        let clock = Clock::start();
        // The fourth was scraped, but its queue was not on the page.
        store.snapshot().endpoints()[3].load().scraped(clock.now_ms());
        for (endpoint, queue) in store.snapshot().endpoints().iter().zip([1.0, 2.0, 6.0]) {
            endpoint.load().waiting.set(queue, clock.now_ms());
            endpoint.load().scraped(clock.now_ms());
        }
        let registry = Registry::new();
        let collector = PoolCollector::new(store, clock, Duration::from_secs(60), "p".into()).unwrap();
        registry.register(Box::new(collector)).unwrap();
        let text = crate::metrics::render(&registry);
        for line in [
            "llm_d_epp_ready_endpoints{name=\"p\"} 4",
            "inference_pool_ready_pods{name=\"p\"} 4",
            "llm_d_epp_average_queue_size{name=\"p\"} 3",
            "llm_d_epp_std_dev_queue_size{name=\"p\"} 2.65",
            "llm_d_epp_per_endpoint_queue_size{model_server_endpoint=\"pod-3\",name=\"p\"} 6",
            "inference_pool_per_pod_queue_size{model_server_pod=\"pod-1\",name=\"p\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} not in\n{text}");
        }
        assert!(!text.contains("pod-4"));
    }
}
