//! Parts of a configuration that can't change while it runs.
//!
//! A file that changes one of them is refused as a whole. Half of it would be a configuration that nobody
//! wrote or tested, and a restart, whenever that comes, would run another.

use std::collections::BTreeSet;

use serde_json::Value;

use super::active::Active;
use crate::registry::{Pipeline, Resolved, ResolvedPlugin, Use};
use crate::schedule::flow_control::{BandRules, FlowControlRules};

/// Keys that would change and can't, by the names of the configuration.
pub(super) fn changes(active: &Active, new: &Pipeline) -> Vec<String> {
    let (before, after) = (&active.resolved, &new.resolved);
    let mut changed = Vec::new();
    let gates = [before.feature_gates, after.feature_gates];
    let [old, new_gates] = gates;
    if old.flow_control != new_gates.flow_control {
        changed.push("the feature gate flowControl".to_owned());
    }
    if old.ha_populate_non_leader_datastore != new_gates.ha_populate_non_leader_datastore {
        changed.push("the feature gate haPopulateNonLeaderDatastore".to_owned());
    }
    for (key, is_changed) in [
        ("requestHandler.parsers", used(before, &before.parsers) != used(after, &after.parsers)),
        ("dataLayer.sources", sources(before) != sources(after)),
        (
            "dataLayer.discovery",
            used(before, before.discovery.as_slice()) != used(after, after.discovery.as_slice()),
        ),
        (
            "dataLayer.crossReplicaSyncerPluginRef",
            used(before, before.syncer.as_slice()) != used(after, after.syncer.as_slice())
                || active.state_store != new.sharing.store,
        ),
        (
            "dataLayer.crossReplicaSyncInterval and crossReplicaPublishTimeout",
            active.exchange != new.sharing.exchange,
        ),
        ("plugins that follow KV events", precise(before) != precise(after)),
        // Blocks are known by the model's name where topics have none.
        ("modelName of the token-producer", !precise(before).is_empty() && model(before) != model(after)),
    ] {
        if is_changed {
            changed.push(key.to_owned());
        }
    }
    let rules = new.flow_control.as_ref().map(|flow_control| &flow_control.rules);
    if let (Some(old), Some(new)) = (&active.rules, rules) {
        flow_control(old, new, &mut changed);
        let detector = |of: &Resolved| {
            let name = &of.saturation_detector.plugin;
            of.plugins.iter().find(|plugin| plugin.name == *name).map(|plugin| plugin.plugin_type)
        };
        // The time for which it waits for an end goes by the detector's type.
        if old.evicts && detector(before) != detector(after) {
            changed.push("flowControl.saturationDetector with enableEviction".to_owned());
        }
    }
    changed
}

fn flow_control(old: &FlowControlRules, new: &FlowControlRules, changed: &mut Vec<String>) {
    if old.evicts != new.evicts {
        changed.push("flowControl.enableEviction".to_owned());
    }
    let mut policies = |of: &str, old: &BandRules, new: &BandRules| {
        if old.fairness != new.fairness {
            changed.push(format!("the fairness policy of {of}"));
        }
        if old.ordering != new.ordering {
            changed.push(format!("the ordering policy of {of}"));
        }
    };
    policies("flowControl.defaultPriorityBand", &old.default_band, &new.default_band);
    let negative = "flowControl.defaultNegativePriorityBand";
    policies(negative, &old.default_negative_band, &new.default_negative_band);
    // A band that is listed no longer, or was not, goes by the defaults.
    let listed = old.bands.iter().chain(&new.bands).map(|(priority, _)| *priority);
    for priority in listed.collect::<BTreeSet<_>>() {
        policies(&format!("priority {priority}"), old.band(priority), new.band(priority));
    }
}

/// Plugins by type and parameters: another name is no change.
type Plugins<'a> = Vec<Option<(&'static str, &'a Value)>>;

fn used<'a>(resolved: &'a Resolved, uses: &[Use]) -> Plugins<'a> {
    plugins(resolved, uses.iter().map(|of| of.plugin.as_str()))
}

/// Plugins that follow KV events, with names: what is known of endpoints goes by them.
fn precise(resolved: &Resolved) -> Vec<(&str, &'static str, &Value)> {
    let all =
        resolved.plugins.iter().filter(|plugin| plugin.plugin_type.starts_with("precise-prefix-cache-"));
    all.map(|plugin| (plugin.name.as_str(), plugin.plugin_type, &plugin.parameters)).collect()
}

/// Name of the model whose tokens count: that of the first token producer with a tokenizer.
fn model(resolved: &Resolved) -> Option<&str> {
    let is_source = |plugin: &&ResolvedPlugin| {
        let has = |key| plugin.parameters.get(key).is_some();
        matches!(plugin.plugin_type, "token-producer" | "tokenizer") && (has("local") || has("vllm"))
    };
    let source = resolved.plugins.iter().find(is_source)?;
    source.parameters.get("modelName")?.as_str()
}

/// Sources and what reads them. Here names count: others read numbers by them.
fn sources(resolved: &Resolved) -> Vec<(String, Plugins<'_>, Vec<String>, Plugins<'_>)> {
    let source = |of: &crate::registry::ResolvedSource| {
        let extractors = plugins(resolved, of.extractors.iter().map(String::as_str));
        let source = plugins(resolved, [of.source.plugin.as_str()].into_iter());
        (of.source.plugin.clone(), source, of.extractors.clone(), extractors)
    };
    resolved.sources.iter().map(source).collect()
}

fn plugins<'a, 'n>(resolved: &'a Resolved, names: impl Iterator<Item = &'n str>) -> Plugins<'a> {
    let shown = |plugin: &'a ResolvedPlugin| (plugin.plugin_type, &plugin.parameters);
    names.map(|name| resolved.plugins.iter().find(|plugin| plugin.name == name).map(shown)).collect()
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::config::EndpointPickerConfig;
    use crate::schedule::{SchedulerMetrics, State};

    fn built(text: &str) -> Pipeline {
        let config = EndpointPickerConfig::parse(text).unwrap();
        let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
        Pipeline::build(Some(&config), true, &metrics, &State::default()).unwrap()
    }

    const BASE: &str = "
plugins:
- {type: queue-scorer}
- {type: round-robin-fairness-policy}
- {type: metrics-data-source}
- {type: concurrency-detector}
- {type: local-syncer}
featureGates: [flowControl]
flowControl: {priorityBands: [{priority: 5, maxRequests: 7}]}
";

    #[test]
    fn eviction_fixes_the_detector_type() {
        let text = |name: &str, kind: &str| {
            let of = BASE.replace("{type: concurrency-detector}", &format!("{{name: {name}, type: {kind}}}"));
            let evicts =
                format!("flowControl: {{enableEviction: true, saturationDetector: {{pluginRef: {name}}}, ");
            of.replace("flowControl: {", &evicts)
        };
        let active = built(&text("a", "concurrency-detector"));
        let active = Active::new(&active, "");
        assert_eq!(changes(&active, &built(&text("b", "concurrency-detector"))), [""; 0]);
        let changed = changes(&active, &built(&text("a", "utilization-detector")));
        assert_eq!(changed, ["flowControl.saturationDetector with enableEviction"]);
    }

    #[test]
    fn blocks_fix_the_model_name_of_their_tokens() {
        let text = |model: &str, precise: &str| {
            format!(
                "plugins: [{{type: token-producer, parameters: {{modelName: {model}, vllm: {{}}}}}}{precise}]"
            )
        };
        let precise = ", {type: precise-prefix-cache-producer}";
        let active = Active::new(&built(&text("a", precise)), "");
        assert_eq!(changes(&active, &built(&text("a", precise))), [""; 0]);
        assert_eq!(changes(&active, &built(&text("b", precise))), ["modelName of the token-producer"]);
        let other = text("a", precise).replace("vllm: {}", "vllm: {timeout: 1s}");
        assert_eq!(changes(&active, &built(&other)), [""; 0]);
        let active = Active::new(&built(&text("a", "")), "");
        assert_eq!(changes(&active, &built(&text("b", ""))), [""; 0], "nothing goes by it");
    }

    #[test]
    fn password_of_the_state_store_is_fixed() {
        let text = |password: &str| {
            format!(
                "plugins: [{{type: redis-syncer, parameters: {{password: {password}}}}}]\ndataLayer: {{crossReplicaSyncerPluginRef: redis-syncer}}\n"
            )
        };
        let active = Active::new(&built(&text("first")), "");
        assert_eq!(changes(&active, &built(&text("first"))), [""; 0]);
        assert_eq!(changes(&active, &built(&text("second"))), ["dataLayer.crossReplicaSyncerPluginRef"]);
    }

    #[test]
    fn only_fixed_settings_are_named_on_reload() {
        let table: [(&str, &str, &[&str]); 12] = [
            ("maxRequests: 7", "maxRequests: 8", &[]),
            ("{priority: 5, maxRequests: 7}", "{priority: 6}", &[]),
            ("{type: queue-scorer}", "{type: running-requests-size-scorer}", &[]),
            ("flowControl: {", "flowControl: {saturationDetector: {pluginRef: concurrency-detector}, ", &[]),
            ("flowControl: {", "flowControl: {maxRequests: 3, defaultRequestTTL: 1s, ", &[]),
            ("featureGates: [flowControl]\n", "", &["the feature gate flowControl"]),
            (
                "[flowControl]",
                "[flowControl, haPopulateNonLeaderDatastore=false]",
                &["the feature gate haPopulateNonLeaderDatastore"],
            ),
            ("flowControl: {", "flowControl: {enableEviction: true, ", &["flowControl.enableEviction"]),
            (
                "maxRequests: 7",
                "fairnessPolicyRef: round-robin-fairness-policy",
                &["the fairness policy of priority 5"],
            ),
            (
                "{type: metrics-data-source}",
                "{type: metrics-data-source, parameters: {path: /other}}",
                &["dataLayer.sources"],
            ),
            (
                "featureGates",
                "dataLayer: {crossReplicaSyncerPluginRef: local-syncer}\nfeatureGates",
                &["dataLayer.crossReplicaSyncerPluginRef"],
            ),
            (
                "featureGates",
                "dataLayer: {crossReplica: {syncInterval: 1s}}\nfeatureGates",
                &["dataLayer.crossReplicaSyncInterval and crossReplicaPublishTimeout"],
            ),
        ];
        let active = Active::new(&built(BASE), BASE);
        for (old, new, want) in table {
            let text = BASE.replace(old, new);
            assert_ne!(text, BASE, "{old}");
            assert_eq!(changes(&active, &built(&text)), want, "{new}");
        }
        let other = "plugins: [{type: passthrough-parser}, {type: queue-scorer}]\nfeatureGates: [flowControl]\nflowControl: {priorityBands: [{priority: 5}]}\nrequestHandler: {parsers: [{pluginRef: passthrough-parser}]}\n";
        assert_eq!(changes(&active, &built(other)), ["requestHandler.parsers"]);
    }
}
