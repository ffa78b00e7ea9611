//! Checks of docs/guide/capacity.md against the code.

use crate::capacity::program::usher;
use crate::capacity::support::{Group, desired};
use serde_json::{Value, json};
use usher::capacity::policy::file;
use usher::capacity::{Condition, Reason};

const PAGE: &str = include_str!("../../../docs/guide/capacity.md");

#[test]
fn every_reason_and_condition_is_listed() {
    let schema = schemars::schema_for!(Reason);
    let variants = schema.get("oneOf").and_then(Value::as_array).unwrap();
    let reasons = variants.iter().map(|variant| variant["const"].as_str().unwrap().to_owned());
    let reasons: Vec<String> = reasons.collect();
    assert!(reasons.len() > 20, "{reasons:?}");
    for name in reasons.into_iter().chain(Condition::ALL.map(|condition| format!("{condition:?}"))) {
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
fn documented_timeline_line_gives_the_documented_plan() {
    let line = example("## A timeline");
    let arguments =
        ["simulate", "--policy", "deploy/capacity/rules.yaml", "--timeline", "-", "--output", "json"];
    let output = usher(&arguments, &line.to_string());
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan, example("With `--output json`"));
}

/// A group of eight whose prefill is nine times as pressed.
#[test]
fn the_example_of_a_group_of_eight() {
    let text = PAGE.split_once("### An example\n").unwrap().1.split_once("\n## ").unwrap().0;
    let mut group = Group::new(
        "roles: {decode: {min: 1, max: 8}, prefill: {min: 1, max: 8}}\n\
         total: {metrics: [{name: load, target: 1}], costExpansionPercent: 100}\n\
         coordination: {mode: Preferred, preferredRatio: {decode: {min: 25, max: 60}, prefill: {min: 40, max: 75}}, \
         pressure: {decode: [{metric: q, target: 1}], prefill: [{metric: q, target: 1}]}}",
    );
    let pods = |role, count: u32, q: u32| (role, count, true, json!({"load": 1, "q": q}));
    let plan = group.tick(
        0,
        &json!({"decode": 7, "prefill": 1}),
        &[pods("decode", 7, 1), pods("prefill", 1, 9)],
        &json!({}),
    );
    let base: Vec<u32> = plan.roles.iter().map(|role| role.base).collect();
    let goal: Vec<u32> = plan.roles.iter().map(|role| role.goal).collect();
    assert_eq!((base.as_slice(), goal.as_slice()), (&[7, 1][..], &[4, 4][..]));
    // The arithmetic of the text, from the plan's own numbers.
    let percent = |pods: u32| f64::from(pods) / 8.0 * 100.0;
    let pressure: Vec<f64> = plan.roles.iter().map(|role| role.pressure.unwrap()).collect();
    let pressed: f64 = pressure.iter().sum();
    let shares: Vec<f64> =
        base.iter().zip(&pressure).map(|(b, p)| percent(*b) / 2.0 + p / pressed * 50.0).collect();
    for said in [
        format!("Cost alone gives {} and {}.", base[0], base[1]),
        format!("by cost ({} and {} percent)", percent(base[0]), percent(base[1])),
        format!("by pressure ({} and {})", pressure[0] / pressed * 100.0, pressure[1] / pressed * 100.0),
        format!(
            "{} and {} percent, or {:.1} and {:.1} pods",
            shares[0],
            shares[1],
            shares[0] * 0.08,
            shares[1] * 0.08
        ),
        format!("So {} and {}.", goal[0], goal[1]),
    ] {
        assert!(
            text.split_whitespace().collect::<Vec<_>>().join(" ").contains(&said),
            "{said} not in {text}"
        );
    }
}

/// The policies among the page's YAML.
fn policies() -> Vec<&'static str> {
    let blocks = PAGE.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    blocks.filter(|block| block.contains("kind: CapacityPolicy")).collect()
}

#[test]
fn documented_query_policy_behaves_as_described() {
    let written = policies();
    assert_eq!(written.len(), 1);
    let mut read = file::parse(written[0]).unwrap();
    assert!(read[0].warnings.is_empty());
    let policy = read.remove(0).policy;
    let queries: Vec<&str> = policy.queries().into_iter().collect();
    let [query] = queries.as_slice() else { panic!("{queries:?}") };
    for (now, rate, pods) in [(0, 5, 3), (3, 5, 3), (0, 0, 0)] {
        let mut group = Group::of(policy.clone());
        let external = json!({"external": {*query: rate}});
        let plan = group.tick(0, &json!({"decode": now}), &[], &external);
        assert_eq!(desired(&plan), [pods], "{now} {rate}");
    }
    let silent =
        Group::of(policy.clone()).tick(0, &json!({"decode": 2}), &[], &json!({"external": {*query: null}}));
    assert_eq!((desired(&silent), format!("{:?}", silent.conditions)), (vec![2], "[StaleData]".to_owned()));
}

#[test]
fn every_metric_is_in_the_reference() {
    let reference = include_str!("../../../docs/reference/metrics.md");
    for family in usher::scaling::FAMILIES {
        assert!(reference.contains(&format!("\n| `{family}` |")), "{family}");
    }
}

#[test]
fn documented_commands_are_valid() {
    let blocks = PAGE.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let mut seen = 0;
    for command in blocks.map(|block| block.replace("\\\n", " ")) {
        for line in command.lines().filter(|line| line.starts_with("usher serve ")) {
            let words = line.split_whitespace().map(Into::into);
            let usher::cli::Command::Serve(args) = usher::cli::parse(words).unwrap() else {
                panic!("{line}")
            };
            args.settings(Default::default()).unwrap();
            seen += 1;
        }
    }
    assert_eq!(seen, 2);
}
