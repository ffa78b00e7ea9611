//! Puts plugins into the places of a profile.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::{ConfigError, EndpointPickerConfig, Name, Profile as Written, ProfilePlugin};
use crate::schedule::{Picker, PluginId, Profile, SchedulerMetrics};

use super::instances::{Instance, Instances, START};
use super::resolved::{ResolvedProfile, ResolvedScorer, Use};

/// Weight of a scorer whose reference says nothing.
const DEFAULT_WEIGHT: f64 = 1.0;

/// The configured profiles; without any, one that uses every declared plugin
/// that fits.
pub(super) fn written(config: &EndpointPickerConfig, instances: &Instances<'_>) -> Vec<Written> {
    if !config.profiles.is_empty() {
        return config.profiles.clone();
    }
    let fits = |instance: &&Instance| {
        let parts = &instance.parts;
        parts.filter.is_some() || parts.scorer.is_some() || parts.picker.is_some()
    };
    let plugins = instances.iter().filter(fits).map(|instance| {
        let at = instance.at.unwrap_or(START);
        ProfilePlugin { plugin: Name { at, value: instance.name.clone() }, weight: None }
    });
    vec![Written { name: Name { at: START, value: "default".to_owned() }, plugins: plugins.collect() }]
}

/// Refuses profiles without a name of their own, and references to nothing.
pub(super) fn check(written: &[Written], instances: &Instances<'_>) -> Result<(), ConfigError> {
    let mut names = HashSet::new();
    for Written { name, plugins } in written {
        if name.value.is_empty() {
            return Err(ConfigError::at(name.at, "a scheduling profile is missing a name")
                .hint("write for example name: default"));
        }
        if !names.insert(&name.value) {
            let message = format!("duplicate scheduling profile '{}'", name.value);
            return Err(ConfigError::at(name.at, message).hint("give one of them another name"));
        }
        for ProfilePlugin { plugin, .. } in plugins {
            if plugin.value.is_empty() {
                let message = format!("profile '{}' has an entry without a pluginRef", name.value);
                return Err(ConfigError::at(plugin.at, message).hint("name a plugin of the list plugins"));
            }
            instances.get(&key(name), plugin)?;
        }
    }
    Ok(())
}

/// Notes for the user on parameters that name profiles which don't exist.
pub(super) fn unknown(written: &[Written], instances: &Instances<'_>) -> Vec<String> {
    let is_known = |name: &str| written.iter().any(|profile| profile.name.value == name);
    let named = instances.iter().flat_map(|instance| {
        instance.parts.profiles.iter().map(move |(key, profile)| (&instance.name, key, profile))
    });
    let unknown = named.filter(|(_, _, profile)| !is_known(profile));
    let note = |(plugin, key, profile)| {
        format!("plugin '{plugin}': {key} names the scheduling profile '{profile}', which doesn't exist")
    };
    unknown.map(note).collect()
}

/// Warnings of weights below 0, which llm-d-router takes, too.
pub(super) fn negative_weights(profiles: &[ResolvedProfile]) -> Vec<String> {
    let scorers =
        profiles.iter().flat_map(|profile| profile.scorers.iter().map(move |scorer| (profile, scorer)));
    let negative = scorers.filter(|(_, scorer)| scorer.weight < 0.0);
    let warning = |(profile, scorer): (&ResolvedProfile, &ResolvedScorer)| {
        let (profile, ResolvedScorer { plugin, weight, .. }) = (&profile.name, scorer);
        format!(
            "profile '{profile}': the weight of '{plugin}' is {weight}, so endpoints with a low score are preferred; weights are usually above 0"
        )
    };
    negative.map(warning).collect()
}

fn key(profile: &Name) -> String {
    format!("profile '{}'", profile.value)
}

/// Makes sure that there is a picker, and names the one for profiles without.
pub(super) fn default_picker(instances: &mut Instances<'_>) -> Result<String, ConfigError> {
    let first = |instances: &Instances<'_>| {
        instances
            .iter()
            .find(|instance| instance.parts.picker.is_some())
            .map(|instance| instance.name.clone())
    };
    if let Some(name) = first(instances) {
        return Ok(name);
    }
    instances.inject("max-score-picker", START)?;
    first(instances).ok_or_else(|| {
        let named_so = instances.find("max-score-picker").and_then(|instance| instance.at);
        ConfigError::at(named_so.unwrap_or(START), "the plugin 'max-score-picker' is not a picker")
            .hint("give it another name")
    })
}

/// Builds one profile.
pub(super) fn place(
    written: &Written,
    defaulted: bool,
    instances: &Instances<'_>,
    default_picker: &str,
    metrics: &SchedulerMetrics,
    notes: &mut Vec<String>,
) -> Result<(Profile, ResolvedProfile), ConfigError> {
    let profile_name = &written.name.value;
    let mut builder = Profile::builder(profile_name.as_str(), metrics);
    let (mut filters, mut scorers) = (Vec::new(), Vec::new());
    let mut picker: Option<(&Instance, &Arc<dyn Picker>)> = None;
    for ProfilePlugin { plugin, weight } in &written.plugins {
        let instance = instances.get(&key(&written.name), plugin)?;
        let parts = &instance.parts;
        let id = id(instance);
        if let Some(filter) = &parts.filter {
            builder.filter(&id, Arc::clone(filter));
            filters.push(instance.name.clone());
        }
        if let Some(scorer) = &parts.scorer {
            let (weight, defaulted) = (weight.unwrap_or(DEFAULT_WEIGHT), weight.is_none());
            builder.scorer(&id, Arc::clone(scorer), weight);
            scorers.push(ResolvedScorer { plugin: instance.name.clone(), weight, defaulted });
        } else if weight.is_some() {
            notes.push(format!("profile '{profile_name}': the weight of '{}' has no effect", instance.name));
        }
        if let Some(this) = &parts.picker {
            if let Some((other, _)) = picker {
                let message = format!("profile '{profile_name}' already has the picker '{}'", other.name);
                return Err(ConfigError::at(plugin.at, message).hint("a profile has one picker"));
            }
            picker = Some((instance, this));
        }
        if parts.filter.is_none() && parts.scorer.is_none() && parts.picker.is_none() {
            notes.push(format!("profile '{profile_name}': '{}' has no effect there", instance.name));
        }
    }
    let (instance, picker_plugin, picker_defaulted) = match picker {
        Some((instance, plugin)) => (instance, plugin, false),
        None => {
            let instance = instances.find(default_picker);
            let found = instance.and_then(|instance| Some((instance, instance.parts.picker.as_ref()?)));
            let (instance, plugin) = found.ok_or_else(|| ConfigError::new("there is no picker"))?;
            (instance, plugin, true)
        }
    };
    let resolved = ResolvedProfile {
        name: profile_name.clone(),
        defaulted,
        filters,
        scorers,
        picker: Use::of(&instance.name, picker_defaulted),
    };
    Ok((builder.picker(&id(instance), Arc::clone(picker_plugin)), resolved))
}

pub(super) fn id(instance: &Instance) -> PluginId {
    PluginId::new(instance.plugin_type.name, instance.name.as_str())
}
