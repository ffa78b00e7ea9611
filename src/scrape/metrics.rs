//! Metrics of scraping.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use crate::metrics::{Legacy, register};

use super::client::Reason;

/// Type of the plugin that fetches the pages.
pub const SOURCE_TYPE: &str = "metrics-data-source";
/// Type of the plugin that reads them.
pub const EXTRACTOR_TYPE: &str = "core-metrics-extractor";
/// Type of the plugin that fetches lists of models.
pub const MODELS_SOURCE_TYPE: &str = "models-data-source";
/// Type of the plugin that reads them.
pub const MODELS_EXTRACTOR_TYPE: &str = "models-data-extractor";
/// Type of the plugin that fetches what a GPU exporter says.
pub const DCGM_SOURCE_TYPE: &str = "dcgm-data-source";
/// Type of the plugin that reads it.
pub const DCGM_EXTRACTOR_TYPE: &str = "dcgm-extractor";

const SOURCE: &str = "source_type";
const EXTRACTOR: &str = "extractor_type";

/// Counters of all sources and extractors.
#[derive(Clone, Debug)]
pub struct ScrapeMetrics {
    /// `…datalayer_poll_errors_total{source_type}`: scrapes that brought no page.
    poll_errors: IntCounterVec,
    /// `…datalayer_extract_errors_total{source_type,extractor_type}`: pages on
    /// which a field was missing or had a value that can't be.
    extract_errors: IntCounterVec,
    /// `usher_scrape_failures_total{source_type,reason}`: the same scrapes as `poll_errors`.
    failures: IntCounterVec,
}

impl ScrapeMetrics {
    /// Registers the counters under both names.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let poll_errors = IntCounterVec::new(
            Opts::new("llm_d_epp_datalayer_poll_errors_total", "[ALPHA] Scrapes of an endpoint that failed."),
            &[SOURCE],
        )?;
        let poll_legacy = Legacy {
            name: "llm_d_inference_scheduler_datalayer_poll_errors_total",
            labels: &[(SOURCE, SOURCE)],
        };
        let extract_errors = IntCounterVec::new(
            Opts::new(
                "llm_d_epp_datalayer_extract_errors_total",
                "[ALPHA] Scraped pages that lacked a field or had an impossible value for one.",
            ),
            &[SOURCE, EXTRACTOR],
        )?;
        let extract_legacy = Legacy {
            name: "llm_d_inference_scheduler_datalayer_extract_errors_total",
            labels: &[(SOURCE, SOURCE), (EXTRACTOR, EXTRACTOR)],
        };
        let failures = IntCounterVec::new(
            Opts::new(
                "usher_scrape_failures_total",
                "Scrapes of an endpoint that failed, by what went wrong.",
            ),
            &[SOURCE, "reason"],
        )?;
        Ok(Self {
            failures: register(registry, failures, None)?,
            poll_errors: register(registry, poll_errors, Some(poll_legacy))?,
            extract_errors: register(registry, extract_errors, Some(extract_legacy))?,
        })
    }

    /// The counters of a source of this type, and of extractors of these.
    pub(super) fn counters<'e>(
        &self,
        source: &str,
        extractors: impl IntoIterator<Item = &'e str>,
    ) -> Counters {
        let extract = |extractor: &str| self.extract_errors.with_label_values(&[source, extractor]);
        Counters {
            poll_errors: self.poll_errors.with_label_values(&[source]),
            failures: Reason::ALL.map(|(_, name)| self.failures.with_label_values(&[source, name])),
            extract_errors: extractors.into_iter().map(extract).collect(),
            models_errors: extract(MODELS_EXTRACTOR_TYPE),
        }
    }
}

/// The series of one source, looked up once.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    poll_errors: IntCounter,
    /// In the order of [`Reason::ALL`].
    failures: [IntCounter; Reason::ALL.len()],
    /// One for each extractor.
    pub(super) extract_errors: Vec<IntCounter>,
    pub(super) models_errors: IntCounter,
}

impl Counters {
    pub(super) fn failed(&self, reason: Reason) {
        self.poll_errors.inc();
        let named = Reason::ALL.iter().zip(&self.failures).find(|((known, _), _)| *known == reason);
        named.iter().for_each(|(_, counter)| counter.inc());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_both_names_with_the_help_of_its_age() {
        let registry = Registry::new();
        let metrics = ScrapeMetrics::register(&registry).unwrap();
        assert!(ScrapeMetrics::register(&registry).is_err(), "once is enough");
        let counters = metrics.counters(SOURCE_TYPE, [EXTRACTOR_TYPE]);
        counters.extract_errors[0].inc();
        let families: Vec<_> = registry
            .gather()
            .iter()
            .filter(|family| family.name().contains("datalayer"))
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
        for family in registry.gather().iter().filter(|family| family.name().contains("datalayer")) {
            let deprecated = family.name().contains("inference_scheduler");
            let start = if deprecated { "[ALPHA] [Deprecated: Use llm_d_epp_" } else { "[ALPHA] S" };
            assert!(family.help().starts_with(start), "{}", family.help());
        }
    }
}
