//! `prefix_cache_affinity_filter_decisions_total`: how often requests stick, and why not.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use usher_core::metrics::register;

/// Outcome of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Sent to an endpoint that holds its prompt.
    Sticky,
    /// No candidate holds enough of its prompt.
    NoMatch,
    /// The candidates that do are too busy.
    LoadOverride,
    /// Chance lets it go anywhere.
    Exploration,
    /// One candidate, or the filter is off.
    NotApplicable,
}

impl Outcome {
    const LABELS: [&str; 5] = ["sticky", "no_match", "load_override", "exploration", "not_applicable"];
}

/// The family, shared by all filters.
#[derive(Debug)]
pub struct AffinityFamilies {
    decisions: IntCounterVec,
}

impl AffinityFamilies {
    /// Registers the family.
    ///
    /// # Errors
    /// `prometheus::Error` if the metric's name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "llm_d_epp_prefix_cache_affinity_filter_decisions_total",
            "[ALPHA] Requests, by whether they stay with the endpoints that cache their prompt, and why not.",
        );
        let decisions = IntCounterVec::new(opts, &["plugin_name", "outcome"])?;
        Ok(Self { decisions: register(registry, decisions, None)? })
    }

    /// Counters of the filter of this name.
    pub fn of(&self, plugin: &str) -> AffinityDecisions {
        AffinityDecisions(Outcome::LABELS.map(|outcome| self.decisions.with_label_values(&[plugin, outcome])))
    }
}

/// Counters of one filter.
#[derive(Debug)]
pub struct AffinityDecisions([IntCounter; Outcome::LABELS.len()]);

impl AffinityDecisions {
    pub(super) fn count(&self, outcome: Outcome) {
        self.0[outcome as usize].inc();
    }
}
