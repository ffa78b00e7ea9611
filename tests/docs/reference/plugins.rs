//! docs/reference/plugins.md, from the list of plugin types.

use std::fmt::Write;

use usher::config::Node;
use usher::config::units::parse_duration;
use usher::registry::{Kind, Parameter, PluginType, Stability, plugin_types};

use super::page::{assert_written, row as cells};
use crate::config::build_with;
use crate::config::required::{beside, required};

/// The sections of the tables, and what belongs to each.
const SECTIONS: [(&str, &[Kind]); 10] = [
    ("Scorers", &[Kind::Scorer]),
    ("Filters", &[Kind::Filter]),
    ("Pickers", &[Kind::Picker]),
    ("Profile handlers and deciders", &[Kind::ProfileHandler, Kind::Decider, Kind::PreRequest]),
    ("Data producers", &[Kind::DataProducer]),
    ("Around a decision", &[Kind::RequestHeader, Kind::Screener, Kind::Admitter, Kind::Response]),
    ("Parsers", &[Kind::Parser]),
    ("Endpoints and their numbers", &[Kind::Discovery, Kind::DataSource, Kind::Extractor]),
    (
        "Flow control",
        &[
            Kind::SaturationDetector,
            Kind::FairnessPolicy,
            Kind::OrderingPolicy,
            Kind::UsageLimitPolicy,
            Kind::Eviction,
        ],
    ),
    ("Several replicas", &[Kind::PeerDiscovery, Kind::Syncer]),
];

/// All tables: a row per plugin type, where its first kind belongs.
fn tables() -> String {
    let mut before = Vec::new();
    let sections = SECTIONS.map(|(title, kinds)| {
        let of = |plugin_type: &&PluginType| kinds.contains(&plugin_type.kinds[0]);
        let mut text = format!("## {title}\n\n");
        text += "| type | what it does | parameters | when to use it |\n|---|---|---|---|\n";
        plugin_types().filter(of).for_each(|plugin_type| text += &row(plugin_type, &mut before));
        text
    });
    sections.join("\n")
}

/// Parameters of a type. Those that one of the types `before` has as well are named by it.
fn parameters(plugin_type: &PluginType, before: &mut Vec<(&'static str, Vec<String>)>) -> String {
    let own: Vec<String> = (plugin_type.parameters)().iter().map(parameter).collect();
    let is_part = |(_, others): &&(&str, Vec<String>)| others.iter().all(|other| own.contains(other));
    let same = before.iter().filter(is_part).max_by_key(|(_, others)| others.len());
    let same = same.filter(|(_, others)| others.len() >= 2 || others.len() == own.len());
    let mut rows: Vec<String> = same.map(|(name, _)| format!("Those of `{name}`.")).into_iter().collect();
    rows.extend(own.iter().filter(|row| !same.is_some_and(|(_, others)| others.contains(row))).cloned());
    if !own.is_empty() {
        before.push((plugin_type.name, own));
    }
    if rows.is_empty() { "none".to_owned() } else { rows.join("<br>") }
}

fn row(plugin_type: &PluginType, before: &mut Vec<(&'static str, Vec<String>)>) -> String {
    let mut name = format!("`{}`", plugin_type.name);
    if plugin_type.stability == Stability::Alpha {
        name += " (experimental)";
    }
    let deprecated = plugin_type.deprecated.map(|other| format!("Deprecated, use `{other}`. "));
    let deprecated = deprecated.unwrap_or_default();
    if !plugin_type.is_supported() {
        return cells([&name, &format!("{deprecated}Not in this version."), "", ""]);
    }
    let mut what = deprecated + plugin_type.summary;
    if let [_, others @ ..] = plugin_type.kinds
        && !others.is_empty()
    {
        let others: Vec<&str> = others.iter().map(|kind| kind.a()).collect();
        write!(what, " Also {}.", others.join(", ")).unwrap();
    }
    let parameters = parameters(plugin_type, before);
    cells([&name, &what, &parameters, plugin_type.when])
}

fn parameter(parameter: &Parameter) -> String {
    let default = match parameter.default.as_str() {
        "" => "required".to_owned(),
        default => format!("default `{default}`"),
    };
    let unit = if parameter.unit.is_empty() { String::new() } else { format!(", {}", parameter.unit) };
    format!("`{}` ({default}{unit}): {}", parameter.name, parameter.meaning)
}

#[test]
fn every_plugin_type_has_its_row() {
    let written = tables();
    for plugin_type in plugin_types() {
        let rows = written.lines().filter(|line| line.starts_with(&format!("| `{}` ", plugin_type.name)));
        assert_eq!(rows.count(), 1, "{} is in no section, or in two", plugin_type.name);
    }
    assert_written("docs/reference/plugins.md", "the list of plugin types", &written);
}

#[test]
fn documented_defaults_match_the_code() {
    let mut compared = 0;
    for plugin_type in plugin_types().filter(|plugin_type| plugin_type.is_supported()) {
        let (name, parameters) = (plugin_type.name, (plugin_type.parameters)());
        let set = required(name);
        let text = format!("plugins: [{{type: {name}, parameters: {set}}}{}]\n", beside(name));
        let pipeline = build_with(&text, true).unwrap_or_else(|error| panic!("{name}: {error}"));
        let serde_json::Value::Object(counting) = &pipeline.resolved.plugins[0].parameters else {
            panic!("{name}: parameters are no map");
        };
        for (key, value) in counting {
            let described = parameters.iter().find(|parameter| parameter.name == *key);
            let parts =
                || parameters.iter().filter_map(|parameter| parameter.name.strip_prefix(key.as_str()));
            if described.is_none() && parts().any(|rest| rest.starts_with('.')) {
                // What is in it is described one by one.
                continue;
            }
            let described = described.unwrap_or_else(|| panic!("{name}: no row says what {key} does"));
            let is_set = Node::parse(set).unwrap().get(key).is_some();
            if is_set || value.is_null() {
                continue;
            }
            assert!(
                is_same(&described.default, value),
                "{name}: {key} is {value}, not {}",
                described.default
            );
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
}

/// Returns `true` if a default as it is described is the one that counts.
fn is_same(described: &str, value: &serde_json::Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    let json = value.to_string();
    let numbers = (described.parse::<f64>().ok(), value.as_f64());
    let durations = (parse_duration(described).ok(), parse_duration(text).ok());
    // Case says nothing in a header's name, and other words don't differ by it alone.
    described.eq_ignore_ascii_case(text)
        || described == "none" && value == ""
        || described == json
        || matches!(numbers, (Some(one), Some(other)) if one == other)
        || matches!(durations, (Some(one), Some(other)) if one == other)
}
