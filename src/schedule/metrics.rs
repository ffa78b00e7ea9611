//! What scheduling counts.

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

use crate::metrics::{Legacy, register};

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
        let e2e_legacy = Legacy { name: "inference_extension_scheduler_e2e_duration_seconds", labels: &[] };
        const SAME: &[(&str, &str)] = &[
            ("extension_point", "extension_point"),
            ("plugin_type", "plugin_type"),
            ("plugin_name", "plugin_name"),
        ];
        let plugins_legacy = Legacy { name: "inference_extension_plugin_duration_seconds", labels: SAME };
        register(registry, e2e.clone(), Some(e2e_legacy))?;
        register(registry, plugins.clone(), Some(plugins_legacy))?;
        register(registry, invalid_scores.clone(), None)?;
        Ok(Self { e2e, plugins, invalid_scores })
    }

    /// The duration of a plugin outside of scheduling, under the name of its type.
    pub fn elsewhere(&self, extension_point: &str, plugin_type: &str) -> Histogram {
        self.plugins.with_label_values(&[extension_point, plugin_type, plugin_type])
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
