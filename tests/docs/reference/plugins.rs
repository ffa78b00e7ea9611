//! docs/guide/configuration.md says what the code does: its tables are written from the list of
//! plugin types, and its examples load.

use std::fmt::Write;
use std::time::Duration;

use prometheus::Registry;
use usher::config::units::parse_duration;
use usher::config::{ConfigError, EndpointPickerConfig, Node};
use usher::endpoints::Clock;
use usher::flow::{Gate, GateCollector, GateMetrics};
use usher::registry::{Kind, Parameter, Pipeline, PluginType, Stability, plugin_types};
use usher::schedule::{SchedulerMetrics, State};

use crate::config::required::{beside, required};

const FILE: &str = "docs/guide/configuration.md";
const FLOW_CONTROL: &str = "docs/guide/flow-control.md";
const START: &str = "<!-- From here on `make docs-accept` writes, from the list of plugin types. -->";
/// Set: the file is written instead of compared.
const ACCEPT: &str = "USHER_ACCEPT";

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
    let mut text = String::new();
    let mut before = Vec::new();
    for (title, kinds) in SECTIONS {
        let of = |plugin_type: &&PluginType| kinds.contains(&plugin_type.kinds[0]);
        writeln!(text, "\n## {title}\n").unwrap();
        text += "| type | what it does | parameters | when to use it |\n|---|---|---|---|\n";
        plugin_types().filter(of).for_each(|plugin_type| text += &row(plugin_type, &mut before));
    }
    text
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
        return format!("| {name} | {deprecated}Not in this version. | | |\n");
    }
    let mut what = deprecated + plugin_type.summary;
    if let [_, others @ ..] = plugin_type.kinds
        && !others.is_empty()
    {
        let others: Vec<&str> = others.iter().map(|kind| kind.a()).collect();
        write!(what, " Also {}.", others.join(", ")).unwrap();
    }
    let parameters = parameters(plugin_type, before);
    let cells = [name, what, parameters, plugin_type.when.to_owned()];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
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
    let file = std::fs::read_to_string(FILE).unwrap();
    let (before, _) = file.split_once(START).expect("the line from which on it is written");
    let written = format!("{before}{START}\n{}", tables());
    for plugin_type in plugin_types() {
        let rows = written.lines().filter(|line| line.starts_with(&format!("| `{}` ", plugin_type.name)));
        assert_eq!(rows.count(), 1, "{} is in no section, or in two", plugin_type.name);
    }
    if std::env::var_os(ACCEPT).is_some() {
        std::fs::write(FILE, written).unwrap();
        return;
    }
    let (now, then): (Vec<&str>, Vec<&str>) = (file.lines().collect(), written.lines().collect());
    let differing = (0..now.len().max(then.len())).find(|&line| now.get(line) != then.get(line));
    let shown = |lines: &[&str], line: usize| lines.get(line).map_or("(nothing)", |text| text).to_owned();
    let differing = differing
        .map(|line| format!("line {}:\n- {}\n+ {}", line + 1, shown(&now, line), shown(&then, line)));
    assert!(
        file == written,
        "{FILE} is not what the plugin types say; `make docs-accept` writes it anew\n{}",
        differing.unwrap_or_default()
    );
}

/// The blocks of a Markdown text that are marked as YAML, with the lines where they begin.
fn yaml_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        match (inside, line) {
            (false, "```yaml") => {
                inside = true;
                blocks.push((number + 1, String::new()));
            }
            (true, "```") => inside = false,
            (true, line) => {
                let (_, block) = blocks.last_mut().unwrap();
                *block += line;
                block.push('\n');
            }
            (false, _) => {}
        }
    }
    blocks
}

#[test]
fn the_examples_load() {
    for (path, least) in [(FILE, 3), (FLOW_CONTROL, 1), ("docs/guide/slo.md", 1)] {
        let blocks = yaml_blocks(&std::fs::read_to_string(path).unwrap());
        assert!(blocks.len() >= least, "{path}: {}", blocks.len());
        for (line, block) in blocks {
            let built = build(&block);
            assert!(built.is_ok(), "{path}, the example at line {line}: {}", built.unwrap_err());
        }
    }
}

#[test]
fn every_number_of_flow_control_is_where_it_is_said() {
    let file = std::fs::read_to_string(FLOW_CONTROL).unwrap();
    let registry = Registry::new();
    let metrics = GateMetrics::register(&registry, "pool").unwrap();
    let pipeline =
        build("featureGates: [flowControl]\nflowControl: {maxRequests: 9, maxBytes: 9}\n").unwrap();
    let gate = Gate::new(&pipeline.waiting.unwrap(), Clock::start(), Duration::ZERO, metrics);
    registry.register(Box::new(GateCollector::new(gate).unwrap())).unwrap();
    for family in registry.gather() {
        let name = family.name();
        let (short, is_older) = match name.strip_prefix("llm_d_epp_flow_control_") {
            Some(short) => (short, false),
            None => (name, name.starts_with("inference_extension_")),
        };
        // Pairs are said with the first name and the second one's end.
        let said = file.contains(&format!("`{short}`")) || short.ends_with("_bytes");
        assert!(is_older || said, "{name}");
    }
}

fn build(text: &str) -> Result<Pipeline, ConfigError> {
    let config = EndpointPickerConfig::parse(text)?;
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    Pipeline::build(Some(&config), true, &metrics, &State::default())
}

#[test]
fn what_is_said_of_parameters_is_so() {
    let mut compared = 0;
    for plugin_type in plugin_types().filter(|plugin_type| plugin_type.is_supported()) {
        let (name, parameters) = (plugin_type.name, (plugin_type.parameters)());
        let set = required(name);
        let pipeline = build(&format!("plugins: [{{type: {name}, parameters: {set}}}{}]\n", beside(name)));
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name}: {error}"));
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

/// Whether a default as it is described is the one that counts.
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

const DOCTOR: &str = "docs/guide/doctor.md";
const DOCTOR_START: &str = "<!-- From here on `make docs-accept` writes, from src/doctor/rules.rs. -->\n\n| finding | | why it matters | what to do |\n|---|---|---|---|\n";

#[test]
fn every_finding_of_the_doctor_has_its_row() {
    let file = std::fs::read_to_string(DOCTOR).unwrap();
    let first = DOCTOR_START.lines().next().unwrap();
    let (before, _) = file.split_once(first).expect("the line from which on it is written");
    let mut written = format!("{before}{DOCTOR_START}");
    for rule in usher::doctor::rules::ALL {
        let severity = match rule.severity {
            usher::doctor::Severity::Warning => "warning",
            usher::doctor::Severity::Wrong => "wrong",
        };
        let cells =
            [format!("`{}`", rule.code), severity.to_owned(), rule.why.to_owned(), rule.fix.to_owned()];
        writeln!(written, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | ")).unwrap();
    }
    if std::env::var_os(ACCEPT).is_some() {
        std::fs::write(DOCTOR, written).unwrap();
        return;
    }
    assert!(file == written, "{DOCTOR} is not what the rules say; `make docs-accept` writes it anew");
}
