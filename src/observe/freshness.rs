//! Ages of the numbers that decisions are made of, and the number of endpoints that can't
//! be scraped: computed on each read of the metrics, a series for each field and not
//! for each endpoint. The admin page has the ages of every endpoint.

use std::sync::Arc;
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};

use crate::endpoints::{Clock, Endpoint, Gauge, Load, Store};

use super::endpoints::Attributes;

const STALE: (&str, &str) =
    ("usher_readings_stale", "Endpoints whose last reading of the field is older than the threshold.");
const OLDEST: (&str, &str) = (
    "usher_readings_oldest_age_seconds",
    "Age of the oldest reading of a scraped field over all endpoints, in seconds.",
);
const ENDPOINTS: (&str, &str) = ("usher_endpoints", "Endpoints of the pool.");
const FAILING: (&str, &str) = ("usher_endpoints_failing", "Endpoints whose last scrape failed.");
const UNREACHABLE: (&str, &str) =
    ("usher_endpoints_unreachable", "Endpoints that could not be connected to for their last scrape.");

const EJECTED: (&str, &str) = ("usher_endpoints_ejected", "Ejected endpoints; they get probes only.");
const OLDER_EJECTED: (&str, &str) = (
    "usher_endpoints_demoted",
    "[ALPHA] [Deprecated: Use usher_endpoints_ejected] Ejected endpoints; they get probes only.",
);

/// Readings that every engine may report, with their names.
const FIELDS: [(&str, fn(&Load) -> &Gauge); 7] = [
    ("waiting", |load| &load.waiting),
    ("running", |load| &load.running),
    ("kv_usage", |load| &load.kv_usage),
    ("block_size", |load| &load.block_size),
    ("num_blocks", |load| &load.num_blocks),
    ("adapters", |load| &load.adapters_read),
    ("models", |load| &load.models_read),
];

/// Collects ages from the endpoint store.
#[derive(Debug)]
pub struct FreshnessCollector {
    store: Arc<Store>,
    clock: Clock,
    max_age: Duration,
    pool: String,
    attributes: Attributes,
    descs: Vec<Desc>,
}

impl FreshnessCollector {
    /// A collector for the pool of this name. What is older than `max_age` is stale.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric's description is not valid.
    pub fn new(
        store: Arc<Store>,
        clock: Clock,
        max_age: Duration,
        pool: String,
        attributes: Attributes,
    ) -> prometheus::Result<Self> {
        let families: [(_, &[&str]); 7] = [
            (STALE, &["name", "field"]),
            (OLDEST, &["name", "field"]),
            (ENDPOINTS, &["name"]),
            (FAILING, &["name"]),
            (UNREACHABLE, &["name"]),
            (EJECTED, &["name"]),
            (OLDER_EJECTED, &["name"]),
        ];
        let desc = |((name, help), labels): ((&str, &str), &[&str])| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(name.to_owned(), help.to_owned(), labels, Default::default())
        };
        let descs = families.into_iter().map(desc).collect::<prometheus::Result<_>>()?;
        Ok(Self { store, clock, max_age, pool, attributes, descs })
    }
}

impl Collector for FreshnessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let snapshot = self.store.snapshot();
        let (now_ms, endpoints) = (self.clock.now_ms(), snapshot.endpoints());
        let family = |(name, help), labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels).ok();
        let by_field = [STALE, OLDEST].map(|metric| family(metric, &["name", "field"]));
        let mut fields: Vec<(&str, Ages)> = Vec::new();
        for (name, gauge) in FIELDS {
            fields.push((name, self.ages(endpoints, now_ms, |load| gauge(load))));
        }
        for (id, name) in &self.attributes {
            fields.push((name, self.ages(endpoints, now_ms, |load| load.attribute(*id))));
        }
        // What nobody ever reported has no age.
        for (field, Ages { stale, oldest_ms }) in fields {
            let Some(oldest_ms) = oldest_ms else { continue };
            for (family, value) in by_field.iter().flatten().zip([stale as f64, oldest_ms as f64 / 1000.0]) {
                family.with_label_values(&[self.pool.as_str(), field]).set(value);
            }
        }
        let count = |counts: fn(&Endpoint) -> bool| {
            endpoints.iter().filter(|endpoint| counts(endpoint)).count() as f64
        };
        let failing = count(|endpoint| endpoint.load().scrapes.failures_in_a_row() > 0);
        let unreachable = count(|endpoint| endpoint.load().scrapes.unreachable_in_a_row() > 0);
        let ejected = count(|endpoint| endpoint.health().is_ejected());
        let mut out: Vec<MetricFamily> = by_field.iter().flatten().flat_map(Collector::collect).collect();
        let all = endpoints.len() as f64;
        let values = [(ENDPOINTS, all), (FAILING, failing), (UNREACHABLE, unreachable)];
        for (metric, value) in
            values.into_iter().chain([EJECTED, OLDER_EJECTED].map(|metric| (metric, ejected)))
        {
            if let Some(family) = family(metric, &["name"]) {
                family.with_label_values(&[&self.pool]).set(value);
                out.extend(family.collect());
            }
        }
        // Without endpoints a field has no series.
        out.retain(|family| !family.get_metric().is_empty());
        out
    }
}

/// Ages of a field.
#[derive(Default)]
struct Ages {
    /// At so many endpoints too old.
    stale: usize,
    /// `None` before the first report.
    oldest_ms: Option<u64>,
}

impl FreshnessCollector {
    fn ages(&self, endpoints: &[Arc<Endpoint>], now_ms: u64, gauge: impl Fn(&Load) -> &Gauge) -> Ages {
        let mut ages = Ages::default();
        for at in endpoints.iter().filter_map(|endpoint| gauge(endpoint.load()).read_at_ms()) {
            let age = now_ms.saturating_sub(at);
            ages.oldest_ms = ages.oldest_ms.max(Some(age));
            ages.stale += usize::from(u128::from(age) > self.max_age.as_millis());
        }
        ages
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::endpoints::{AttributeId, EndpointSpec};

    #[test]
    fn reading_ages_are_exported_by_field() {
        let store = Arc::new(Store::default());
        let spec = |i: u8| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000));
        store.replace((1..=3).map(spec).collect());
        let clock = Clock::stopped();
        clock.set(Duration::from_millis(9_999));
        let hot = AttributeId::new(1).unwrap();
        let snapshot = store.snapshot();
        let loads: Vec<_> = snapshot.endpoints().iter().map(|endpoint| endpoint.load()).collect();
        for (load, at) in loads.iter().zip([10_000, 8_000, 7_500]) {
            load.waiting.set(1.0, at);
        }
        loads[0].attribute(hot).set(0.5, 4_000);
        loads[1].scrapes.failed(false, 9_000);
        loads[2].scrapes.failed(true, 9_000);
        let registry = Registry::new();
        let collector = FreshnessCollector::new(
            Arc::clone(&store),
            clock,
            Duration::from_secs(2),
            "p".into(),
            vec![(hot, "hot".to_owned())],
        );
        registry.register(Box::new(collector.unwrap())).unwrap();
        let text = crate::metrics::render(&registry);
        let want = [
            "usher_readings_stale{field=\"waiting\",name=\"p\"} 1",
            "usher_readings_stale{field=\"hot\",name=\"p\"} 1",
            "usher_readings_oldest_age_seconds{field=\"waiting\",name=\"p\"} 2.5",
            "usher_readings_oldest_age_seconds{field=\"hot\",name=\"p\"} 6",
            "usher_endpoints{name=\"p\"} 3",
            "usher_endpoints_failing{name=\"p\"} 2",
            "usher_endpoints_unreachable{name=\"p\"} 1",
            "usher_endpoints_ejected{name=\"p\"} 0",
            "usher_endpoints_demoted{name=\"p\"} 0",
        ];
        for line in want {
            assert!(text.lines().any(|l| l == line), "{line} not in\n{text}");
        }
        assert!(!text.contains("running"), "nobody reported it");
    }
}
