//! How current what is known of the cluster is.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::cluster::Standing;

/// Kinds of objects and how current what is known of them is, as metrics.
#[derive(Clone, Debug)]
pub struct StandingCollector {
    kinds: Vec<(&'static str, Arc<Standing>)>,
    age: Desc,
    connected: Desc,
}

impl StandingCollector {
    /// Metrics of these kinds.
    ///
    /// # Errors
    /// When a name is not valid.
    pub fn new(kinds: Vec<(&'static str, Arc<Standing>)>) -> prometheus::Result<Self> {
        let desc = |name: &str, help: &str| {
            Desc::new(name.to_owned(), help.to_owned(), vec!["resource".to_owned()], Default::default())
        };
        let age = desc(
            "usher_kubernetes_age_seconds",
            "Seconds since the Kubernetes API server was last heard of these objects; at most about 24 when all is well.",
        )?;
        let connected = desc(
            "usher_kubernetes_connected",
            "Whether the Kubernetes API server tells of changes to these objects: 1 or 0. 1 also where it does not define them, and says so when asked.",
        )?;
        Ok(Self { kinds, age, connected })
    }

    fn family(&self, desc: &Desc, read: impl Fn(&Standing) -> Option<f64>) -> MetricFamily {
        let metric = |(kind, standing): &(&str, Arc<Standing>)| {
            let mut gauge = Gauge::default();
            gauge.set_value(read(standing)?);
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

impl Collector for StandingCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.age, &self.connected]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let age = self.family(&self.age, |standing| standing.age().map(|age| age.as_secs_f64()));
        let connected =
            self.family(&self.connected, |standing| Some(f64::from(u8::from(standing.is_connected()))));
        // A family without a metric is not valid.
        [age, connected].into_iter().filter(|family| !family.get_metric().is_empty()).collect()
    }
}
