//! Metrics of how current what is known of the cluster is.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::cluster::WatchStatus;

/// Kinds of objects and how current what is known of them is, as metrics.
#[derive(Clone, Debug)]
pub struct WatchCollector {
    kinds: Vec<(&'static str, Arc<WatchStatus>)>,
    age: Desc,
    connected: Desc,
}

impl WatchCollector {
    /// Metrics of these kinds.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is not valid.
    pub fn new(kinds: Vec<(&'static str, Arc<WatchStatus>)>) -> prometheus::Result<Self> {
        let desc = |name: &str, help: &str| {
            Desc::new(name.to_owned(), help.to_owned(), vec!["resource".to_owned()], Default::default())
        };
        let age = desc(
            "usher_kubernetes_age_seconds",
            "Seconds since the Kubernetes API server last sent something about this kind of object; normally below 24.",
        )?;
        let connected = desc(
            "usher_kubernetes_connected",
            "1 while these objects are watched, or while the Kubernetes API server does not define them; 0 while the watch is broken.",
        )?;
        Ok(Self { kinds, age, connected })
    }

    fn family(&self, desc: &Desc, read: impl Fn(&WatchStatus) -> Option<f64>) -> MetricFamily {
        let metric = |(kind, watch_status): &(&str, Arc<WatchStatus>)| {
            let mut gauge = Gauge::default();
            gauge.set_value(read(watch_status)?);
            let mut label = LabelPair::default();
            label.set_name("resource".to_owned());
            label.set_value((*kind).to_owned());
            let mut metric = Metric::default();
            metric.set_gauge(gauge);
            metric.set_label(vec![label]);
            Some(metric)
        };
        let mut family = MetricFamily::default();
        family.set_name(desc.fq_name.clone());
        family.set_help(desc.help.clone());
        family.set_field_type(MetricType::GAUGE);
        family.set_metric(self.kinds.iter().filter_map(metric).collect());
        family
    }
}

impl Collector for WatchCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.age, &self.connected]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let age = self.family(&self.age, |watch_status| watch_status.age().map(|age| age.as_secs_f64()));
        let connected = self
            .family(&self.connected, |watch_status| Some(f64::from(u8::from(watch_status.is_connected()))));
        // A family without a metric is not valid.
        [age, connected].into_iter().filter(|family| !family.get_metric().is_empty()).collect()
    }
}
