//! Requests and their times, added up over all models, flows and priorities.

use prometheus::core::Collector;
use prometheus::proto::Metric;
use serde::Serialize;

use super::metrics::ExtProcMetrics;
use super::prompts::Prompts;

/// Counts since the start. Rates are differences of two.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// Requests that were given a destination.
    pub routed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests under way.
    pub running: i64,
    /// Prompts whose cached tokens model servers reported; `None`: no server has.
    pub prompts: Option<Prompts>,
    /// Generated tokens, as model servers counted them.
    pub output_tokens: f64,
    /// Seconds to the first byte of streamed responses.
    pub first_token: Distribution,
    /// Seconds per token after the first, of streamed responses.
    pub per_token: Distribution,
    /// Seconds from the headers of a request to the end of its response.
    pub duration: Distribution,
}

/// Distribution of a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Upper bounds of the buckets, in seconds.
    pub bounds: Vec<f64>,
    /// Observations up to each bound.
    pub below: Vec<u64>,
    /// All observations.
    pub count: u64,
}

impl ExtProcMetrics {
    /// The counts now. Takes time by the number of series, and no lock of the request path.
    pub fn traffic(&self) -> Traffic {
        let families = &self.families;
        let sum =
            |family: &dyn Collector, of: fn(&Metric) -> f64| -> f64 { metrics(family).iter().map(of).sum() };
        let counted = |metric: &Metric| metric.get_counter().get_value();
        let total = |metric: &Metric| metric.get_histogram().get_sample_sum();
        Traffic {
            routed: sum(&families.total, counted) as u64,
            refused: sum(&families.errors, counted) as u64,
            running: sum(&families.running, |metric| metric.get_gauge().get_value()) as i64,
            prompts: self.prompts.read(),
            output_tokens: sum(&families.output_tokens, total),
            first_token: Distribution::of(&families.ttft, |metric| {
                label(metric, "streaming") == Some("true")
            }),
            per_token: Distribution::of(&families.tpot, |_| true),
            duration: Distribution::of(&families.duration, |_| true),
        }
    }
}

impl Distribution {
    /// Sum of the series that `counts`.
    fn of(family: &dyn Collector, counts: impl Fn(&Metric) -> bool) -> Self {
        let mut sum = Self::default();
        for metric in metrics(family).iter().filter(|metric| counts(metric)) {
            let histogram = metric.get_histogram();
            if sum.bounds.is_empty() {
                sum.bounds = histogram.get_bucket().iter().map(|bucket| bucket.upper_bound()).collect();
                sum.below = vec![0; sum.bounds.len()];
            }
            for (below, bucket) in sum.below.iter_mut().zip(histogram.get_bucket()) {
                *below += bucket.cumulative_count();
            }
            sum.count += histogram.get_sample_count();
        }
        sum
    }
}

fn metrics(family: &dyn Collector) -> Vec<Metric> {
    family.collect().iter_mut().flat_map(|family| family.take_metric()).collect()
}

fn label<'a>(metric: &'a Metric, name: &str) -> Option<&'a str> {
    metric.get_label().iter().find(|pair| pair.name() == name).map(|pair| pair.value())
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::super::series::SeriesKey;
    use super::*;

    #[test]
    fn series_are_added_up() {
        let metrics = ExtProcMetrics::register(&Registry::new(), false).unwrap();
        assert_eq!(metrics.traffic(), Traffic::default());
        for (model, cached) in [("a", 30), ("b", 0)] {
            let key = SeriesKey { model, ..SeriesKey::unknown() };
            let series = metrics.series(key);
            series.total.inc_by(2);
            metrics.prompts.count(100, cached);
            series.ttft_streaming.observe(0.3);
            series.ttft.observe(9.0);
            metrics.refused(&series, crate::flow::Code::ALL[0]);
        }
        let traffic = metrics.traffic();
        assert_eq!((traffic.routed, traffic.refused, traffic.running), (4, 2, 0));
        assert_eq!(traffic.prompts, Some(Prompts { tokens: 200, cached: 30 }));
        let below = |bound: f64| {
            let place = traffic.first_token.bounds.iter().position(|each| *each == bound).unwrap();
            traffic.first_token.below[place]
        };
        assert_eq!((below(0.2), below(0.4), traffic.first_token.count), (0, 2, 2));
    }
}
