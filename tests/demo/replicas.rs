//! The demo of several replicas, with a real Redis.

use super::*;

/// Returns `true` if there is a server for the replicas' store, which CI has to have.
#[expect(clippy::print_stdout, reason = "says why nothing is tested")]
fn has_store() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let has =
        |folder: PathBuf| ["redis-server", "valkey-server"].iter().any(|name| folder.join(name).is_file());
    let found = std::env::split_paths(&paths).any(has);
    let why = "no redis-server on the PATH; the package redis-server of Debian has it";
    assert!(found || std::env::var_os("CI").is_none(), "{why}");
    if !found {
        println!("NOT TESTED: {why}");
    }
    found
}

#[test]
fn replicas_that_share_find_more_in_caches_and_one_may_be_killed() {
    if !has_store() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--servers", "4", "--scenario", "replicas", "--requests", "200", "--output", "json"];
    let output = working_demo(&folder, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let replicas: Vec<&Value> = runs.iter().map(|run| &run["replicas"]).collect();
    assert_eq!(replicas, [1, 3, 3]);
    for run in runs {
        assert_eq!(run["tokens"]["requests"], 200, "{run}");
        assert_eq!((&run["statuses"]["200"], &run["failures"]), (&run["requests"], &json!({})), "{run}");
        let times = &run["ttft_ms"];
        assert!(times["p50"].as_f64().unwrap() <= times["p90"].as_f64().unwrap(), "{run}");
        assert!(run["bursts"].as_u64().unwrap() > 1, "{run}");
        assert!((1.0..=4.0).contains(&run["max_over_mean"].as_f64().unwrap()), "{run}");
    }
    let hits = |run: usize| runs[run]["hit_percent"].as_f64().unwrap();
    assert!(hits(2) > hits(1), "{report}");
    // Nearly as many as one that knows everything. Three alone find less.
    assert!(hits(2) >= 0.95 * hits(0), "{report}");
    assert!(runs[2]["max_over_mean"].as_f64().unwrap() <= 2.0, "{report}");

    let staleness = &report["staleness"];
    assert_eq!(staleness["requests"], 20);
    for times in ["load_ms", "prefixes_ms"] {
        let (p50, p99) = (&staleness[times]["p50"], &staleness[times]["p99"]);
        assert!(p50.as_f64().unwrap() <= p99.as_f64().unwrap(), "{staleness}");
    }

    let kill = &report["kill"];
    assert_eq!(kill["failed"], 0, "{kill}");
    for time in ["counted_seconds", "back_seconds"] {
        assert!((0.0..=20.0).contains(&kill[time].as_f64().unwrap()), "{kill}");
    }
    let [own, others] = ["hit_percent", "hit_percent_of_others"].map(|hits| kill[hits].as_f64().unwrap());
    assert!(own >= 0.9 * others && others > 50.0, "{kill}");

    let ports = &report["ports"];
    let used =
        ports["replicas"].as_array().unwrap().iter().flat_map(|usher| usher.as_object().unwrap().values());
    let first = ports["envoy"].as_u64().unwrap();
    assert_eq!(used.clone().count(), 8);
    // The store has the one behind these.
    let last = used.map(|port| port.as_u64().unwrap()).max().unwrap() + 1;
    assert_free(u16::try_from(first).unwrap()..=u16::try_from(last).unwrap());
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the logs of a good run are removed");
}

#[test]
fn missing_store_is_a_one_line_error_that_says_what_to_install() {
    let (folder, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = demo(&folder, &["--port", "0", "--scenario", "replicas"]);
    let output = command.env("PATH", path.path()).output().unwrap();
    let line = failure(&output);
    assert!(line.contains("apt install redis-server") && line.contains("--state-store"), "{line}");
    assert_eq!(output.stderr.iter().filter(|byte| **byte == b'\n').count(), 1, "{output:?}");
}

#[test]
fn store_is_for_replicas_and_one_server_is_too_few() {
    let cases: [(&[&str], &str); 3] = [
        (&["--servers", "1", "--scenario", "replicas"], "give at least 2"),
        (&["--state-store", "redis://a"], "the scenario plain has no replicas"),
        (&["--scenario", "replicas", "--trace", "x"], "replays no trace"),
    ];
    for (arguments, part) in cases {
        let folder = tempfile::tempdir().unwrap();
        let output = demo(&folder, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.starts_with("usher: ") && text.contains(part), "{text}");
    }
}
