//! The series of one model, flow and priority, made once and kept.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use prometheus::{Histogram, HistogramVec, IntCounter, IntGauge};

use crate::metrics::{BoundedLabel, MAX_LABEL_VALUES, OTHER, Overflow};
use crate::request::DEFAULT_FAIRNESS_ID;

use super::metrics::ExtProcMetrics;

/// Keys whose series are kept, and so the bound of the metrics page: labels are
/// bounded one by one, but a thousand models in a thousand flows would be a
/// million series.
pub(super) const MAX_KEYS: usize = MAX_LABEL_VALUES;

/// Whose request it is: the values of the request families' labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SeriesKey {
    /// Model that the client asked for.
    pub model: String,
    /// Model that is asked for upstream.
    pub target_model: String,
    /// Flow of the request.
    pub fairness_id: String,
    /// Priority of the request.
    pub priority: i32,
}

impl SeriesKey {
    /// A request whose model we don't know.
    pub(super) fn unknown() -> Self {
        Self {
            model: String::new(),
            target_model: String::new(),
            fairness_id: DEFAULT_FAIRNESS_ID.to_owned(),
            priority: 0,
        }
    }
}

/// Values of the labels `model_name`, `target_model_name`, `fairness_id`, `priority`.
pub(super) type Labels = Arc<[String; 4]>;

/// A histogram of a series, made when something is first observed: a family that
/// a model never uses takes no room on the page.
#[derive(Debug)]
pub(super) struct Lazy {
    family: HistogramVec,
    labels: Labels,
    extra: Option<&'static str>,
    made: OnceLock<Histogram>,
}

impl Lazy {
    fn new(family: &HistogramVec, labels: &Labels, extra: Option<&'static str>) -> Self {
        Self { family: family.clone(), labels: Arc::clone(labels), extra, made: OnceLock::new() }
    }

    pub(super) fn observe(&self, value: f64) {
        let histogram = self.made.get_or_init(|| {
            let values: Vec<&str> = self.labels.iter().map(String::as_str).chain(self.extra).collect();
            self.family.with_label_values(&values)
        });
        histogram.observe(value);
    }
}

/// The series of one [`SeriesKey`], looked up once per request.
#[derive(Debug)]
pub struct Series {
    pub(super) labels: Labels,
    pub(super) total: IntCounter,
    pub(super) duration: Lazy,
    pub(super) request_size: Lazy,
    pub(super) response_size: Lazy,
    pub(super) input_tokens: Lazy,
    pub(super) output_tokens: Lazy,
    pub(super) cached_tokens: Lazy,
    /// `None` without a model, as with the peer.
    pub(super) running: Option<IntGauge>,
    pub(super) ntpot: Lazy,
    pub(super) ttft: Lazy,
    pub(super) ttft_streaming: Lazy,
    pub(super) tpot: Lazy,
    pub(super) itl: Lazy,
}

impl Series {
    pub(super) fn new(labels: Labels, families: &ExtProcMetrics) -> Self {
        let values = labels.each_ref().map(String::as_str);
        let lazy = |family: &HistogramVec| Lazy::new(family, &labels, None);
        let running = || families.running.with_label_values(&values);
        Self {
            total: families.total.with_label_values(&values),
            duration: lazy(&families.duration),
            request_size: lazy(&families.request_size),
            response_size: lazy(&families.response_size),
            input_tokens: lazy(&families.input_tokens),
            output_tokens: lazy(&families.output_tokens),
            cached_tokens: lazy(&families.cached_tokens),
            running: (!values[0].is_empty()).then(running),
            ntpot: lazy(&families.ntpot),
            ttft: Lazy::new(&families.ttft, &labels, Some("false")),
            ttft_streaming: Lazy::new(&families.ttft, &labels, Some("true")),
            tpot: lazy(&families.tpot),
            itl: lazy(&families.itl),
            labels,
        }
    }

    /// Whether the labels are the key's own values, none of them `other` for it.
    fn is_of(&self, key: &SeriesKey) -> bool {
        let [model, target, flow, _] = &*self.labels;
        *model == key.model && *target == key.target_model && *flow == key.fairness_id
    }
}

/// The series that were made, by key.
#[derive(Debug, Default)]
pub(super) struct SeriesTable {
    by_hash: DashMap<u64, Vec<(SeriesKey, Arc<Series>)>>,
    models: BoundedLabel,
    flows: BoundedLabel,
    overflow: Overflow,
}

impl SeriesTable {
    /// The series of a key. Takes a shared lock on a part of the table; makes them
    /// when the key is new. Beyond the bounds the labels are `other`, and the
    /// handles are looked up per request.
    pub(super) fn get(&self, key: &SeriesKey, make: impl FnOnce(Labels) -> Series) -> Arc<Series> {
        let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        let found = |held: &Vec<(SeriesKey, Arc<Series>)>| {
            held.iter().find(|(k, _)| k == key).map(|(_, series)| Arc::clone(series))
        };
        if let Some(series) = self.by_hash.get(&hash).and_then(|held| found(&held)) {
            return series;
        }
        let full = self.by_hash.len() >= MAX_KEYS;
        let series = Arc::new(make(self.labels(key, full)));
        if !series.is_of(key) {
            self.overflow.tell("requests");
        } else if !full {
            let mut held = self.by_hash.entry(hash).or_default();
            if let Some(series) = found(&held) {
                return series;
            }
            held.push((key.clone(), Arc::clone(&series)));
        }
        series
    }

    fn labels(&self, key: &SeriesKey, full: bool) -> Labels {
        let label = |bound: &BoundedLabel, value| if full { OTHER } else { bound.bounded(value) }.to_owned();
        Arc::new([
            label(&self.models, &key.model),
            label(&self.models, &key.target_model),
            label(&self.flows, &key.fairness_id),
            key.priority.to_string(),
        ])
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_hash.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MAX_LABEL_BYTES;
    use prometheus::Registry;

    fn key(model: &str) -> SeriesKey {
        SeriesKey {
            model: model.into(),
            target_model: model.into(),
            fairness_id: "default-flow".into(),
            priority: 0,
        }
    }

    #[test]
    fn label_values_are_bounded_and_what_comes_later_is_other() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        for index in 0..3 * MAX_LABEL_VALUES {
            metrics.series(&key(&format!("model-{index}"))).total.inc();
            assert_eq!(metrics.series.overflow.is_told(), index >= MAX_LABEL_VALUES);
        }
        let text = crate::metrics::render(&registry);
        let series = text.lines().filter(|line| line.starts_with("llm_d_epp_request_total{")).count();
        assert_eq!(series, MAX_LABEL_VALUES + 1);
        let other = text
            .lines()
            .find(|l| l.starts_with("llm_d_epp_request_total{") && l.contains("\"other\""))
            .unwrap();
        assert!(other.ends_with(&format!(" {}", 2 * MAX_LABEL_VALUES)), "{other}");
    }

    #[test]
    fn a_long_name_is_neither_a_label_nor_kept() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        metrics.series(&key(&"x".repeat(MAX_LABEL_BYTES))).total.inc();
        metrics.series(&key(&"y".repeat(MAX_LABEL_BYTES + 1))).total.inc();
        let text = crate::metrics::render(&registry);
        assert!(text.contains("xxx") && !text.contains("yyy"), "{text}");
        assert!(text.lines().any(|l| l.starts_with("llm_d_epp_request_total{") && l.contains("\"other\"")));
        assert_eq!(metrics.series.len(), 1);
    }

    #[test]
    fn combinations_of_label_values_are_bounded() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        for index in 0..MAX_KEYS + 500 {
            let fairness_id = format!("flow-{}", index / 100);
            metrics.series(&SeriesKey { fairness_id, ..key(&format!("m-{}", index % 100)) }).total.inc();
        }
        let text = crate::metrics::render(&registry);
        let series = text.lines().filter(|line| line.starts_with("llm_d_epp_request_total{")).count();
        assert_eq!(series, MAX_KEYS + 1);
    }

    #[test]
    fn one_key_has_one_series() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, true).unwrap();
        let series = metrics.series(&key("m"));
        assert!(Arc::ptr_eq(&series, &metrics.series(&key("m"))));
        assert!(!Arc::ptr_eq(&series, &metrics.series(&key("n"))));
        assert!(metrics.series(&key("")).running.is_none());
    }
}
