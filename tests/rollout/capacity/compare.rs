//! `usher capacity compare` as a program.

use serde_json::Value;

use crate::capacity::program::usher;

/// A minute of the trace, and pods that start fast enough to matter in it.
const COMPARE: [&str; 11] = [
    "compare",
    "--policy",
    "deploy/capacity/single.yaml",
    "--trace",
    "tests/data/mooncake.jsonl",
    "--requests",
    "120",
    "--start",
    "10s",
    "--prefill-rate",
    "6000",
];

#[test]
fn policy_is_compared_with_hpa_and_fixed_replicas() {
    let run = || {
        let output = usher(&[&COMPARE[..], &["--output=json"]].concat(), "");
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
        output.stdout
    };
    let printed = run();
    assert_eq!(run(), printed, "the same seed, the same result");
    let report: Value = serde_json::from_slice(&printed).unwrap();
    let number = |of: &Value, name: &str| of[name].as_f64().unwrap();
    assert_eq!((number(&report, "requests"), number(&report, "start_s")), (120.0, 10.0));
    let ways = report["ways"].as_array().unwrap();
    let names: Vec<&str> = ways.iter().map(|way| way["name"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["policy chat", "HPA"]);
    let seconds = number(&report, "seconds");
    for (way, name) in ways.iter().zip(&names) {
        assert_eq!(number(way, "refused"), 0.0, "{way}");
        let cost = number(way, "pod_seconds") / seconds;
        if name.ends_with(" pods") {
            assert_eq!((number(way, "changes"), number(way, "reversals")), (0.0, 0.0));
            assert_eq!(name, &format!("{} pods", way["largest"]));
            assert!((cost - number(way, "largest")).abs() < 1e-9, "{way}");
        } else {
            // It is more than two pods can do.
            assert!(number(way, "changes") > 0.0, "{way}");
            assert!(cost > 2.0 && cost < number(way, "largest"), "{way}");
        }
    }
    let [own, most] = [&ways[0], ways.last().unwrap()];
    assert_eq!(own["largest"], most["largest"]);
    assert!(number(&most["in_time"], "share") >= number(&own["in_time"], "share"), "{report}");

    let output = usher(&COMPARE, "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(names.iter().all(|name| text.contains(name)) && text.contains("pod-seconds"), "{text}");
}

#[test]
fn equal_rows_have_an_explaining_note() {
    let text = String::from_utf8(usher(&COMPARE[..5], "").stdout).unwrap();
    let text = text.replace('\n', " ");
    let note =
        "note: policy chat and HPA never differed: they grow alike, and the 165 s of the requests end before";
    assert!(text.contains(note), "{text}");
}

#[test]
fn page_has_the_numbers_of_its_example() {
    let (_, page) =
        include_str!("../../../docs/guide/capacity.md").split_once("    usher capacity compare").unwrap();
    let (command, page) = page.split_once("\n\n").unwrap();
    let (shown, _) = page.split_once(" In the full").unwrap();
    let arguments: Vec<&str> = command.split_whitespace().filter(|word| *word != "\\").collect();
    let report = String::from_utf8(usher(&[&["compare"], &arguments[..]].concat(), "").stdout).unwrap();
    for name in ["policy chat", "HPA", "10 pods"] {
        let row = report.lines().find(|line| line.starts_with(name)).unwrap();
        let cells: Vec<&str> = row[name.len()..].split_whitespace().collect();
        let (share, pod_seconds) = (cells[0], cells[5]);
        assert!(shown.contains(&format!("{share} %")) && shown.contains(pod_seconds), "{row}\n{shown}");
    }
}

#[test]
fn invalid_comparison_is_an_error_that_names_it() {
    let table = [
        (["--policy", "deploy/capacity/pd.yaml"], "pd.yaml: a policy with one role"),
        (["--policy", "deploy/capacity/rules.yaml"], "rules.yaml: a policy with `total`"),
        (["--policy", "/nonexistent"], "/nonexistent"),
        (["--trace", "/nonexistent"], "/nonexistent: "),
        (["--config-file", "/nonexistent"], "/nonexistent"),
        (["--start", "2d"], "--start"),
        (["--initial", "0"], "--initial"),
        (["--block-size", "0"], "--block-size"),
    ];
    for (wrong, says) in table {
        let right = COMPARE[1..].chunks(2).filter(|pair| pair[0] != wrong[0]).flatten().copied();
        let arguments: Vec<&str> = ["compare"].into_iter().chain(right).chain(wrong).collect();
        let output = usher(&arguments, "");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{wrong:?}: {stderr}");
        let is_of_clap = stderr.ends_with("\n\nsee `usher capacity compare --help`\n");
        assert!(is_of_clap || stderr.lines().count() == 1, "{wrong:?}: {stderr}");
        assert!(stderr.contains(says), "{wrong:?}: {stderr}");
    }
}
