//! Metrics under two names. llm-d-router renamed its families and dropped labels
//! on the way; dashboards and autoscalers read either. A family is counted once,
//! under its new name, and the old one is made from it when it is read.

mod client_series;
mod labels;
mod series_room;
mod spans;
mod timing;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

pub use client_series::{ClientSeries, Family};
pub use labels::{LabelKey, LabelRef, Labels};
pub use series_room::{HeldLines, SeriesRoom};
pub use spans::{Span, Spans};
pub use timing::{PARTS, Timing, Timings, part};

/// Earlier name of a family.
#[derive(Clone, Copy, Debug)]
pub struct Legacy {
    /// The old name.
    pub name: &'static str,
    /// The labels that it had: new name and old name of each. What differs only
    /// in other labels is added up.
    pub labels: &'static [(&'static str, &'static str)],
}

/// Registers a family, and its older form beside it.
///
/// # Errors
/// `prometheus::Error` if a name is taken or not valid.
pub fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    family: C,
    legacy: Option<Legacy>,
) -> prometheus::Result<C> {
    match legacy {
        None => registry.register(Box::new(family.clone()))?,
        Some(legacy) => registry.register(Box::new(Twin::new(family.clone(), legacy)?))?,
    }
    Ok(family)
}

struct Twin<C> {
    family: C,
    legacy: Legacy,
    desc: Desc,
}

impl<C: Collector> Twin<C> {
    fn new(family: C, legacy: Legacy) -> prometheus::Result<Self> {
        let desc = family.desc().first().map_or_else(
            || Err(prometheus::Error::Msg(format!("{} has no new name", legacy.name))),
            |new| {
                let help = new.help.strip_prefix("[ALPHA] ").unwrap_or(&new.help);
                let help = format!("[ALPHA] [Deprecated: Use {}] {help}", new.fq_name);
                let labels = legacy.labels.iter().map(|(_, old)| (*old).to_owned()).collect();
                Desc::new(legacy.name.to_owned(), help, labels, Default::default())
            },
        )?;
        Ok(Self { family, legacy, desc })
    }

    fn older(&self, family: &MetricFamily) -> MetricFamily {
        let mut groups: BTreeMap<Vec<&str>, Vec<&Metric>> = BTreeMap::new();
        for metric in family.get_metric() {
            let value = |wanted: &str| {
                metric.get_label().iter().find(|pair| pair.name() == wanted).map_or("", LabelPair::value)
            };
            let key = self.legacy.labels.iter().map(|(new, _)| value(new)).collect();
            groups.entry(key).or_default().push(metric);
        }
        let metrics = groups
            .into_iter()
            .map(|(key, metrics)| {
                let mut sum = add_up(family.get_field_type(), &metrics);
                let pairs = self.legacy.labels.iter().zip(key).map(|((_, old), value)| {
                    let mut pair = LabelPair::default();
                    pair.set_name((*old).to_owned());
                    pair.set_value(value.to_owned());
                    pair
                });
                // Sorted, as the labels of every other family.
                let mut pairs: Vec<LabelPair> = pairs.collect();
                pairs.sort_by(|a, b| a.name().cmp(b.name()));
                sum.set_label(pairs);
                sum
            })
            .collect();
        let mut older = MetricFamily::default();
        older.set_name(self.desc.fq_name.clone());
        older.set_help(self.desc.help.clone());
        older.set_field_type(family.get_field_type());
        older.set_metric(metrics);
        older
    }
}

/// One metric with the numbers of all, without labels. A histogram's buckets are
/// the same in all of a family.
fn add_up(kind: MetricType, metrics: &[&Metric]) -> Metric {
    let mut sum = Metric::default();
    match kind {
        MetricType::COUNTER => {
            let mut counter = Counter::default();
            counter.set_value(metrics.iter().map(|m| m.get_counter().get_value()).sum());
            sum.set_counter(counter);
        }
        MetricType::HISTOGRAM => {
            let each = || metrics.iter().map(|m| m.get_histogram());
            let mut histogram = Histogram::default();
            histogram.set_sample_count(each().map(Histogram::get_sample_count).sum());
            histogram.set_sample_sum(each().map(Histogram::get_sample_sum).sum());
            let bounds = each().next().map(Histogram::get_bucket).unwrap_or_default();
            let buckets = bounds.iter().enumerate().map(|(at, bound)| {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bound.upper_bound());
                let counts = each().filter_map(|h| h.get_bucket().get(at)).map(Bucket::cumulative_count);
                bucket.set_cumulative_count(counts.sum());
                bucket
            });
            histogram.set_bucket(buckets.collect());
            sum.set_histogram(histogram);
        }
        _ => {
            let mut gauge = Gauge::default();
            gauge.set_value(metrics.iter().map(|m| m.get_gauge().get_value()).sum());
            sum.set_gauge(gauge);
        }
    }
    sum
}

impl<C: Collector> Collector for Twin<C> {
    fn desc(&self) -> Vec<&Desc> {
        let mut all = self.family.desc();
        all.push(&self.desc);
        all
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.family.collect();
        let older: Vec<_> = families.iter().map(|family| self.older(family)).collect();
        families.extend(older);
        families
    }
}

/// Distinct values that a label has at most, where the [room](SeriesRoom) of all is enough; later ones
/// are `other`.
pub const MAX_LABEL_VALUES: usize = 1000;
/// Longest value of such a label, in bytes. Every series repeats it, and every
/// line of a page repeats it again; names of models stay far below.
pub const MAX_LABEL_BYTES: usize = 256;
/// The value of everything beyond the bounds.
pub const OTHER: &str = "other";

/// Logs once that metrics have no series for something: a page that suddenly shows `other`
/// needs a reason.
#[derive(Debug, Default)]
pub struct Overflow(AtomicBool);

impl Overflow {
    /// Logs once that values count as `other`. `label_kind`: the kind of values that have no series left.
    pub fn warn(&self, label_kind: &'static str) {
        if !self.0.load(Relaxed) && !self.0.swap(true, Relaxed) {
            tracing::warn!(
                label_kind,
                longest_name = MAX_LABEL_BYTES,
                "too many flows and models for metric series, or too long names; the others count as 'other'"
            );
        }
    }

    /// Returns `true` if it has warned.
    pub fn has_warned(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// The text page of a registry, in Prometheus' format 0.0.4.
pub fn render(registry: &Registry) -> String {
    // Families without a series are left out, as Prometheus' own client does.
    let families: Vec<_> = registry.gather().into_iter().filter(|f| !f.get_metric().is_empty()).collect();
    let mut text = String::new();
    if let Err(error) = prometheus::TextEncoder::new().encode_utf8(&families, &mut text) {
        tracing::error!(%error, "metrics could not be rendered; please report this");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};

    #[test]
    fn legacy_metric_sums_over_its_missing_labels() {
        let registry = Registry::new();
        let opts = Opts::new("new_total", "[ALPHA] Things.");
        let counter = IntCounterVec::new(opts, &["model", "flow"]).unwrap();
        let legacy = Legacy { name: "old_total", labels: &[("model", "model_name")] };
        let counter = register(&registry, counter, Some(legacy)).unwrap();
        counter.with_label_values(&["m", "a"]).inc_by(2);
        counter.with_label_values(&["m", "b"]).inc_by(3);
        counter.with_label_values(&["n", "a"]).inc();

        let histogram = HistogramVec::new(
            HistogramOpts::new("new_s", "[ALPHA] Time.").buckets(vec![1.0, 2.0]),
            &["flow"],
        );
        let legacy = Legacy { name: "old_s", labels: &[] };
        let histogram = register(&registry, histogram.unwrap(), Some(legacy)).unwrap();
        histogram.with_label_values(&["a"]).observe(0.5);
        histogram.with_label_values(&["b"]).observe(1.5);

        let text = render(&registry);
        for line in [
            "# HELP old_total [ALPHA] [Deprecated: Use new_total] Things.",
            "# TYPE old_total counter",
            "old_total{model_name=\"m\"} 5",
            "old_total{model_name=\"n\"} 1",
            "new_total{flow=\"b\",model=\"m\"} 3",
            "# TYPE old_s histogram",
            "old_s_bucket{le=\"1\"} 1",
            "old_s_bucket{le=\"2\"} 2",
            "old_s_bucket{le=\"+Inf\"} 2",
            "old_s_sum 2",
            "old_s_count 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} not in\n{text}");
        }
    }

    #[test]
    fn a_name_can_be_taken_once() {
        let registry = Registry::new();
        let gauge = || prometheus::IntGauge::new("x", "[ALPHA] X.").unwrap();
        register(&registry, gauge(), None).unwrap();
        assert!(register(&registry, gauge(), None).is_err());
    }
}
