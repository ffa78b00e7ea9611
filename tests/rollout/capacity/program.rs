//! `usher capacity` as a program.

use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};

pub fn usher(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
        .arg("capacity")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read all of it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const RULES: [&str; 6] =
    ["simulate", "--policy", "deploy/capacity/rules.yaml", "--timeline", "-", "--output=json"];

fn line(t: u64, queue: f64) -> String {
    let pods = [json!({"name": "d-0", "role": "decode", "ready": true, "metrics": {"queue_depth": queue}})];
    json!({"t": t, "endpoints": pods}).to_string()
}

#[test]
fn a_timeline_becomes_a_line_per_tick() {
    let first = line(0, 9.0).replace("{\"endpoints\"", "{\"replicas\":{\"decode\":1},\"endpoints\"");
    let output = usher(&RULES, &format!("{first}\n\n{}\n", line(15, 9.0)));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = json!({
        "t": 0, "roles": {"decode": {"current": 1, "desired": 3, "admitted": 3, "partition": null, "layer": null, "reasons": ["Rule"]}}, "total": 3,
        "state": "Scale", "conditions": [], "fired": ["up-on-queue"],
    });
    assert_eq!(lines[0], expected);
    // The previous plan is taken as applied, and the rule rests.
    let roles = json!({"decode": {"current": 3, "desired": 3, "admitted": 3, "partition": null, "layer": null, "reasons": []}});
    assert_eq!((&lines[1]["roles"], &lines[1]["state"]), (&roles, &json!("Idle")));
    assert_eq!(lines.len(), 2);
}

#[test]
fn the_shipped_timeline_ends_where_it_began() {
    let timeline = "tests/data/capacity/ramp.jsonl";
    let arguments = ["simulate", "--policy", "deploy/capacity/pd.yaml", "--timeline", timeline];
    let output = usher(&[&arguments[..], &["--output=json"]].concat(), "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let totals: Vec<u64> = lines.iter().map(|line| line["total"].as_u64().unwrap()).collect();
    assert_eq!((totals[0], *totals.iter().max().unwrap(), *totals.last().unwrap()), (6, 24, 6));
    for line in &lines {
        let count = |role: &str| line["roles"][role]["desired"].as_u64().unwrap();
        let (prefill, decode) = (count("prefill"), count("decode"));
        assert!(prefill * 4 >= decode && prefill <= decode, "{line}");
        assert!((2..=8).contains(&prefill) && (4..=16).contains(&decode), "{line}");
    }
    let turns = totals.windows(2).filter(|pair| pair[0] > pair[1]).count();
    let peak = totals.iter().position(|total| *total == 24).unwrap();
    assert!(totals[..peak].is_sorted() && turns > 0, "{totals:?}");
    let output = usher(&arguments, "");
    let printed = text(&output.stdout);
    let (table, legend) = printed.split_once("\n\n").unwrap();
    let ticks = |line: &str| {
        line.split_once("× ")
            .map_or(1, |(_, rest)| rest.split_whitespace().next().unwrap().parse::<usize>().unwrap())
    };
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert_eq!(rows.iter().map(|row| ticks(row)).sum::<usize>(), lines.len(), "{table}");
    assert!(rows.len() < lines.len() / 2, "{table}");
    assert!(legend.contains("Band        The preferred ratio limits the share.\n"), "{legend}");
}

/// Every tick of a shipped timeline under a shipped policy.
fn simulated(policy: &str, timeline: &str) -> Vec<Value> {
    let (policy, timeline) =
        (format!("deploy/capacity/{policy}.yaml"), format!("tests/data/capacity/{timeline}.jsonl"));
    let output = usher(&["simulate", "--policy", &policy, "--timeline", &timeline, "--output=json"], "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn desired(line: &Value, role: &str) -> u64 {
    line["roles"][role]["desired"].as_u64().unwrap()
}

#[test]
fn outage_changes_neither_size_nor_window() {
    let lines = simulated("pd", "outage");
    for line in &lines {
        let (t, total) = (line["t"].as_u64().unwrap(), line["total"].as_u64().unwrap());
        let is_blind = (120..1320).contains(&t);
        assert_eq!(line["conditions"] == json!(["StaleData"]), is_blind, "{line}");
        if is_blind {
            assert_eq!((desired(line, "prefill"), desired(line, "decode")), (4, 8), "{line}");
        }
        // Half of the pods respond after that, all from 1440 on, and there is little to do.
        assert!(total >= 12 || t >= 1305 + 300, "{line}");
    }
    assert_eq!(lines.last().unwrap()["total"], 6);
}

#[test]
fn full_cluster_is_redistributed_in_steps() {
    let lines = simulated("pd", "full");
    let first = (desired(&lines[0], "prefill"), desired(&lines[0], "decode"));
    assert!(first.0 > 4 && first.1 == 8, "{}", lines[0]);
    // Twelve pods fit. One step is one pod.
    assert!(lines.iter().all(|line| line["total"].as_u64().unwrap() <= first.0 + first.1));
    let decode: Vec<u64> = lines.iter().map(|line| desired(line, "decode")).collect();
    assert!(decode.windows(2).all(|pair| pair[0] - pair[1] <= 1), "{decode:?}");
    let began = lines.iter().position(|line| line["conditions"] == json!(["BatchTimeout"])).unwrap();
    assert!(lines[began]["t"].as_u64().unwrap() >= 600, "batchTimeout");
    let last = lines.last().unwrap();
    assert_eq!((&last["state"], last["total"].as_u64().unwrap()), (&json!("Idle"), 12));
    assert!(desired(last, "prefill") > 4, "{last}");
}

#[test]
fn cooldowns_survive_the_restart() {
    let lines = simulated("rules", "restart");
    let fired: Vec<u64> = lines
        .iter()
        .filter(|line| line["fired"] != json!([]))
        .map(|line| line["t"].as_u64().unwrap())
        .collect();
    assert_eq!(fired, [0, 300], "in spite of restarts at 60 and 120");
    let blind = lines.iter().filter(|line| line["conditions"] == json!(["StaleData"])).count();
    assert_eq!(blind, 5);
}

#[test]
fn broken_line_ends_the_run_after_valid_ones() {
    let first = line(0, 9.0).replace("{\"endpoints\"", "{\"replicas\":{\"decode\":1},\"endpoints\"");
    for (second, says) in [
        ("{\"t\": 15, \"replica\": {}}", "<stdin>"),
        ("{\"t\": 15, \"replica\": {}}", "line 2: unknown field `replica`"),
        ("not json", "line 2: expected"),
        ("{\"t\": 15", "line 2: EOF while parsing an object, at column 8"),
        ("[15, {\"decode\": 1}, [], 0, {}, null, false]", "line 2: is not an object"),
        ("null", "line 2: is not an object"),
        ("{\"t\": -1}", "line 2: t is -1"),
    ] {
        let output = usher(&RULES, &format!("{first}\n{second}\n{}\n", line(30, 1.0)));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{second}: {stderr}");
        assert_eq!(text(&output.stdout).lines().count(), 1);
        assert!(stderr.lines().count() == 1 && stderr.contains(says), "{second}: {stderr}");
    }
    for (input, says) in
        [("", "there is no tick in it"), ("{\"t\": 0}", "line 1: the first tick has to say its replicas")]
    {
        let output = usher(&RULES, input);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
}

#[test]
fn policies_are_checked() {
    let output = usher(&["check", "deploy/capacity/pd.yaml"], "");
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).starts_with("llama-70b is valid: Recommend, every 15s\n"),
        "{}",
        text(&output.stdout)
    );
    let output = usher(
        &["check", "-", "--output=json"],
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec: {roles: {a: {max: 1}}}",
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json,
        json!({"valid": true, "files": [{
            "file": "<stdin>", "kind": "CapacityPolicy", "valid": true, "errors": [],
            "policies": [{"name": "p", "sizing": "kept", "warnings": []}],
        }]})
    );
    let output = usher(&["check", "-"], "apiVersion: v1\nkind: CapacityPolicy\nspec: {}");
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let expected = "<stdin>:1:1: apiVersion is \"v1\"; write usher.dev/v1alpha1\n  1 | apiVersion: v1\n    | ^^^^^^^^^^\n";
    assert!(stderr.starts_with(expected) && stderr.ends_with("\n3 errors\n"), "{stderr}");
    let output = usher(&["check", "deploy/config/default.yaml", "--output=json"], "");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    let message = &json["files"][0]["errors"][0]["message"];
    assert_eq!(message, "this is an EndpointPickerConfig, not a CapacityPolicy");
    for (arguments, says) in [
        (vec!["check", "/nonexistent"], "/nonexistent"),
        (
            vec!["simulate", "--policy", "deploy/capacity/pd.yaml", "--timeline", "/nonexistent"],
            "the timeline can't be read",
        ),
        (
            vec!["simulate", "--policy", "deploy/capacity/pd.yaml", "--name", "x", "--timeline", "-"],
            "there is no policy 'x'; there are: llama-70b",
        ),
    ] {
        let output = usher(&arguments, "");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
}
