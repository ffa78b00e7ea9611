//! The series of one model, flow and priority, made once and kept.

use std::sync::{Arc, OnceLock};

use prometheus::{Histogram, HistogramVec, IntCounter, IntGauge};

use crate::flow::Code;
use crate::metrics::{ClientSeries, Family, LabelKey, LabelRef, MAX_LABEL_VALUES, OTHER, SeriesRoom};
use crate::request::{DEFAULT_FAIRNESS_ID, Request};

use super::families::RequestFamilies;

/// Values of the request families' labels for one request.
#[derive(Clone, Copy, Debug)]
pub struct SeriesKey<'a> {
    /// Model that the client asked for.
    pub model: &'a str,
    /// Model that is asked for upstream.
    pub target_model: &'a str,
    /// Flow of the request.
    pub fairness_id: &'a str,
    /// Priority of the request.
    pub priority: i32,
}

impl<'a> SeriesKey<'a> {
    /// Key of a request that was read.
    pub(super) fn of(request: &'a Request) -> Self {
        Self {
            model: &request.model,
            target_model: &request.target_model,
            fairness_id: request.fairness_id(),
            priority: request.priority,
        }
    }

    /// A request whose model we don't know.
    pub(super) fn unknown() -> Self {
        Self { model: "", target_model: "", fairness_id: DEFAULT_FAIRNESS_ID, priority: 0 }
    }

    fn labels(self) -> LabelRef<'a, 3> {
        LabelRef([self.model, self.target_model, self.fairness_id], self.priority)
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
    pub(super) fn new(family: &HistogramVec, labels: &Labels, extra: Option<&'static str>) -> Self {
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
    /// `None` without a model, as in llm-d-router.
    pub(super) running: Option<IntGauge>,
    pub(super) ntpot: Lazy,
    pub(super) ttft: Lazy,
    pub(super) ttft_streaming: Lazy,
    pub(super) tpot: Lazy,
    pub(super) itl: Lazy,
}

impl Series {
    pub(super) fn new(labels: Labels, families: &RequestFamilies) -> Self {
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

    /// Takes the series out of their families.
    pub(super) fn forget(&self, families: &RequestFamilies) {
        let values = self.labels.each_ref().map(String::as_str);
        // Absent where nothing was observed.
        let _ = families.total.remove_label_values(&values);
        let _ = families.running.remove_label_values(&values);
        for family in families.histograms() {
            let _ = family.remove_label_values(&values);
        }
        let [model, target, flow, priority] = values;
        for streaming in ["false", "true"] {
            let _ = families.ttft.remove_label_values(&[model, target, flow, priority, streaming]);
        }
        for code in Code::ALL {
            let _ = families.errors.remove_label_values(&[model, target, flow, priority, code.name()]);
        }
    }
}

/// Lines of a series on a page, under both names: one that streams or one that doesn't.
const LINES: usize = 400;

/// The series that were made, by their labels.
#[derive(Debug)]
pub(super) struct SeriesTable(ClientSeries<LabelKey<3>, Series>);

/// Name of these series in the log.
const OF: &str = "requests";

impl SeriesTable {
    /// An empty table, in a room that others share.
    pub(super) fn new(room: &SeriesRoom) -> Self {
        Self(ClientSeries::new(MAX_LABEL_VALUES).within(room, LINES))
    }

    /// Removes series that were unused for a while, where there are many.
    pub(super) fn sweep(&self, families: &RequestFamilies) {
        self.0.retain(|_, _| true, &|_, series| series.forget(families));
    }

    /// The series of a key.
    pub(super) fn get(&self, key: SeriesKey<'_>, families: &RequestFamilies) -> Arc<Series> {
        self.0.find(key.labels().as_dyn()).unwrap_or_else(|| self.make(key, families))
    }

    #[cold]
    fn make(&self, key: SeriesKey<'_>, families: &RequestFamilies) -> Arc<Series> {
        let LabelRef(texts, priority) = key.labels();
        let key = LabelRef(texts.map(|text| self.0.label(text, OF)), priority).to_key();
        let make = |key: &LabelKey<3>| {
            let [model, target, flow] = key.texts().map(str::to_owned);
            Series::new(Arc::new([model, target, flow, key.number().to_string()]), families)
        };
        let family = Family {
            of: OF,
            other: &|| LabelRef([OTHER; 3], priority).to_key(),
            make: &make,
            forget: &|_, series: &Series| series.forget(families),
        };
        self.0.get(key, &family)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub(super) fn is_full(&self) -> bool {
        self.0.is_full()
    }
}

#[cfg(test)]
mod tests {
    use super::super::gen_ai::Outcome;
    use super::super::metrics::ExtProcMetrics;
    use super::*;
    use crate::metrics::MAX_LABEL_BYTES;
    use crate::request::Api;
    use prometheus::Registry;

    fn key(model: &str) -> SeriesKey<'_> {
        SeriesKey { model, target_model: model, fairness_id: "default-flow", priority: 0 }
    }

    #[test]
    fn label_values_are_bounded_and_later_ones_count_as_other() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        for index in 0..3 * MAX_LABEL_VALUES {
            metrics.series(key(&format!("model-{index}"))).total.inc();
            assert_eq!(metrics.series.is_full(), index >= MAX_LABEL_VALUES);
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

    #[tokio::test(start_paused = true)]
    async fn real_models_have_series_after_a_quiet_time() {
        const SWEEP: std::time::Duration = std::time::Duration::from_secs(30);
        const FAMILIES: [&str; 3] = [
            "llm_d_epp_request_total",
            "gen_ai_server_request_duration_seconds_count",
            "llm_d_epp_model_rewrite_decisions_total",
        ];
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap().with_gen_ai(&registry).unwrap();
        let gen_ai = metrics.gen_ai.as_ref().unwrap();
        let ask = |model: &str| {
            let mut request = Request::default();
            (request.api, request.model, request.target_model) =
                (Api::ChatCompletions, model.into(), model.into());
            gen_ai.of(&request).unwrap().complete(Outcome::default());
            let series = metrics.series(key(model));
            series.total.inc();
            metrics.rewritten("rule", &series);
        };
        for index in 0..=MAX_LABEL_VALUES {
            ask(&format!("invented-{index}"));
        }
        let has = |family: &str, model: &str| {
            let (family, model) = (format!("{family}{{"), format!("\"{model}"));
            let page = crate::metrics::render(&registry);
            page.lines().any(|line| line.starts_with(&family) && line.contains(&model))
        };
        assert!(FAMILIES.iter().all(|family| has(family, "other")));
        for _ in 0..12 {
            tokio::time::advance(SWEEP).await;
            metrics.sweep();
        }
        ask("real");
        for family in FAMILIES {
            let found = ["real", "other", "invented"].map(|model| has(family, model));
            assert_eq!(found, [true, false, false], "{family}");
        }
    }

    #[test]
    fn a_long_name_is_neither_a_label_nor_kept() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        metrics.series(key(&"x".repeat(MAX_LABEL_BYTES))).total.inc();
        for name in ["y", "z"] {
            metrics.series(key(&name.repeat(MAX_LABEL_BYTES + 1))).total.inc();
        }
        let text = crate::metrics::render(&registry);
        assert!(text.contains("xxx") && !text.contains("yyy"), "{text}");
        assert!(text.lines().any(|l| l.starts_with("llm_d_epp_request_total{") && l.contains("\"other\"")));
        assert_eq!(metrics.series.len(), 2, "all that are too long share one");
    }

    #[test]
    fn combinations_of_label_values_are_bounded() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        for index in 0..MAX_LABEL_VALUES + 500 {
            let (flow, model) = (format!("flow-{}", index / 100), format!("m-{}", index % 100));
            metrics.series(SeriesKey { fairness_id: &flow, ..key(&model) }).total.inc();
        }
        let text = crate::metrics::render(&registry);
        let series = text.lines().filter(|line| line.starts_with("llm_d_epp_request_total{")).count();
        assert_eq!(series, MAX_LABEL_VALUES + 1);
    }

    #[test]
    fn evicted_series_are_removed_from_all_families() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, true).unwrap();
        let page = || crate::metrics::render(&registry).replace("_bucket", "");
        let before = page();
        let series = metrics.series(key("gone"));
        series.total.inc();
        series.running.as_ref().unwrap().inc();
        for lazy in [
            &series.duration,
            &series.request_size,
            &series.response_size,
            &series.input_tokens,
            &series.output_tokens,
            &series.cached_tokens,
            &series.ntpot,
            &series.ttft,
            &series.ttft_streaming,
            &series.tpot,
            &series.itl,
        ] {
            lazy.observe(1.0);
        }
        for code in Code::ALL {
            metrics.refused(&series, code);
        }
        assert!(page().contains("gone"));
        series.forget(&metrics.families);
        assert_eq!(page(), before);
    }

    #[test]
    fn one_key_has_one_series() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, true).unwrap();
        let series = metrics.series(key("m"));
        assert!(Arc::ptr_eq(&series, &metrics.series(key("m"))));
        assert!(!Arc::ptr_eq(&series, &metrics.series(key("n"))));
        assert!(metrics.series(key("")).running.is_none());
    }
}
