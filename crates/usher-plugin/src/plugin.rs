//! The interfaces of the plugins that decide; [`super::lifecycle`] has those around
//! a decision. Filters and scorers can't fail: what they can't
//! judge they keep, or score 0.

use std::sync::Arc;

use rand::Rng;
use smallvec::SmallVec;
use usher_core::config::ConfigError;
use usher_core::endpoints::{Candidates, Endpoint, Snapshot, View};

use super::context::{Context, Part, Runs, ScheduleError};
use super::estimate::LatencyEstimate;
use super::picks::Picks;
use super::settle::Settlement;

/// Removes candidates.
pub trait Filter: Send + Sync {
    /// Removes from `kept` (positions in the snapshot) what must not be picked.
    /// May only remove, and keeps the order unless that is what it is for. An empty
    /// result ends the profile. What is left to chance comes from `rng` alone, so that a
    /// seed decides it.
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, rng: &mut dyn Rng);

    /// Returns `true` if it removes candidates for their load alone, so that what it
    /// removes would do for the request if it had room. Others are not tried in the place
    /// of those.
    fn drops_the_busy(&self) -> bool {
        false
    }
}

/// Scores each candidate.
pub trait Scorer: Send + Sync {
    /// Fills `out`, which has one zero per candidate, with scores in 0..=1;
    /// 1 is best. What lies outside is clamped, what is not a finite number
    /// counts as 0 and in a metric.
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]);

    /// Latency that it expects of the request at the endpoint at this position of the snapshot, for records of
    /// decisions. `None` for a scorer that expects none.
    fn estimate(&self, _cx: &Context<'_>, _endpoint: &Endpoint, _position: u32) -> Option<LatencyEstimate> {
        None
    }
}

/// Chooses by the total scores.
pub trait Picker: Send + Sync {
    /// Takes the chosen candidates into `picks`, the best first. `totals` has
    /// one finite number or infinity per candidate; there is at least one.
    fn pick(
        &self,
        cx: &Context<'_>,
        candidates: View<'_>,
        totals: &[f64],
        rng: &mut dyn Rng,
        picks: &mut Picks,
    );
}

/// Profiles to run, by position in the configuration.
pub type ProfileSet = SmallVec<[usize; 3]>;

/// Selects the profiles that run, and the one whose picks are the result.
pub trait ProfileHandler: Send + Sync {
    /// Checks the names of the configured profiles, once, before it runs among them.
    /// Returns what the user should know, a sentence each.
    ///
    /// # Errors
    /// `ConfigError` if the profiles don't fit the handler.
    fn check(&self, _profiles: &[&str]) -> Result<Vec<String>, ConfigError> {
        Ok(Vec::new())
    }

    /// The profiles to run now, in order; empty when everything has run. Asked
    /// again after each round. A profile runs once: asking for it again ends the rounds.
    fn next(&self, cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet;

    /// The profile whose picks go to the gateway.
    ///
    /// # Errors
    /// `ScheduleError` if no profile has a result. A profile's own error takes precedence, being more
    /// precise.
    fn finish(&self, cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError>;

    /// The endpoint that the pick of a profile will work with, where another
    /// profile has picked it already.
    fn peer<'a>(&self, _profile: usize, _runs: &Runs<'a>) -> Option<&'a Arc<Endpoint>> {
        None
    }

    /// Part of the request that the pick of a profile would serve, as far as known when the profile
    /// runs.
    fn part(&self, _profile: usize, _runs: &Runs<'_>) -> Part {
        Part::Whole
    }

    /// Name of the profile that picks the prefill endpoint, for disaggregated requests. Read once, when
    /// the scheduler is built. By default the name in llm-d-router's plugins.
    fn prefill(&self) -> &str {
        "prefill"
    }

    /// Returns `true` if [`Self::settle`] wants the totals of the profile of this name.
    /// Asked once, when the scheduler is made.
    fn keeps_totals(&self, _profile: &str) -> bool {
        false
    }

    /// Replaces picks of profiles, now that it is known what each likes. Called once,
    /// after the last round and before [`Self::finish`], and only of a handler that keeps
    /// totals.
    ///
    /// # Errors
    /// `ScheduleError` if the profiles' picks can't be used together.
    fn settle(
        &self,
        _cx: &Context<'_>,
        _runs: &mut Settlement<'_>,
        _rng: &mut dyn Rng,
    ) -> Result<(), ScheduleError> {
        Ok(())
    }
}

/// Decides whether a stage of a disaggregated request runs on an endpoint of its own.
pub trait Decider: Send + Sync {
    /// Returns `true` if it does. `decode` is where the endpoint that decodes stands in the
    /// snapshot, if it has been picked.
    fn decide(&self, cx: &Context<'_>, candidates: &Candidates, decode: Option<u32>) -> bool;

    /// Returns `true` if it says yes to every request.
    fn is_unconditional(&self) -> bool {
        false
    }
}

/// Type and instance name of a plugin, as metrics and records show them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginId {
    /// The type in the configuration, for example `queue-scorer`.
    pub plugin_type: Arc<str>,
    /// The instance name; equal to the type unless the configuration names it.
    pub name: Arc<str>,
}

impl PluginId {
    /// An identity from its two names.
    pub fn new(plugin_type: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { plugin_type: plugin_type.into(), name: name.into() }
    }
}
