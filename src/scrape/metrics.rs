//! What is counted about scraping.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// Type of the plugin that fetches the pages.
pub const SOURCE_TYPE: &str = "metrics-data-source";
/// Type of the plugin that reads them.
pub const EXTRACTOR_TYPE: &str = "core-metrics-extractor";

const PREFIX: &str = "llm_d_epp_";
const LEGACY_PREFIX: &str = "llm_d_inference_scheduler_";

/// A counter under its name and under the one that dashboards still ask for.
#[derive(Clone, Debug)]
struct Twins {
    current: IntCounterVec,
    legacy: IntCounterVec,
}

impl Twins {
    fn new(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self> {
        let current = format!("{PREFIX}{name}");
        let legacy_help = format!("[ALPHA] [Deprecated: Use {current} instead] {help}");
        Ok(Self {
            legacy: IntCounterVec::new(Opts::new(format!("{LEGACY_PREFIX}{name}"), legacy_help), labels)?,
            current: IntCounterVec::new(Opts::new(current, format!("[ALPHA] {help}")), labels)?,
        })
    }

    fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.current.clone()))?;
        registry.register(Box::new(self.legacy.clone()))
    }

    fn with(&self, values: &[&str]) -> Pair {
        Pair {
            current: self.current.with_label_values(values),
            legacy: self.legacy.with_label_values(values),
        }
    }
}

/// One series of [`Twins`].
#[derive(Clone, Debug)]
pub(super) struct Pair {
    current: IntCounter,
    legacy: IntCounter,
}

impl Pair {
    pub(super) fn inc(&self) {
        self.current.inc();
        self.legacy.inc();
    }
}

/// Counters of all sources and extractors.
#[derive(Clone, Debug)]
pub struct ScrapeMetrics {
    /// `…datalayer_poll_errors_total{source_type}`: scrapes that brought no page.
    poll_errors: Twins,
    /// `…datalayer_extract_errors_total{source_type,extractor_type}`: pages on
    /// which a field was missing or had a value that can't be.
    extract_errors: Twins,
}

impl ScrapeMetrics {
    /// The counters, not registered yet.
    ///
    /// # Errors
    /// Never in practice: names and labels are constants that the library accepts.
    pub fn new() -> prometheus::Result<Self> {
        let source = "source_type";
        Ok(Self {
            poll_errors: Twins::new(
                "datalayer_poll_errors_total",
                "Scrapes of an endpoint that failed.",
                &[source],
            )?,
            extract_errors: Twins::new(
                "datalayer_extract_errors_total",
                "Scraped pages that lacked a field or had an impossible value for one.",
                &[source, "extractor_type"],
            )?,
        })
    }

    /// Makes the counters visible.
    ///
    /// # Errors
    /// When one of the names is registered already.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        self.poll_errors.register(registry)?;
        self.extract_errors.register(registry)
    }

    pub(super) fn counters(&self, source: &str, extractor: &str) -> Counters {
        Counters {
            poll_errors: self.poll_errors.with(&[source]),
            extract_errors: self.extract_errors.with(&[source, extractor]),
        }
    }
}

/// The series of one source, looked up once.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    pub(super) poll_errors: Pair,
    pub(super) extract_errors: Pair,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_both_names_with_the_help_of_its_age() {
        let metrics = ScrapeMetrics::new().unwrap();
        let registry = Registry::new();
        metrics.register(&registry).unwrap();
        assert!(metrics.register(&registry).is_err());
        let counters = metrics.counters(SOURCE_TYPE, EXTRACTOR_TYPE);
        counters.extract_errors.inc();
        let families: Vec<_> = registry
            .gather()
            .iter()
            .map(|family| {
                let metric = &family.get_metric()[0];
                let labels: Vec<_> =
                    metric.get_label().iter().map(|label| label.value().to_owned()).collect();
                (family.name().to_owned(), labels.join(" "), metric.get_counter().get_value())
            })
            .collect();
        let source = "metrics-data-source".to_owned();
        let both = "core-metrics-extractor metrics-data-source".to_owned();
        let want = [
            ("llm_d_epp_datalayer_extract_errors_total".to_owned(), both.clone(), 1.0),
            ("llm_d_epp_datalayer_poll_errors_total".to_owned(), source.clone(), 0.0),
            ("llm_d_inference_scheduler_datalayer_extract_errors_total".to_owned(), both, 1.0),
            ("llm_d_inference_scheduler_datalayer_poll_errors_total".to_owned(), source, 0.0),
        ];
        assert_eq!(families, want);
        for family in registry.gather() {
            let deprecated = family.name().starts_with(LEGACY_PREFIX);
            let start = if deprecated { "[ALPHA] [Deprecated: Use llm_d_epp_" } else { "[ALPHA] S" };
            assert!(family.help().starts_with(start), "{}", family.help());
        }
    }
}
