//! Metrics of scheduling.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use usher_plugin::{Families, PluginId};

use crate::metrics::{Legacy, Timing, Timings, register};

/// Metrics of the scheduler. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    /// `scheduler_e2e_duration_seconds`: one decision, all profiles.
    pub(super) e2e: Timing,
    /// `plugin_duration_seconds`: one call of one plugin.
    plugins: Timings,
    /// `usher_scheduler_invalid_scores_total`: scores that were no finite number.
    invalid_scores: IntCounterVec,
    /// Metric families of the plugins themselves.
    families: Families,
}

/// Point of a decision at which a plugin is called; the `extension_point` label.
#[derive(Clone, Copy, Debug)]
pub(super) enum Point {
    RequestHeader,
    Screener,
    DataProducer,
    Admission,
    ProfilePicker,
    Filter,
    Scorer,
    Picker,
    ProcessProfilesResults,
    PreRequest,
    ResponseReceived,
    ResponseStreaming,
}

impl Point {
    fn label(self) -> &'static str {
        match self {
            Self::RequestHeader => "RequestHeader",
            Self::Screener => "Screener",
            Self::DataProducer => "DataProducer",
            Self::Admission => "Admission",
            Self::ProfilePicker => "ProfilePicker",
            Self::Filter => "Filter",
            Self::Scorer => "Scorer",
            Self::Picker => "Picker",
            Self::ProcessProfilesResults => "ProcessProfilesResults",
            Self::PreRequest => "PreRequest",
            Self::ResponseReceived => "ResponseReceived",
            Self::ResponseStreaming => "ResponseStreaming",
        }
    }
}

impl SchedulerMetrics {
    /// Creates the metrics and registers them, also under the names of earlier releases of llm-d-router.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let e2e = Timings::new(
            "llm_d_epp_scheduler_e2e_duration_seconds",
            "[ALPHA] Seconds that a scheduling decision took, all profiles together.",
            &[],
        )?;
        let plugins = Timings::new(
            "llm_d_epp_plugin_duration_seconds",
            "[ALPHA] Seconds that one call of a plugin took, by extension point and plugin.",
            &["extension_point", "plugin_type", "plugin_name"],
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
        let (e2e, families) = (e2e.with(&[]), Families::new(registry.clone()));
        Ok(Self { e2e, plugins, invalid_scores, families })
    }

    /// The duration of a plugin outside of scheduling, under the name of its type.
    pub fn elsewhere(&self, extension_point: &str, plugin_type: &str) -> Timing {
        self.plugins.with(&[extension_point, plugin_type, plugin_type])
    }

    /// Drops the series of a plugin that is in no configuration any more.
    pub fn forget(&self, plugin_type: &str, name: &str) {
        self.plugins.retain(|values| values.get(1..) != Some(&[plugin_type.to_owned(), name.to_owned()]));
        // Absent unless it scored.
        let _ = self.invalid_scores.remove_label_values(&[plugin_type, name]);
    }

    /// Metric families of the plugins themselves.
    pub(crate) fn families(&self) -> &Families {
        &self.families
    }

    /// The duration of one plugin at one point, looked up once and kept.
    pub(super) fn duration(&self, point: Point, id: &PluginId) -> Timing {
        self.plugins.with(&[point.label(), &id.plugin_type, &id.name])
    }

    /// The invalid scores of one scorer.
    pub(super) fn invalid_scores(&self, id: &PluginId) -> IntCounter {
        self.invalid_scores.with_label_values(&[&*id.plugin_type, &*id.name])
    }
}
