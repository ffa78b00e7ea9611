//! What scheduling counts.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

use super::plugin::PluginId;

/// Bounds in seconds for what takes microseconds to milliseconds.
const MICRO: [f64; 10] = [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1];

/// Metrics of the scheduler. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    /// `scheduler_e2e_duration_seconds`: one decision, all profiles.
    pub(super) e2e: Histogram,
    /// `plugin_duration_seconds`: one call of one plugin.
    plugins: HistogramVec,
    /// `usher_scheduler_invalid_scores_total`: scores that were no finite number.
    invalid_scores: IntCounterVec,
}

/// Where in a decision a plugin is called; the `extension_point` label.
#[derive(Clone, Copy, Debug)]
pub(super) enum Point {
    ProfilePicker,
    Filter,
    Scorer,
    Picker,
    ProcessProfilesResults,
}

impl Point {
    fn label(self) -> &'static str {
        match self {
            Self::ProfilePicker => "ProfilePicker",
            Self::Filter => "Filter",
            Self::Scorer => "Scorer",
            Self::Picker => "Picker",
            Self::ProcessProfilesResults => "ProcessProfilesResults",
        }
    }
}

impl SchedulerMetrics {
    /// Creates the metrics and registers them, also under the names of the peer's earlier releases.
    ///
    /// # Errors
    /// When a name is already taken in the registry.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let e2e = Histogram::with_opts(opts(
            "llm_d_epp_scheduler_e2e_duration_seconds",
            "[ALPHA] Seconds that a scheduling decision took, all profiles together.",
        ))?;
        let labels = ["extension_point", "plugin_type", "plugin_name"];
        let plugins = HistogramVec::new(
            opts(
                "llm_d_epp_plugin_duration_seconds",
                "[ALPHA] Seconds that one call of a plugin took, by extension point and plugin.",
            ),
            &labels,
        )?;
        let invalid_scores = IntCounterVec::new(
            Opts::new(
                "usher_scheduler_invalid_scores_total",
                "Scores that were not a finite number and so counted as 0, by scorer.",
            ),
            &["plugin_type", "plugin_name"],
        )?;
        let twin = Twin::of(e2e.clone(), "inference_extension_scheduler_e2e_duration_seconds", &[])?;
        registry.register(Box::new(twin))?;
        let twin = Twin::of(plugins.clone(), "inference_extension_plugin_duration_seconds", &labels)?;
        registry.register(Box::new(twin))?;
        registry.register(Box::new(invalid_scores.clone()))?;
        Ok(Self { e2e, plugins, invalid_scores })
    }

    /// The duration of one plugin at one point, looked up once and kept.
    pub(super) fn duration(&self, point: Point, id: &PluginId) -> Histogram {
        self.plugins.with_label_values(&[point.label(), &id.plugin_type, &id.name])
    }

    /// The invalid scores of one scorer.
    pub(super) fn invalid_scores(&self, id: &PluginId) -> IntCounter {
        self.invalid_scores.with_label_values(&[&*id.plugin_type, &*id.name])
    }
}

fn opts(name: &str, help: &str) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(MICRO.to_vec())
}

/// One metric under two names: observed once, rendered twice. The peer observes
/// both, which the request path need not pay for.
struct Twin<C> {
    inner: C,
    legacy: Desc,
}

impl<C: Collector> Twin<C> {
    fn of(inner: C, legacy_name: &str, labels: &[&str]) -> prometheus::Result<Self> {
        let name = inner.desc().first().map_or_else(String::new, |d| d.fq_name.clone());
        let help = inner.desc().first().map_or_else(String::new, |d| d.help.clone());
        let rest = help.strip_prefix("[ALPHA] ").unwrap_or(&help);
        let legacy = Desc::new(
            legacy_name.to_owned(),
            format!("[ALPHA] [Deprecated: Use {name}] {rest}"),
            labels.iter().map(|&label| label.to_owned()).collect(),
            Default::default(),
        )?;
        Ok(Self { inner, legacy })
    }
}

impl<C: Collector> Collector for Twin<C> {
    fn desc(&self) -> Vec<&Desc> {
        let mut all = self.inner.desc();
        all.push(&self.legacy);
        all
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.inner.collect();
        for index in 0..families.len() {
            let mut copy = families[index].clone();
            copy.set_name(self.legacy.fq_name.clone());
            copy.set_help(self.legacy.help.clone());
            families.push(copy);
        }
        families
    }
}
