//! The files of `deploy/observability`: expressions, and what they name.

use std::collections::BTreeSet;

use serde_json::Value;

pub(crate) const FOLDER: &str = "deploy/observability";

/// An expression of a panel.
pub(crate) struct Panel {
    /// Dashboard and title.
    pub(crate) name: String,
    pub(crate) expression: String,
}

/// An alert.
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) expression: String,
    pub(crate) severity: String,
    pub(crate) annotations: Value,
}

/// The dashboards by their file names.
pub(crate) fn dashboards() -> Vec<(String, Value)> {
    let entries =
        std::fs::read_dir(format!("{FOLDER}/dashboards")).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    };
    let mut all: Vec<_> = entries.map(read).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// All expressions of all panels.
pub(crate) fn panels() -> Vec<Panel> {
    let mut all = Vec::new();
    for (file, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().unwrap().to_owned();
                all.push(Panel { name: format!("{file}: {}", panel["title"]), expression });
            }
        }
    }
    all
}

/// The text of the rules.
pub(crate) fn rules_text() -> String {
    std::fs::read_to_string(format!("{FOLDER}/rules.yaml")).unwrap()
}

/// All alerts.
pub(crate) fn rules() -> Vec<Rule> {
    let text = rules_text();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = file["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules
        .map(|rule| Rule {
            name: text(&rule["alert"]),
            expression: text(&rule["expr"]),
            severity: text(&rule["labels"]["severity"]),
            annotations: rule["annotations"].clone(),
        })
        .collect()
}

/// Rules in which every minute is a second, so that nobody waits for ten of them.
pub(crate) fn hurried(rules: &str) -> String {
    let mut hurried = String::new();
    // `true` behind a number that is not part of a name.
    let mut is_number = false;
    let mut before = ' ';
    let mut rest = rules.chars().peekable();
    while let Some(c) = rest.next() {
        let ends = !rest.peek().is_some_and(|next| next.is_alphanumeric());
        hurried.push(if c == 'm' && is_number && ends { 's' } else { c });
        let is_in_name = before.is_ascii_alphabetic() || before == '_';
        is_number = c.is_ascii_digit() && (is_number || !is_in_name && !before.is_ascii_digit());
        before = c;
    }
    hurried
}

/// Names of metrics in an expression.
pub(crate) fn metrics(expression: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let names = expression.split(|c| !is_part(c));
    let starts = ["llm_d_epp_", "usher_", "process_", "gen_ai_"];
    names.filter(|name| starts.iter().any(|start| name.starts_with(start))).map(str::to_owned).collect()
}
