//! `scheduler_attempts_total`: which endpoint was chosen for which model.

use std::collections::HashMap;
use std::sync::Arc;

use dashmap::DashMap;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use crate::endpoints::{Endpoint, Snapshot};
use crate::metrics::{ClientSeries, Family, Legacy, OTHER, register};

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

/// Counts decisions. The counters of an endpoint are kept with it and go with it,
/// so that a pool whose pods come and go doesn't collect series.
#[derive(Debug)]
pub struct Attempts {
    family: IntCounterVec,
    /// Models that have series of their own.
    models: ClientSeries<String, String>,
    chosen: DashMap<Arc<str>, Chosen>,
}

#[derive(Debug)]
struct Chosen {
    endpoint: Arc<Endpoint>,
    by_model: HashMap<String, IntCounter>,
}

impl Chosen {
    fn of(endpoint: &Arc<Endpoint>) -> Self {
        Self { endpoint: Arc::clone(endpoint), by_model: HashMap::new() }
    }

    /// The labels of a model's counter.
    fn labels<'a>(&'a self, model: &'a str) -> [&'a str; 5] {
        let endpoint = &self.endpoint;
        ["success", model, endpoint.pod(), endpoint.namespace(), endpoint.port_text()]
    }

    /// Whether the counters are those of this endpoint as it is now.
    fn is_for(&self, endpoint: &Endpoint) -> bool {
        self.endpoint.port_text() == endpoint.port_text()
    }
}

impl Attempts {
    /// Registers the family under both names.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let help = "[ALPHA] Scheduling decisions, by outcome and by the endpoint that was chosen.";
        let family = IntCounterVec::new(Opts::new("llm_d_epp_scheduler_attempts_total", help), &LABELS)?;
        Ok(Self {
            family: register(registry, family, Some(LEGACY))?,
            models: ClientSeries::default(),
            chosen: DashMap::new(),
        })
    }

    /// An endpoint was chosen.
    pub fn success(&self, model: &str, endpoint: &Arc<Endpoint>) {
        let label = self.label(model);
        let counted = self
            .chosen
            .get(endpoint.id())
            .filter(|chosen| chosen.is_for(endpoint))
            .and_then(|chosen| chosen.by_model.get(&*label).cloned());
        if let Some(counter) = counted {
            return counter.inc();
        }
        let port = endpoint.port_text();
        let labels = ["success", &label, endpoint.pod(), endpoint.namespace(), port];
        let counter = self.family.with_label_values(&labels);
        counter.inc();
        let mut chosen = self.chosen.entry(Arc::clone(endpoint.id())).or_insert_with(|| Chosen::of(endpoint));
        if !chosen.is_for(endpoint) {
            // It moved to another port, which is another series.
            self.forget(&chosen);
            *chosen = Chosen::of(endpoint);
        }
        chosen.by_model.insert(label.to_string(), counter);
    }

    /// No endpoint could be chosen.
    pub fn failure(&self, model: &str) {
        self.family.with_label_values(&["failure", &self.label(model), "", "", ""]).inc();
    }

    /// The label of a model. Its series don't go while it is held.
    fn label(&self, model: &str) -> Arc<String> {
        if let Some(label) = self.models.find(model) {
            return label;
        }
        let label = self.models.label(model, OF).to_owned();
        let forget = |model: &String, _: &String| self.forget_model(model);
        let other = || OTHER.to_owned();
        self.models.get(label, &Family { of: OF, other: &other, make: &Clone::clone, forget: &forget })
    }

    fn forget_model(&self, model: &str) {
        // Absent where nothing was counted.
        let _ = self.family.remove_label_values(&["failure", model, "", "", ""]);
        for mut chosen in self.chosen.iter_mut() {
            if chosen.by_model.remove(model).is_some() {
                let _ = self.family.remove_label_values(&chosen.labels(model));
            }
        }
    }

    /// Forgets the endpoints that are not in the snapshot.
    pub fn retain(&self, snapshot: &Snapshot) {
        let known: std::collections::HashSet<&str> =
            snapshot.endpoints().iter().map(|e| e.id().as_ref()).collect();
        self.chosen.retain(|id, chosen| {
            if known.contains(id.as_ref()) {
                return true;
            }
            self.forget(chosen);
            false
        });
    }

    /// Removes the series of an endpoint.
    fn forget(&self, chosen: &Chosen) {
        for model in chosen.by_model.keys() {
            // Absent only if somebody else removed it, which is all the same.
            let _ = self.family.remove_label_values(&chosen.labels(model));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, Store};

    #[test]
    fn the_series_of_an_endpoint_go_with_it() {
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
        let moved = EndpointSpec { address: ([10, 0, 0, 1], 9000).into(), ..spec("b") };
        store.replace(vec![moved]);
        attempts.success("m", &store.snapshot().endpoints()[0]);
        let text = crate::metrics::render(&registry);
        assert!(text.contains(r#"port="9000",status="success",target_model_name="m"} 1"#), "{text}");
        assert!(!text.contains(r#"port="8000""#), "{text}");
    }

    #[test]
    fn the_series_of_a_model_go_with_it() {
        let registry = Registry::new();
        let attempts = Attempts::register(&registry).unwrap();
        let store = Store::default();
        store.replace(["a", "b"].map(|name| EndpointSpec::new(name, ([10, 0, 0, 1], 8000))).into());
        for model in ["gone", "stays"] {
            store.snapshot().endpoints().iter().for_each(|endpoint| attempts.success(model, endpoint));
            attempts.failure(model);
        }
        attempts.forget_model("gone");
        let text = crate::metrics::render(&registry);
        assert!(!text.contains("gone"), "{text}");
        assert_eq!(text.matches("stays").count(), 6, "three, under two names: {text}");
    }
}
