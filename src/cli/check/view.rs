//! Look-ups in a configuration in effect, for those who explain, judge and compare it.

use serde_json::Value;

use crate::registry::{Resolved, ResolvedPlugin, ResolvedProfile};

/// Handlers of disaggregated pools.
const DISAGGREGATED: [&str; 2] = ["disagg-profile-handler", "pd-profile-handler"];

/// Look-ups by the name of a plugin.
#[derive(Clone, Copy)]
pub(super) struct View<'a>(pub(super) &'a Resolved);

/// Stage of a disaggregated pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Decode,
    Prefill,
    Encode,
}

impl<'a> View<'a> {
    pub(super) fn plugin(self, name: &str) -> Option<&'a ResolvedPlugin> {
        self.0.plugins.iter().find(|plugin| plugin.name == name)
    }

    /// Type of the plugin of this name; empty without one.
    pub(super) fn type_of(self, name: &str) -> &'a str {
        self.plugin(name).map_or("", |plugin| plugin.plugin_type)
    }

    pub(super) fn has_type(self, name: &str, types: &[&str]) -> bool {
        types.contains(&self.type_of(name))
    }

    /// Summary of the plugin of this name.
    pub(super) fn summary(self, name: &str) -> &'a str {
        self.plugin(name).map_or("", |plugin| &plugin.summary)
    }

    /// A parameter in effect; null without one.
    pub(super) fn parameter(self, name: &str, key: &str) -> &'a Value {
        self.plugin(name).map_or(&Value::Null, |plugin| &plugin.parameters[key])
    }

    /// Returns `true` if the profile handler serves a disaggregated pool.
    pub(super) fn is_disaggregated(self) -> bool {
        self.has_type(&self.0.profile_handler.plugin, &DISAGGREGATED)
    }

    /// The profile of a stage, where the handler knows stages.
    pub(super) fn profile_of(self, stage: Stage) -> Option<&'a ResolvedProfile> {
        if !self.is_disaggregated() {
            return None;
        }
        let (key, flat) = match stage {
            Stage::Decode => ("decode", "decodeProfile"),
            Stage::Prefill => ("prefill", "prefillProfile"),
            Stage::Encode => ("encode", "encodeProfile"),
        };
        let handler = &self.0.profile_handler.plugin;
        let name = self.parameter(handler, "profiles")[key].as_str();
        let name = name.or_else(|| self.parameter(handler, flat).as_str())?;
        self.0.profiles.iter().find(|profile| profile.name == name)
    }

    /// Name of the plugin that says whether another endpoint computes the prompt.
    pub(super) fn prefill_decider(self) -> Option<&'a str> {
        let handler = &self.0.profile_handler.plugin;
        let nested = self.parameter(handler, "deciders")["prefill"].as_str();
        let keys = ["prefillDeciderPluginName", "deciderPluginName"];
        nested.or_else(|| keys.into_iter().find_map(|key| self.parameter(handler, key).as_str()))
    }

    /// Returns `true` if prefill and decode are chosen as a pair.
    pub(super) fn is_joint(self) -> bool {
        self.parameter(&self.0.profile_handler.plugin, "pairing") == "joint"
    }

    /// Returns `true` if prefill runs for every prompt.
    pub(super) fn prefill_comes_first(self) -> bool {
        self.parameter(&self.0.profile_handler.plugin, "stageOrder") == "prefill-first"
    }
}

/// Sum of the weights of a profile's scorers, without their signs.
pub(super) fn total_weight(profile: &ResolvedProfile) -> f64 {
    profile.scorers.iter().map(|scorer| scorer.weight.abs()).sum()
}

/// A number as people write it: without needless digits.
pub(super) fn plain(number: f64) -> String {
    ((number * 1000.0).round() / 1000.0).to_string()
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    format!("{} %", (100.0 * share).round())
}
