//! Histograms of how long things take that every request does, on every thread.
//!
//! A histogram of the `prometheus` crate is one place in memory that all threads write
//! to. A decision moves a handful of them, and two threads that decide at once then
//! spend more on handing cache lines to each other than on deciding. Here each thread
//! has a part of its own, and the parts are added up on each read.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Upper bounds of the buckets in nanoseconds: from 0.1 to 100 ms.
const BOUNDS: [u64; 10] = [
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
];

/// Parts of what threads write apart from each other. Threads beyond so many share them.
pub const PARTS: usize = 16;

/// Counts of some threads. On cache lines of their own, two of them, as processors
/// fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part {
    /// Durations up to each bound, and those above the last.
    counts: [AtomicU64; BOUNDS.len() + 1],
    /// All durations, in nanoseconds: they fill it after 584 years.
    total: AtomicU64,
}

/// Distribution of a duration. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    parts: Arc<[Part; PARTS]>,
}

thread_local! {
    static PART: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The part that this thread counts in: what threads write apart from each other elsewhere
/// goes by it, too. Below [`PARTS`].
pub fn part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    PART.with(|part| {
        if part.get() == usize::MAX {
            part.set(NEXT.fetch_add(1, Relaxed) % PARTS);
        }
        part.get()
    })
}

impl Timing {
    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let part = &self.parts[part()];
        // Nearly all are below the first bound.
        let bucket = BOUNDS.iter().position(|bound| nanos <= *bound).unwrap_or(BOUNDS.len());
        part.counts[bucket].fetch_add(1, Relaxed);
        part.total.fetch_add(nanos, Relaxed);
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.parts.iter().flat_map(|part| &part.counts).map(|count| count.load(Relaxed)).sum()
    }

    fn read(&self) -> Histogram {
        let mut histogram = Histogram::default();
        let mut below = 0;
        let buckets = BOUNDS.iter().enumerate().map(|(index, bound)| {
            below += self.bucket(index);
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound as f64 / 1e9);
            bucket.set_cumulative_count(below);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(below + self.bucket(BOUNDS.len()));
        let total: u64 = self.parts.iter().map(|part| part.total.load(Relaxed)).sum();
        histogram.set_sample_sum(total as f64 / 1e9);
        histogram
    }

    fn bucket(&self, index: usize) -> u64 {
        self.parts.iter().map(|part| part.counts[index].load(Relaxed)).sum()
    }
}

/// A family of [`Timing`]s that differ in their labels. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct Timings {
    desc: Desc,
    // Taken when a plugin is built or the metrics are read, never by a request.
    children: Arc<Mutex<BTreeMap<Vec<String>, Timing>>>,
}

impl Timings {
    /// A family with these labels; seconds in what is read.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is not valid.
    pub fn new(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self> {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?;
        Ok(Self { desc, children: Arc::default() })
    }

    /// A family without labels: that one timing, wherever it was made.
    ///
    /// # Errors
    /// `prometheus::Error` if the metric's name is not valid.
    pub fn of(name: &str, help: &str, timing: Timing) -> prometheus::Result<Self> {
        let family = Self::new(name, help, &[])?;
        family.children.lock().unwrap_or_else(PoisonError::into_inner).insert(Vec::new(), timing);
        Ok(family)
    }

    /// The timing with these label values, in the order of the labels. To be looked up
    /// once and kept.
    pub fn with(&self, values: &[&str]) -> Timing {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        let key = values.iter().map(|value| (*value).to_owned()).collect();
        children.entry(key).or_default().clone()
    }

    /// Drops the timings with other label values than those for which `stays` returns `true`. Whoever
    /// holds one may go on to count in it, and nobody reads that.
    pub fn retain(&self, stays: impl Fn(&[String]) -> bool) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|values, _| stays(values));
    }
}

impl Collector for Timings {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        let metrics = children.iter().map(|(values, timing)| metric(&self.desc, values, timing.read()));
        vec![family(&self.desc, metrics)]
    }
}

/// A member of a family of histograms, with its label values in the order of the labels.
pub(super) fn metric(desc: &Desc, values: &[String], histogram: Histogram) -> Metric {
    let mut metric = Metric::default();
    let mut pairs: Vec<LabelPair> = desc.variable_labels.iter().zip(values).map(pair).collect();
    pairs.sort_by(|a, b| a.name().cmp(b.name()));
    metric.set_label(pairs);
    metric.set_histogram(histogram);
    metric
}

/// A family of histograms.
pub(super) fn family(desc: &Desc, metrics: impl Iterator<Item = Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(desc.fq_name.clone());
    family.set_help(desc.help.clone());
    family.set_field_type(MetricType::HISTOGRAM);
    family.set_metric(metrics.collect());
    family
}

fn pair((name, value): (&String, &String)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.clone());
    pair.set_value(value.clone());
    pair
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn histogram_sums_observations_of_all_threads() {
        let registry = Registry::new();
        let timings = Timings::new("t_seconds", "Help.", &["of"]).unwrap();
        registry.register(Box::new(timings.clone())).unwrap();
        let threads: Vec<_> = (0..PARTS + 3)
            .map(|_| {
                let timing = timings.with(&["x"]);
                std::thread::spawn(move || {
                    timing.observe(Duration::from_micros(100));
                    timing.observe(Duration::from_millis(3));
                    timing.observe(Duration::from_secs(2));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let page = crate::metrics::render(&registry);
        for line in [
            "# TYPE t_seconds histogram",
            "t_seconds_bucket{of=\"x\",le=\"0.0001\"} 19",
            "t_seconds_bucket{of=\"x\",le=\"0.002\"} 19",
            "t_seconds_bucket{of=\"x\",le=\"0.005\"} 38",
            "t_seconds_bucket{of=\"x\",le=\"0.1\"} 38",
            "t_seconds_bucket{of=\"x\",le=\"+Inf\"} 57",
            "t_seconds_count{of=\"x\"} 57",
        ] {
            assert!(page.contains(line), "{line} in\n{page}");
        }
        let sum: f64 = page
            .lines()
            .find_map(|line| line.strip_prefix("t_seconds_sum{of=\"x\"} "))
            .unwrap()
            .parse()
            .unwrap();
        assert!((sum - 19.0 * 2.0031).abs() < 1e-6, "{sum}");
    }
}
