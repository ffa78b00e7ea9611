//! `disagg_decision_total` and `pd_decision_total`: which stages ran on endpoints of their
//! own.

use std::sync::{Arc, OnceLock};

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use usher_core::endpoints::Snapshot;
use usher_core::metrics::{ClientSeries, Family as Series, Legacy, MAX_LABEL_VALUES, OTHER, register};
use usher_plugin::{Persistent, PluginId, State};

const LABELS: [&str; 4] = ["plugin_name", "plugin_type", "model_name", "decision_type"];
/// Labels that the families had under their older names: new name and old name of each.
const OLDER: &[(&str, &str)] = &[("model_name", "model_name"), ("decision_type", "decision_type")];
/// The model of requests that name none.
const UNKNOWN: &str = "unknown";

/// Stages beside decode that have an endpoint of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) prefill: bool,
    pub(super) encode: bool,
}

impl Split {
    const LABELS: [&'static str; 4] =
        ["decode-only", "prefill-decode", "encode-decode", "encode-prefill-decode"];

    fn index(self) -> usize {
        usize::from(self.prefill) + 2 * usize::from(self.encode)
    }
}

/// A family of decisions.
#[derive(Debug)]
struct Family {
    counter: IntCounterVec,
}

impl Family {
    fn register(
        registry: &Registry,
        name: &str,
        help: &str,
        older: &'static str,
    ) -> prometheus::Result<Arc<Self>> {
        let counter = IntCounterVec::new(Opts::new(name, help), &LABELS)?;
        let counter = register(registry, counter, Some(Legacy { name: older, labels: OLDER }))?;
        Ok(Arc::new(Self { counter }))
    }
}

/// `llm_d_epp_disagg_decision_total`, of `disagg-profile-handler`.
#[derive(Debug)]
pub struct DisaggFamily(Arc<Family>);

impl DisaggFamily {
    /// Registers the family under both names.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let help = "[ALPHA] Scheduling decisions, by the stages that run on endpoints of their own.";
        let older = "llm_d_inference_scheduler_disagg_decision_total";
        Family::register(registry, "llm_d_epp_disagg_decision_total", help, older).map(Self)
    }

    /// The decisions of one plugin: the same for each configuration that has it.
    pub fn of(&self, state: &State, plugin: PluginId) -> Arc<Decisions> {
        Decisions::of(&self.0, state, plugin)
    }
}

/// `llm_d_epp_pd_decision_total`, of `pd-profile-handler`.
#[derive(Debug)]
pub struct PdFamily(Arc<Family>);

impl PdFamily {
    /// Registers the family under both names.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let help = "[ALPHA] Scheduling decisions, by whether another endpoint computes the prompt.";
        let older = "llm_d_inference_scheduler_pd_decision_total";
        Family::register(registry, "llm_d_epp_pd_decision_total", help, older).map(Self)
    }

    /// The decisions of one plugin: the same for each configuration that has it.
    pub fn of(&self, state: &State, plugin: PluginId) -> Arc<Decisions> {
        Decisions::of(&self.0, state, plugin)
    }
}

/// Lines of a model on a page at most, under both names.
const LINES: usize = 2 * Split::LABELS.len();

/// The label of a model, and its counters.
type Counters = (String, [OnceLock<IntCounter>; 4]);

/// Counts the decisions of one plugin.
#[derive(Debug)]
pub struct Decisions {
    family: Arc<Family>,
    plugin: PluginId,
    /// By model. Counters are made when they are needed.
    known: ClientSeries<String, Counters>,
}

impl Persistent for Decisions {
    fn sweep(&self, _snapshot: &Snapshot, _now_ms: u64) {
        self.known.retain(|_, _| true, &|label, _| self.forget(label));
    }
}

impl Drop for Decisions {
    fn drop(&mut self) {
        self.known.retain(|_, _| false, &|label, _| self.forget(label));
    }
}

impl Decisions {
    fn of(family: &Arc<Family>, state: &State, plugin: PluginId) -> Arc<Self> {
        // Plugins of the two types count in different families.
        let name = format!("{}/{}", plugin.plugin_type, plugin.name);
        let known = || ClientSeries::new(MAX_LABEL_VALUES).within(state.series_room(), LINES);
        state.of(&name, || Self { family: Arc::clone(family), plugin, known: known() })
    }

    /// A request for this model is decided.
    pub(super) fn count(&self, model: &str, split: Split) {
        let model = if model.is_empty() { UNKNOWN } else { model };
        let counters = self.known.find(model).unwrap_or_else(|| self.counters(model));
        if let Some(counter) = counters.1.get(split.index()) {
            let make = || self.family.counter.with_label_values(&self.labels(&counters.0, split.index()));
            counter.get_or_init(make).inc();
        }
    }

    fn counters(&self, model: &str) -> Arc<Counters> {
        const OF: &str = "decisions of disaggregation";
        let label = self.known.label(model, OF).to_owned();
        let make = |label: &String| (label.clone(), Default::default());
        let forget = |label: &String, _: &Counters| self.forget(label);
        let other = || OTHER.to_owned();
        self.known.get(label, &Series { of: OF, other: &other, make: &make, forget: &forget })
    }

    fn forget(&self, model: &str) {
        for index in 0..Split::LABELS.len() {
            // Absent where that was never decided.
            let _ = self.family.counter.remove_label_values(&self.labels(model, index));
        }
    }

    fn labels<'a>(&'a self, model: &'a str, split: usize) -> [&'a str; 4] {
        [&self.plugin.name, &self.plugin.plugin_type, model, Split::LABELS[split]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::metrics::render;

    #[test]
    fn decisions_are_counted_by_their_stages_under_both_names() {
        let registry = Registry::new();
        let (disagg, pd) =
            (DisaggFamily::register(&registry).unwrap(), PdFamily::register(&registry).unwrap());
        let state = State::default();
        let one = disagg.of(&state, PluginId::new("disagg-profile-handler", "one"));
        let other = disagg.of(&state, PluginId::new("disagg-profile-handler", "other"));
        let old = pd.of(&state, PluginId::new("pd-profile-handler", "old"));
        let (alone, prefill) =
            (Split { prefill: false, encode: false }, Split { prefill: true, encode: false });
        let (encode, all) = (Split { prefill: false, encode: true }, Split { prefill: true, encode: true });
        for split in [alone, prefill, prefill, encode, all] {
            one.count("m", split);
        }
        other.count("m", prefill);
        other.count("", alone);
        old.count("m", prefill);
        let page = render(&registry);
        let new = |name: &str, plugin: &str, of: &str, kind: &str, model: &str| {
            format!(
                "llm_d_epp_{name}_decision_total{{decision_type=\"{kind}\",model_name=\"{model}\",plugin_name=\"{plugin}\",plugin_type=\"{of}\"}}"
            )
        };
        let disagg = "disagg-profile-handler";
        let older = "llm_d_inference_scheduler_disagg_decision_total";
        for (series, count) in [
            (new("disagg", "one", disagg, "decode-only", "m"), 1),
            (new("disagg", "one", disagg, "prefill-decode", "m"), 2),
            (new("disagg", "one", disagg, "encode-decode", "m"), 1),
            (new("disagg", "one", disagg, "encode-prefill-decode", "m"), 1),
            (new("disagg", "other", disagg, "prefill-decode", "m"), 1),
            (new("disagg", "other", disagg, "decode-only", "unknown"), 1),
            (new("pd", "old", "pd-profile-handler", "prefill-decode", "m"), 1),
            (format!("{older}{{decision_type=\"prefill-decode\",model_name=\"m\"}}"), 3),
            (format!("{older}{{decision_type=\"decode-only\",model_name=\"unknown\"}}"), 1),
        ] {
            let line = format!("{series} {count}");
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        // What never happened has no series.
        assert!(!page.contains(&new("disagg", "other", disagg, "encode-decode", "m")));
        assert!(page.contains("llm_d_inference_scheduler_pd_decision_total{"), "{page}");
    }

    #[test]
    fn models_are_bounded() {
        let registry = Registry::new();
        let (family, state) = (DisaggFamily::register(&registry).unwrap(), State::default());
        let of = || family.of(&state, PluginId::new("disagg-profile-handler", "h"));
        let decisions = of();
        let split = Split { prefill: true, encode: false };
        for model in 0..MAX_LABEL_VALUES + 5 {
            decisions.count(&format!("m{model}"), split);
        }
        assert_eq!(decisions.known.len(), MAX_LABEL_VALUES + 1, "and `other`");
        let page = render(&registry);
        let other = page.lines().find(|line| line.starts_with("llm_d_epp") && line.contains("\"other\""));
        assert!(other.is_some_and(|line| line.ends_with(" 5")), "{other:?}");
        // The next configuration goes on with them; they go with the last that has the plugin.
        assert!(Arc::ptr_eq(&decisions, &of()));
        state.forget_unused();
        assert!(render(&registry).contains("\"other\""));
        drop(decisions);
        state.forget_unused();
        assert_eq!(render(&registry), "");
    }
}
