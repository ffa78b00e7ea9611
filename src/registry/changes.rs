//! Differences between two configurations, as text with a line each.
//!
//! Names, numbers and switches are shown. Text in parameters is not: it may hold an address with a
//! password, so of it only the parameter is named.

use serde_json::{Map, Value};

use super::resolved::{Resolved, ResolvedPlugin, ResolvedProfile, ResolvedScorer, ResolvedSource, Use};

/// Differences between two configurations, from the plugins to flow control. Empty if they decide alike.
pub fn changes(old: &Resolved, new: &Resolved) -> Vec<String> {
    let mut lines = Vec::new();
    plugins(old, new, &mut lines);
    profiles(old, new, &mut lines);
    for (what, old, new) in [
        ("profile handler", &old.profile_handler, &new.profile_handler),
        ("saturation detector", &old.saturation_detector, &new.saturation_detector),
    ] {
        named(what, &old.plugin, &new.plugin, &mut lines);
    }
    named("parsers", &list(&old.parsers), &list(&new.parsers), &mut lines);
    named("data sources", &sources(&old.sources), &sources(&new.sources), &mut lines);
    let discovery = |of: &Resolved| of.discovery.as_ref().map(|of| of.plugin.clone()).unwrap_or_default();
    named("discovery", &discovery(old), &discovery(new), &mut lines);
    fields("feature gate ", &json(&old.feature_gates), &json(&new.feature_gates), true, &mut lines);
    fields("flowControl.", &json(&old.flow_control), &json(&new.flow_control), true, &mut lines);
    lines
}

fn plugins(old: &Resolved, new: &Resolved, lines: &mut Vec<String>) {
    let find = |of: &'_ Resolved, name: &str| of.plugins.iter().position(|plugin| plugin.name == name);
    for plugin in &old.plugins {
        if find(new, &plugin.name).is_none() {
            lines.push(format!("plugin '{}' ({}) removed", plugin.name, plugin.plugin_type));
        }
    }
    for plugin in &new.plugins {
        match find(old, &plugin.name).and_then(|position| old.plugins.get(position)) {
            None => lines.push(format!("plugin '{}' ({}) added", plugin.name, plugin.plugin_type)),
            Some(before) => parameters(before, plugin, lines),
        }
    }
}

fn parameters(old: &ResolvedPlugin, new: &ResolvedPlugin, lines: &mut Vec<String>) {
    let name = &new.name;
    if old.plugin_type != new.plugin_type {
        lines.push(format!("plugin '{name}': type {} → {}", old.plugin_type, new.plugin_type));
    }
    fields(&format!("plugin '{name}': "), &old.parameters, &new.parameters, false, lines);
}

fn profiles(old: &Resolved, new: &Resolved, lines: &mut Vec<String>) {
    let find = |of: &[ResolvedProfile], name: &str| of.iter().position(|profile| profile.name == name);
    for profile in old.profiles.iter().filter(|profile| find(&new.profiles, &profile.name).is_none()) {
        lines.push(format!("profile '{}' removed", profile.name));
    }
    for profile in &new.profiles {
        match find(&old.profiles, &profile.name).and_then(|position| old.profiles.get(position)) {
            None => lines.push(format!("profile '{}' added", profile.name)),
            Some(before) => self::profile(before, profile, lines),
        }
    }
}

fn profile(old: &ResolvedProfile, new: &ResolvedProfile, lines: &mut Vec<String>) {
    let name = &new.name;
    named(&format!("profile '{name}': filters"), &old.filters.join(", "), &new.filters.join(", "), lines);
    let find = |of: &[ResolvedScorer], plugin: &str| of.iter().position(|scorer| scorer.plugin == plugin);
    for scorer in old.scorers.iter().filter(|scorer| find(&new.scorers, &scorer.plugin).is_none()) {
        lines.push(format!("profile '{name}': scorer '{}' removed", scorer.plugin));
    }
    for ResolvedScorer { plugin, weight, .. } in &new.scorers {
        match find(&old.scorers, plugin).and_then(|position| old.scorers.get(position)) {
            None => lines.push(format!("profile '{name}': scorer '{plugin}' added with weight {weight}")),
            Some(before) if before.weight != *weight => {
                lines.push(format!("profile '{name}': weight of '{plugin}' {} → {weight}", before.weight));
            }
            Some(_) => {}
        }
    }
    named(&format!("profile '{name}': picker"), &old.picker.plugin, &new.picker.plugin, lines);
}

fn list(uses: &[Use]) -> String {
    uses.iter().map(|of| of.plugin.as_str()).collect::<Vec<_>>().join(", ")
}

fn sources(sources: &[ResolvedSource]) -> String {
    let source = |of: &ResolvedSource| format!("{} ({})", of.source.plugin, of.extractors.join(", "));
    sources.iter().map(source).collect::<Vec<_>>().join(", ")
}

/// A difference between names, which may be none.
fn named(what: &str, old: &str, new: &str, lines: &mut Vec<String>) {
    if old != new {
        let shown = |names: &str| if names.is_empty() { "none".to_owned() } else { names.to_owned() };
        lines.push(format!("{what} {} → {}", shown(old), shown(new)));
    }
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// Differences between the fields of two maps. `shows_text`: their text holds names and durations.
fn fields(prefix: &str, old: &Value, new: &Value, shows_text: bool, lines: &mut Vec<String>) {
    let nothing = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&nothing), new.as_object().unwrap_or(&nothing));
    let shown = |value: Option<&Value>| match value {
        None | Some(Value::Null) => Some("none".to_owned()),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => Some(value.to_string()),
        Some(Value::String(text)) if shows_text => Some(text.clone()),
        Some(_) => None,
    };
    let removed = old.keys().filter(|key| !new.contains_key(*key));
    for key in new.keys().chain(removed) {
        let (before, after) = (old.get(key), new.get(key));
        if before == after {
            continue;
        }
        match (shown(before), shown(after)) {
            (Some(before), Some(after)) => lines.push(format!("{prefix}{key} {before} → {after}")),
            _ => lines.push(format!("{prefix}{key} changed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::config::EndpointPickerConfig;
    use crate::registry::Pipeline;
    use crate::schedule::{SchedulerMetrics, State};

    fn resolved(text: &str) -> Resolved {
        let config = EndpointPickerConfig::parse(text).unwrap();
        let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
        Pipeline::build(Some(&config), true, &metrics, &State::default()).unwrap().resolved
    }

    const OLD: &str = "
plugins:
- type: queue-scorer
- type: active-request-scorer
- {name: pick, type: max-score-picker, parameters: {maxNumOfEndpoints: 1}}
- {name: old, type: running-requests-size-scorer}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: active-request-scorer}, {pluginRef: pick}]
";

    #[test]
    fn the_same_configuration_with_other_comments_has_no_changes() {
        assert_eq!(changes(&resolved(OLD), &resolved(&format!("# why\n{OLD}"))), [""; 0]);
    }

    #[test]
    fn plugins_weights_parameters_and_profiles_are_named() {
        let new = OLD
            .replace("weight: 2", "weight: 3.5")
            .replace("maxNumOfEndpoints: 1", "maxNumOfEndpoints: 4")
            .replace(", {pluginRef: active-request-scorer}", "")
            .replace(
                "- {name: old, type: running-requests-size-scorer}\n",
                "- {name: kv, type: kv-cache-utilization-scorer}\n",
            )
            + "- {name: other, plugins: [{pluginRef: kv}, {pluginRef: pick}]}\n";
        let new = new.replace(
            "plugins:\n- type: queue-scorer",
            "plugins:\n- {type: header-profile-handler, parameters: {headerName: x-profile, defaultProfile: default}}\n- type: queue-scorer",
        );
        let lines = changes(&resolved(OLD), &resolved(&new));
        for line in [
            "plugin 'old' (running-requests-size-scorer) removed",
            "plugin 'kv' (kv-cache-utilization-scorer) added",
            "plugin 'pick': maxNumOfEndpoints 1 → 4",
            "profile 'default': weight of 'queue-scorer' 2 → 3.5",
            "profile 'default': scorer 'active-request-scorer' removed",
            "profile 'other' added",
        ] {
            assert!(lines.iter().any(|changed| changed == line), "{line} in {lines:#?}");
        }
    }

    #[test]
    fn parameter_text_is_hidden_except_for_flow_control() {
        let with = |path: &str, ttl: &str| {
            resolved(&format!(
                "plugins: [{{name: files, type: file-discovery, parameters: {{path: '{path}'}}}}]\ndataLayer: {{discovery: {{pluginRef: files}}}}\nfeatureGates: [flowControl]\nflowControl: {{defaultRequestTTL: {ttl}}}\n"
            ))
        };
        let lines = changes(&with("/a?password=secret", "5s"), &with("/b?password=secret", "6s"));
        let want = ["plugin 'files': path changed", "flowControl.defaultRequestTTL 5s → 6s"];
        assert_eq!(lines[0], want[0]);
        assert!(lines.contains(&want[1].to_owned()), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("secret")), "{lines:?}");
    }
}
