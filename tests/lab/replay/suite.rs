//! `usher replay --suite`: cells, results that are kept, and arguments that are wrong.

use std::process::Output;

use serde_json::Value;

use crate::replay::support::{Files, usher};

const SMALL: [&str; 9] = [
    "--suite",
    "--seeds",
    "1",
    "--cases",
    "distinct-bursts",
    "--engines",
    "prefill-first",
    "--utilizations",
    "0.3",
];

/// The policies of a suite, in its order.
const NAMES: [&str; 8] = [
    "expected-latency",
    "random",
    "round-robin",
    "queue",
    "llm-d-router-default",
    "sticky",
    "lmetric",
    "block-cost",
];

/// Standard output and standard error of a run that succeeds.
fn run(more: &[&str]) -> (String, String) {
    let Output { status, stdout, stderr } = usher(&[&SMALL[..], more].concat());
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{more:?}: {stderr}");
    (String::from_utf8(stdout).unwrap(), stderr)
}

#[test]
fn stored_results_are_reused() {
    let files = Files::new();
    let path = files.write("results.jsonl", "");
    let kept = || std::fs::read_to_string(&path).unwrap();
    let (first, progress) = run(&["--results", &path]);
    assert!(progress.contains("1 of 1 runs: prefill-first, distinct-bursts, 30 %"), "{progress}");
    let line = kept();
    assert_eq!(line.lines().count(), 1);
    assert_eq!(run(&["--results", &path]), (first.clone(), String::new()), "nothing was left to do");
    assert_eq!(kept(), line);
    let (json, _) = run(&["--results", &path, "--output", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["policies"], serde_json::json!(NAMES));
    assert_eq!(json["runs"][0]["policies"].as_array().unwrap().len(), NAMES.len());
    // A line that was cut off doesn't count, and neither do results of other limits.
    std::fs::write(&path, &line[..line.len() / 2]).unwrap();
    let (again, progress) = run(&["--results", &path]);
    assert_eq!((again, progress.is_empty()), (first, false));
    let (_, progress) = run(&["--results", &path, "--ttft-limit", "10ms"]);
    assert!(!progress.is_empty());
}

#[test]
fn a_table_for_each_case_and_a_summary_name_all_policies() {
    let (shown, _) = run(&[]);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[..3], ["runs           1", "", "prefill-first, distinct-bursts, 30 % busy"], "{shown}");
    let header = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(header(lines[3]), "TTFT p90 TPOT p50 p90 p99 all p90 good", "{shown}");
    let last = lines.iter().rposition(|line| line.contains("mean distance")).unwrap() + 1;
    assert_eq!(header(lines[last]), "TTFT p90 TPOT p90 all p90 good", "{shown}");
    assert!(lines.iter().all(|line| line.len() <= 80), "{shown}");
    for name in NAMES {
        let rows = lines.iter().filter(|line| line.split_whitespace().next() == Some(name)).count();
        assert_eq!(rows, 2, "{name} in {shown}");
    }
    // Somebody is best in each of the four figures.
    let table: Vec<&str> = lines[4..12].to_vec();
    assert!(table.iter().map(|line| line.matches('*').count()).sum::<usize>() >= 4, "{shown}");
}

#[test]
fn separate_roles_add_disaggregated_policies() {
    let arguments = [
        "--suite",
        "--seeds",
        "1",
        "--cases",
        "pairs",
        "--engines",
        "chunked-prefill",
        "--utilizations",
        "0.5",
        "--output",
        "json",
    ];
    let Output { status, stdout, stderr } = usher(&arguments);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let json: Value = serde_json::from_slice(&stdout).unwrap();
    let names = [&NAMES[..], &["pairs", "pairs-llm-d-router-default"]].concat();
    assert_eq!(json["policies"], serde_json::json!(names));
    let figure = |policy: &str, figure: &str| {
        let all = json["runs"][0]["policies"].as_array().unwrap();
        let figures = all.iter().find(|figures| figures["policy"] == policy).unwrap();
        figures[figure].as_f64().unwrap()
    };
    for name in names {
        assert_eq!(figure(name, "refused"), 0.0, "{name}");
        assert!(figure(name, "e2e_p90") > 0.0, "{name}");
    }
    let [joint, peer] = ["pairs", "pairs-llm-d-router-default"].map(|policy| figure(policy, "ttft_p90"));
    assert!(joint < peer, "{joint} {peer}");
}

#[test]
fn wrong_arguments_are_named() {
    let table: [(&[&str], &[&str]); 7] = [
        (&["--suite", "--cases", "chess"], &["workload 'chess'", "distinct-bursts"]),
        (&["--suite", "--engines", "vllm"], &["engine model 'vllm'", "prefill-first"]),
        (&["--suite", "--utilizations", "-1"], &["-1"]),
        (&["--suite", "--utilizations", "11"], &["--utilizations", "11", "at most 10"]),
        (&["--suite", "--utilizations", "NaN"], &["--utilizations", "NaN"]),
        (&["--suite", "--results", "/nowhere/results.jsonl"], &["/nowhere/results.jsonl"]),
        (&["--suite", "--config-file", "/nowhere.yaml"], &["/nowhere.yaml"]),
    ];
    for (arguments, parts) in table {
        let Output { status, stdout, stderr } = usher(arguments);
        let line = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{arguments:?}: {line}");
        for part in parts {
            assert!(line.contains(part), "{arguments:?}: no {part} in {line}");
        }
    }
    for conflict in [["--workload", "poisson"], ["--users", "4"], ["--seed", "1"], ["--max-running", "8"]] {
        let Output { status, stderr, .. } = usher(&[&SMALL[..], &conflict].concat());
        let text = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{conflict:?}: {text}");
        assert!(text.contains("'--suite'") && text.contains(conflict[0]), "{conflict:?}: {text}");
    }
    assert_eq!(
        usher(&["--cases", "agents", "--baseline", "random"]).status.code(),
        Some(2),
        "without --suite"
    );
}
