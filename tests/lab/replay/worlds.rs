//! Workloads, baselines and servers to replay with.

use serde_json::Value;

use crate::replay::support::{DEFAULT, Files, json, number, text};

/// Requests of so many users of a workload, for one policy.
fn users(workload: &str, users: &str) -> Value {
    let generated = ["--workload", workload, "--users", users, "--requests", "200"];
    json(&[&generated[..], &["--baseline", "round-robin"]].concat())
}

#[test]
fn every_workload_is_answered() {
    for workload in [
        "poisson",
        "bursts",
        "distinct-bursts",
        "long-answers",
        "reasoning",
        "documents",
        "conversations",
        "agents",
        "half-shared",
        "chat",
        "slow-server",
    ] {
        let run = json(&["--workload", workload, "--requests", "130", "--baseline", "round-robin"]);
        let policy = &run["policies"][0];
        assert_eq!(
            (policy["answered"].as_u64(), policy["refused"].as_u64()),
            (Some(130), Some(0)),
            "{workload}"
        );
        for latency in ["ttft", "tpot", "e2e"] {
            let [p50, p90, p99] = ["p50_s", "p90_s", "p99_s"].map(|share| number(&policy[latency][share]));
            assert!(0.0 < p50 && p50 <= p90 && p90 <= p99, "{workload}, {latency}: {policy}");
        }
    }
}

#[test]
fn users_of_sessions_wait_for_responses() {
    for workload in ["conversations", "agents"] {
        let [few, many] = ["5", "50"].map(|count| users(workload, count));
        let [long, short] = [&few, &many].map(|run| number(&run["seconds"]));
        assert!(long > 2.0 * short, "{workload}: {long} s and {short} s");
        assert!(number(&few["policies"][0]["token_hits"]) > 0.2, "{workload} repeats its own prompts");
        let shown =
            text(&["--workload", workload, "--requests", "50", "--users", "5", "--baseline", "random"]);
        assert!(shown.starts_with(&format!("requests       {workload}: 50 in ")), "{shown}");
        assert!(!shown.contains("times as fast"), "{shown}");
    }
}

#[test]
fn every_baseline_runs_under_its_name() {
    let names = ["random", "round-robin", "queue", "llm-d-router-default", "sticky", "lmetric", "block-cost"];
    let mut arguments = vec!["--workload", "half-shared", "--requests", "600", "--config-file", DEFAULT];
    arguments.extend(names.iter().flat_map(|name| ["--baseline", *name]));
    let run = json(&arguments);
    let policies = run["policies"].as_array().unwrap();
    let shown: Vec<&str> = policies.iter().map(|policy| policy["policy"].as_str().unwrap()).collect();
    assert_eq!(shown[0], DEFAULT);
    assert_eq!(shown[1..], names);
    assert!(policies.iter().all(|policy| policy["answered"] == 600));
    let of = |name: &str| policies.iter().find(|policy| policy["policy"] == name).unwrap();
    assert_eq!(
        of("llm-d-router-default")["decisions_differ"],
        0.0,
        "the default is written out in a file, too"
    );
    // Policies that look for cached prefixes find more of them than those that don't.
    let hits = |name: &str| number(&of(name)["token_hits"]);
    for name in ["llm-d-router-default", "sticky", "lmetric", "block-cost"] {
        for blind in ["random", "round-robin", "queue"] {
            assert!(hits(name) > hits(blind) + 0.03, "{name} {} {blind} {}", hits(name), hits(blind));
        }
    }
}

#[test]
fn late_server_gets_requests_once_it_joins() {
    let files = Files::new();
    let shares = |joins: &str| -> Vec<u64> {
        let text = format!("servers:\n- {{count: 3}}\n- {{name: cold, joinsAfter: {joins}}}\n");
        let servers = files.write("servers.yaml", &text);
        let requests = ["--workload", "poisson", "--requests", "400", "--utilization", "0.5"];
        let run = json(&[&requests[..], &["--baseline", "round-robin", "--servers-file", &servers]].concat());
        let servers = run["policies"][0]["servers"].as_array().unwrap();
        assert_eq!(servers[3]["name"], "cold");
        servers.iter().map(|server| server["requests"].as_u64().unwrap()).collect()
    };
    assert_eq!(shares("0s"), [100; 4]);
    let late = shares("5s");
    assert!(0 < late[3] && late[3] < 90, "{late:?}");
    assert_eq!(late.iter().sum::<u64>(), 400);
    assert_eq!(shares("1h")[3], 0);
}
