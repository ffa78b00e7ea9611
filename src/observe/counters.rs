//! Counters that their owners keep as plain atomics, read on each scrape.

use std::fmt;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// Kind of a number: whether it only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

type Read = Box<dyn Fn() -> Vec<u64> + Send + Sync>;

/// A number of the process under a name of its own, or one for each of its parts.
pub struct Number {
    desc: Desc,
    kind: Kind,
    /// Label of the parts.
    label: Option<&'static str>,
    read: Read,
}

impl Number {
    /// A metric that is read by calling `read`.
    ///
    /// # Errors
    /// `prometheus::Error` if the metric's name is not valid.
    pub fn new(
        name: &str,
        help: &str,
        kind: Kind,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> prometheus::Result<Self> {
        let desc = Desc::new(name.to_owned(), help.to_owned(), Vec::new(), Default::default())?;
        Ok(Self { desc, kind, label: None, read: Box::new(move || vec![read()]) })
    }

    /// A metric with a series per value that `read` returns, numbered from 0 by `label`.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is not valid.
    pub fn each(
        name: &str,
        help: &str,
        kind: Kind,
        label: &'static str,
        read: impl Fn() -> Vec<u64> + Send + Sync + 'static,
    ) -> prometheus::Result<Self> {
        let desc = Desc::new(name.to_owned(), help.to_owned(), vec![label.to_owned()], Default::default())?;
        Ok(Self { desc, kind, label: Some(label), read: Box::new(read) })
    }

    fn metric(&self, part: usize, value: u64) -> Metric {
        let mut metric = Metric::default();
        if let Some(label) = self.label {
            let mut pair = LabelPair::default();
            pair.set_name(label.to_owned());
            pair.set_value(part.to_string());
            metric.set_label(vec![pair]);
        }
        match self.kind {
            Kind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value as f64);
                metric.set_counter(counter);
            }
            Kind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value as f64);
                metric.set_gauge(gauge);
            }
        }
        metric
    }
}

impl Collector for Number {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_field_type(match self.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
        });
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        let metrics = (self.read)().into_iter().enumerate();
        family.set_metric(metrics.map(|(part, value)| self.metric(part, value)).collect());
        vec![family]
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Number").field("name", &self.desc.fq_name).field("kind", &self.kind).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;

    #[test]
    fn counter_is_read_at_scrape_time() {
        let registry = Registry::new();
        let value = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(3));
        let read = std::sync::Arc::clone(&value);
        let number = Number::new("x_total", "Xs.", Kind::Counter, move || {
            read.load(std::sync::atomic::Ordering::Relaxed)
        });
        registry.register(Box::new(number.unwrap())).unwrap();
        value.store(5, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(
            crate::metrics::render(&registry),
            "# HELP x_total Xs.\n# TYPE x_total counter\nx_total 5\n"
        );
    }
}
