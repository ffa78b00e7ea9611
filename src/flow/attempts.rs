//! `scheduler_attempts_total`: which endpoint was chosen for which model.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use crate::endpoints::{Endpoint, Snapshot};
use crate::metrics::{
    ClientSeries, Family, LabelKey, LabelRef, Legacy, MAX_LABEL_VALUES, OTHER, SeriesRoom, register,
};

const LABELS: [&str; 5] = ["status", "target_model_name", "endpoint_name", "namespace", "port"];
const LEGACY: Legacy = Legacy {
    name: "inference_extension_scheduler_attempts_total",
    labels: &[
        ("status", "status"),
        ("target_model_name", "target_model_name"),
        ("endpoint_name", "pod_name"),
        ("namespace", "namespace"),
        ("port", "port"),
    ],
};

/// Name of these series in the log.
const OF: &str = "decisions";

/// Most series, beside those of `other`: a thousand models at a thousand endpoints would be a million.
/// A model beyond that counts as `other` at its endpoint.
const MAX_SERIES: usize = 10 * MAX_LABEL_VALUES;

/// Lines of a series on a page, under both names.
const LINES: usize = 2;

/// Counts decisions. The counters of an endpoint go with it, so that a pool whose pods come and go
/// doesn't collect series.
#[derive(Debug)]
pub struct Attempts {
    family: IntCounterVec,
    series: ClientSeries<Key, Counter>,
}

/// Endpoint, its port and model; empty texts where none could be chosen. An endpoint that moves to another
/// port is another one.
type Key = LabelKey<3>;

fn key<'a>(endpoint: Option<&'a Endpoint>, model: &'a str) -> LabelRef<'a, 3> {
    let [id, port] = endpoint.map_or([""; 2], |endpoint| [endpoint.id(), endpoint.port_text()]);
    LabelRef([id, port, model], 0)
}

#[derive(Debug)]
struct Counter {
    decisions: IntCounter,
    /// Values of [`LABELS`]. The endpoint itself isn't kept: a later pod of its name has the same counter.
    labels: [String; 5],
}

fn labels<'a>(endpoint: Option<&'a Endpoint>, model: &'a str) -> [&'a str; 5] {
    match endpoint {
        Some(endpoint) => ["success", model, endpoint.pod(), endpoint.namespace(), endpoint.port_text()],
        None => ["failure", model, "", "", ""],
    }
}

impl Attempts {
    /// Registers the family under both names.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let help = "[ALPHA] Scheduling decisions, by outcome and by the endpoint that was chosen.";
        let family = IntCounterVec::new(Opts::new("llm_d_epp_scheduler_attempts_total", help), &LABELS)?;
        let family = register(registry, family, Some(LEGACY))?;
        Ok(Self { family, series: ClientSeries::new(MAX_SERIES) })
    }

    /// These metrics, within a bound on series that others share.
    #[must_use]
    pub fn within(mut self, room: &SeriesRoom) -> Self {
        self.series = self.series.within(room, LINES);
        self
    }

    /// An endpoint was chosen.
    pub fn success(&self, model: &str, endpoint: &Arc<Endpoint>) {
        self.count(model, Some(endpoint));
    }

    /// No endpoint could be chosen.
    pub fn failure(&self, model: &str) {
        self.count(model, None);
    }

    fn count(&self, model: &str, endpoint: Option<&Arc<Endpoint>>) {
        let wanted = key(endpoint.map(|endpoint| &**endpoint), model);
        self.series.find(wanted.as_dyn()).unwrap_or_else(|| self.make(model, endpoint)).decisions.inc();
    }

    #[cold]
    fn make(&self, model: &str, endpoint: Option<&Arc<Endpoint>>) -> Arc<Counter> {
        let of = endpoint.map(|endpoint| &**endpoint);
        let make = |key: &Key| {
            let [_, _, model] = key.texts();
            let labels = labels(of, model);
            Counter { decisions: self.family.with_label_values(&labels), labels: labels.map(str::to_owned) }
        };
        let family = Family {
            of: OF,
            other: &|| key(of, OTHER).to_key(),
            make: &make,
            forget: &|_, counter| self.forget(counter),
        };
        self.series.get(key(of, self.series.label(model, OF)).to_key(), &family)
    }

    /// Forgets the endpoints that are not in the snapshot, and the models that rest where there are many.
    pub fn retain(&self, snapshot: &Snapshot) {
        let known: HashMap<&str, &str> =
            snapshot.endpoints().iter().map(|e| (e.id().as_ref(), e.port_text())).collect();
        let stays = |key: &Key, _: bool| {
            let [id, port, _] = key.texts();
            id.is_empty() || known.get(id) == Some(&port)
        };
        self.series.retain(stays, &|_, counter| self.forget(counter));
    }

    fn forget(&self, counter: &Counter) {
        // Absent only if somebody else removed it, which is all the same.
        let _ = self.family.remove_label_values(&counter.labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, Store};

    #[test]
    fn series_of_a_removed_endpoint_are_removed() {
        let registry = Registry::new();
        let attempts = Attempts::register(&registry).unwrap();
        let store = Store::default();
        let spec = |name: &str| EndpointSpec::new(name, ([10, 0, 0, 1], 8000));
        store.replace(vec![spec("a"), spec("b")]);
        let snapshot = store.snapshot();
        for endpoint in snapshot.endpoints() {
            attempts.success("m", endpoint);
            attempts.success("m", endpoint);
        }
        attempts.failure("m");
        let text = crate::metrics::render(&registry);
        let want = r#"inference_extension_scheduler_attempts_total{namespace="default",pod_name="a",port="8000",status="success",target_model_name="m"} 2"#;
        assert!(text.contains(want), "{text}");
        store.replace(vec![spec("b")]);
        attempts.retain(&store.snapshot());
        let text = crate::metrics::render(&registry);
        assert!(!text.contains(r#"pod_name="a""#) && text.contains(r#"pod_name="b""#), "{text}");
        assert!(text.contains(r#"status="failure",target_model_name="m"} 1"#), "{text}");
        let gone = Arc::downgrade(&snapshot.endpoints()[1]);
        drop(snapshot);
        let moved = EndpointSpec { address: ([10, 0, 0, 1], 9000).into(), ..spec("b") };
        store.replace(vec![moved]);
        attempts.success("m", &store.snapshot().endpoints()[0]);
        attempts.retain(&store.snapshot());
        let text = crate::metrics::render(&registry);
        assert!(text.contains(r#"port="9000",status="success",target_model_name="m"} 1"#), "{text}");
        assert!(!text.contains(r#"port="8000""#), "{text}");
        // A pod that is replaced under its name and port isn't kept by its counter.
        let first = Arc::downgrade(&store.snapshot().endpoints()[0]);
        store.replace(vec![EndpointSpec { address: ([10, 0, 0, 2], 9000).into(), ..spec("b") }]);
        attempts.retain(&store.snapshot());
        assert!(gone.upgrade().is_none() && first.upgrade().is_none());
        assert!(crate::metrics::render(&registry).contains(r#"port="9000""#));
    }

    fn pool(count: usize) -> Store {
        let store = Store::default();
        let spec = |index: usize| EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, 1], 8000));
        store.replace((0..count).map(spec).collect());
        store
    }

    /// Lines of the family, and the sum of their values.
    fn lines(registry: &Registry) -> (usize, u64) {
        let text = crate::metrics::render(registry);
        let lines = text.lines().filter(|line| line.starts_with("llm_d_epp_scheduler_attempts_total{"));
        let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        let values: Vec<u64> = values.collect();
        (values.len(), values.iter().sum())
    }

    #[tokio::test(start_paused = true)]
    async fn attempt_series_are_bounded_and_idle_ones_evicted() {
        const ENDPOINTS: usize = 40;
        let registry = Registry::new();
        let attempts = Attempts::register(&registry).unwrap();
        let store = pool(ENDPOINTS);
        let snapshot = store.snapshot();
        for model in 0..500 {
            let model = format!("model-{model}");
            snapshot.endpoints().iter().for_each(|endpoint| attempts.success(&model, endpoint));
            attempts.failure(&model);
        }
        let (series, decisions) = lines(&registry);
        assert_eq!(decisions, 500 * (ENDPOINTS as u64 + 1));
        // One `other` at each endpoint, and one at none.
        assert_eq!(series, MAX_SERIES + ENDPOINTS + 1);
        for _ in 0..2 {
            tokio::time::advance(std::time::Duration::from_secs(300)).await;
            attempts.success("model-3", &snapshot.endpoints()[3]);
            attempts.retain(&snapshot);
        }
        assert_eq!(lines(&registry), (1, 3));
        snapshot.endpoints().iter().for_each(|endpoint| attempts.success("new", endpoint));
        assert_eq!(lines(&registry), (1 + ENDPOINTS, 3 + ENDPOINTS as u64));
    }
}
