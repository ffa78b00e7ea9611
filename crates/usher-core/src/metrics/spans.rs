//! Histograms of how long things take, of which there are many: one for every flow that a client names.
//!
//! When the `prometheus` crate makes a member of a family it checks names and describes the member anew.
//! That takes longer than all else that is done for a request that stops waiting.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, MetricFamily};

use super::timing::{family, metric};

/// Durations of something.
#[derive(Debug)]
pub struct Span {
    bounds: Arc<[Duration]>,
    /// Number of durations up to each bound, and of those above the last.
    counts: Box<[AtomicU64]>,
    /// All together, in nanoseconds: they fill it after 584 years.
    total: AtomicU64,
}

impl Span {
    fn new(bounds: &Arc<[Duration]>) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds: Arc::clone(bounds), counts, total: AtomicU64::new(0) }
    }

    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let bucket = self.bounds.partition_point(|bound| *bound < duration);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.total.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn read(&self) -> Histogram {
        let mut below = 0;
        let buckets = self.bounds.iter().zip(&self.counts).map(|(bound, count)| {
            below += count.load(Relaxed);
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound.as_secs_f64());
            bucket.set_cumulative_count(below);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(self.counts.iter().map(|count| count.load(Relaxed)).sum());
        histogram.set_sample_sum(self.total.load(Relaxed) as f64 / 1e9);
        histogram
    }
}

/// A family of [`Span`]s that differ in their labels. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct Spans {
    desc: Desc,
    bounds: Arc<[Duration]>,
    // Taken when one is made or goes, or the metrics are read.
    members: Arc<Mutex<HashMap<Vec<String>, Arc<Span>>>>,
}

impl Spans {
    /// A family with these upper bounds, in seconds, and these labels.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is not valid.
    pub fn new(name: &str, help: &str, bounds: &[f64], labels: &[&str]) -> prometheus::Result<Self> {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?;
        let bounds = bounds.iter().map(|bound| Duration::from_secs_f64(*bound)).collect();
        Ok(Self { desc, bounds, members: Arc::default() })
    }

    /// The member with these label values, in the order of the labels. To be looked up once and kept.
    pub fn with(&self, values: &[&str]) -> Arc<Span> {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(members.entry(key(values)).or_insert_with(|| Arc::new(Span::new(&self.bounds))))
    }

    /// Removes the member with these label values, if there is one. Holders of it go on counting, but
    /// it is not exported any more.
    pub fn forget(&self, values: &[&str]) {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).remove(&key(values));
    }
}

fn key(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

impl Collector for Spans {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let mut members: Vec<_> = members.iter().collect();
        members.sort_unstable_by_key(|(values, _)| *values);
        vec![family(&self.desc, members.iter().map(|(values, span)| metric(&self.desc, values, span.read())))]
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, Registry};

    use super::*;

    #[test]
    fn output_matches_the_prometheus_crate() {
        let bounds = [0.0001, 0.0005, 0.001, 0.25, 60.0];
        let labels = ["flow", "about"];
        let (ours, theirs) = (Registry::new(), Registry::new());
        let spans = Spans::new("t_seconds", "Help.", &bounds, &labels).unwrap();
        ours.register(Box::new(spans.clone())).unwrap();
        let opts = HistogramOpts::new("t_seconds", "Help.").buckets(bounds.to_vec());
        let histograms = HistogramVec::new(opts, &labels).unwrap();
        theirs.register(Box::new(histograms.clone())).unwrap();
        for (flow, micros) in
            [("b", 0), ("b", 100), ("b", 101), ("a\n\"", 250_000), ("b", 60_000_000), ("b", 90_000_000)]
        {
            let duration = Duration::from_micros(micros);
            spans.with(&[flow, "x"]).observe(duration);
            histograms.with_label_values(&[flow, "x"]).observe(duration.as_secs_f64());
        }
        let page = crate::metrics::render(&ours);
        assert!(page.contains("t_seconds_bucket{about=\"x\",flow=\"b\",le=\"0.0001\"} 2\n"), "{page}");
        assert_eq!(page, crate::metrics::render(&theirs));
        spans.forget(&["b", "x"]);
        histograms.remove_label_values(&["b", "x"]).unwrap();
        assert_eq!(crate::metrics::render(&ours), crate::metrics::render(&theirs));
        spans.forget(&["b", "x"]);
        spans.forget(&["a\n\"", "x"]);
        assert_eq!(crate::metrics::render(&ours), "", "as if it had never been");
    }
}
