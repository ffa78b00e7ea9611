//! What docs/capacity.md says is what happens.

use crate::program::usher;
use serde_json::Value;

const PAGE: &str = include_str!("../../docs/capacity.md");
const PLAN: &str = include_str!("../../src/capacity/plan.rs");

/// The variants of an enum of the plan.
fn variants(name: &str) -> Vec<&'static str> {
    let start = PLAN.split_once(&format!("pub enum {name} {{\n")).unwrap().1;
    let body = start.split_once("\n}").unwrap().0;
    let names: Vec<&str> = body
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .filter(|name| name.chars().all(char::is_alphanumeric))
        .collect();
    assert!(names.len() > 3, "{names:?}");
    names
}

#[test]
fn every_reason_and_condition_is_listed() {
    for name in [variants("Reason"), variants("Condition")].concat() {
        assert!(PAGE.contains(&format!("`{name}`")), "{name}");
    }
}

/// The indented JSON that begins after this text.
fn example(after: &str) -> Value {
    let block: String = PAGE
        .split_once(after)
        .unwrap()
        .1
        .lines()
        .skip_while(|line| !line.starts_with("    {"))
        .take_while(|line| line.starts_with("    "))
        .collect();
    serde_json::from_str(&block).unwrap()
}

#[test]
fn the_line_becomes_the_plan() {
    let line = example("## A timeline");
    let arguments =
        ["simulate", "--policy", "deploy/capacity/rules.yaml", "--timeline", "-", "--output", "json"];
    let output = usher(&arguments, &line.to_string());
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan, example("With `--output json`"));
}
