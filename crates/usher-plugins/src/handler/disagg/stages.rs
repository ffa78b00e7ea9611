//! Order of the stages, and what one stage knows of another.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_core::endpoints::Endpoint;
use usher_plugin::{Context, Decider, Decision, Outcome, Part, ProfileSet, Runs, ScheduleError};

use super::decisions::Split;
use super::joint::Splitting;
use super::params::StageOrder;
use super::written::StageProfiles;

/// The stages of a request, each with its profile. The response comes from who decodes;
/// another stage that finds nobody is left out.
pub(super) struct Stages {
    pub(super) order: StageOrder,
    pub(super) profiles: StageProfiles,
    /// Decider of prefill; `None`: it doesn't run. Not asked where prefill comes first:
    /// it runs always then.
    pub(super) prefill: Option<Arc<dyn Decider>>,
    /// Prefill and decode are chosen together, so that prefill runs whatever its decider says
    /// of the endpoint that decode alone would pick.
    pub(super) is_joint: bool,
    /// Decider of encode; `None`: it doesn't run.
    pub(super) encode: Option<Arc<dyn Decider>>,
}

/// Positions of the stages' profiles in the configuration.
struct Positions {
    decode: Option<usize>,
    prefill: Option<usize>,
    encode: Option<usize>,
}

impl Stages {
    fn positions(&self, runs: &Runs<'_>) -> Positions {
        let StageProfiles { decode, prefill, encode } = &self.profiles;
        Positions { decode: runs.find(decode), prefill: runs.find(prefill), encode: runs.find(encode) }
    }

    /// The profiles to run now.
    pub(super) fn next(&self, cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        let stages = self.positions(runs);
        let Some(decode) = stages.decode else { return ProfileSet::new() };
        let wants = |decider: &Option<Arc<dyn Decider>>, picked| {
            decider.as_ref().is_some_and(|decider| decider.decide(cx, runs.candidates(), picked))
        };
        let is_waiting = |profile: &usize| matches!(runs.outcome(*profile), Outcome::Waiting);
        match (self.order, runs.outcome(decode)) {
            (StageOrder::DecodeFirst, Outcome::Waiting) => [decode].into_iter().collect(),
            // Both deciders are asked now, as neither looks at what the other stage picks.
            (StageOrder::DecodeFirst, Outcome::Picked(_))
                if [stages.encode, stages.prefill].iter().flatten().all(is_waiting) =>
            {
                let picked = runs.position(decode);
                let encode = stages.encode.filter(|_| wants(&self.encode, picked));
                let prefill = stages.prefill.filter(|_| self.is_joint || wants(&self.prefill, picked));
                [encode, prefill].into_iter().flatten().collect()
            }
            (StageOrder::PrefillFirst, Outcome::Waiting) => {
                let encode = stages.encode.filter(|_| wants(&self.encode, None));
                [stages.prefill, encode, Some(decode)].into_iter().flatten().collect()
            }
            _ => ProfileSet::new(),
        }
    }

    /// The primary profile.
    pub(super) fn finish(&self, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        let decode = self.positions(runs).decode.filter(|decode| runs.position(*decode).is_some());
        decode.ok_or_else(|| ScheduleError::NoTarget("failed to find available decode workers".to_owned()))
    }

    /// Peer of a profile: of prefill and decode, the one that is placed second sees the first. An encode
    /// profile has none.
    pub(super) fn peer<'a>(&self, profile: usize, runs: &Runs<'a>) -> Option<&'a Arc<Endpoint>> {
        let Positions { decode, prefill, .. } = self.positions(runs);
        let (first, second) = match self.order {
            StageOrder::DecodeFirst => (decode?, prefill?),
            StageOrder::PrefillFirst => (prefill?, decode?),
        };
        if profile == second { runs.picked(first) } else { None }
    }

    /// Rule by which a joint choice decides that another endpoint computes the prompt.
    pub(super) fn splitting(&self) -> Splitting<'_> {
        match &self.prefill {
            _ if self.order == StageOrder::PrefillFirst => Splitting::Always,
            Some(decider) if decider.is_unconditional() => Splitting::Always,
            Some(decider) => Splitting::By(&**decider),
            None => Splitting::ByCost,
        }
    }

    /// The part of a request that the pick of a profile would serve. Where decode comes first,
    /// its profile doesn't know yet whether another endpoint will compute the prompt, unless the
    /// decider says yes to all.
    pub(super) fn part(&self, profile: usize, runs: &Runs<'_>) -> Part {
        let Positions { decode, prefill, .. } = self.positions(runs);
        if Some(profile) == prefill {
            return Part::Prefill;
        }
        let is_split = match self.order {
            StageOrder::PrefillFirst => prefill.is_some_and(|prefill| runs.picked(prefill).is_some()),
            StageOrder::DecodeFirst => {
                prefill.is_some() && self.prefill.as_ref().is_some_and(|decider| decider.is_unconditional())
            }
        };
        if Some(profile) == decode && is_split { Part::Decode } else { Part::Whole }
    }

    /// Stages that have an endpoint of their own.
    pub(super) fn split(&self, decision: &Decision) -> Split {
        let StageProfiles { prefill, encode, .. } = &self.profiles;
        Split { prefill: decision.run(prefill).is_some(), encode: decision.run(encode).is_some() }
    }

    /// Checks the configured profiles. Returns warnings for the user.
    ///
    /// # Errors
    /// `ConfigError` if no profile can decode. `key` is the parameter that names the profile.
    pub(super) fn check(&self, key: &str, profiles: &[&str]) -> Result<Vec<String>, ConfigError> {
        let StageProfiles { decode, prefill, encode } = &self.profiles;
        let exists = |profile: &String| profiles.contains(&profile.as_str());
        if !exists(decode) {
            let message = format!("there is no scheduling profile '{decode}' to pick the decode endpoint");
            return Err(ConfigError::new(message)
                .hint(format!("name one of the profiles in {key}: {}", profiles.join(", ")))
                .did_you_mean(decode, profiles.iter().copied()));
        }
        let mut notes = Vec::new();
        let always = self.order == StageOrder::PrefillFirst;
        for (stage, profile, runs) in [
            ("prefill", prefill, always || self.is_joint || self.prefill.is_some()),
            ("encode", encode, self.encode.is_some()),
        ] {
            if exists(profile) && !runs {
                notes.push(format!("profile '{profile}' never runs, as {stage} has no decider"));
            } else if runs && !exists(profile) {
                notes.push(format!("{stage} never runs, as there is no profile '{profile}'"));
            }
        }
        for other in profiles {
            if ![decode, prefill, encode].iter().any(|stage| stage.as_str() == *other) {
                notes.push(format!("profile '{other}' never runs, as it is of no stage"));
            }
        }
        Ok(notes)
    }
}
