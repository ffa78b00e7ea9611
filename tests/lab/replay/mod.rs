//! `usher replay` as a program.

mod prediction;
mod recording;
mod sizes;
mod suite;
mod support;
mod virtual_time;
mod worlds;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use support::{DEFAULT, Files, TRACE, json, number, text, usher};

/// Reads what is in flight, and leaves the choice to chance.
const RANDOM: &str = "
plugins:
- {type: active-request-scorer, parameters: {idleThreshold: 1}}
- {type: token-load-scorer}
- {type: weighted-random-picker}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
  - pluginRef: token-load-scorer
  - pluginRef: weighted-random-picker
";

/// Keeps away from servers with the label `draining`.
const LABELS: &str = "
plugins:
- type: label-selector-filter
  parameters: {matchExpressions: [{key: draining, operator: DoesNotExist}]}
- {type: random-picker}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: label-selector-filter}, {pluginRef: random-picker}]}
";

/// All configurations that are shipped, whatever plugins they use.
fn shipped() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/config");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = files.map(|path| path.to_str().unwrap().to_owned()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_seed_gives_one_result() {
    let files = Files::new();
    let random = files.write("random.yaml", RANDOM);
    let mut policies = vec!["--baseline", "random", "--config-file", &random];
    let shipped = shipped();
    policies.extend(shipped.iter().flat_map(|path| ["--config-file", path.as_str()]));
    let run = |seed: &str| {
        let workload = ["--workload", "half-shared", "--requests", "100", "--output", "json", "--seed", seed];
        text(&[&policies[..], &workload[..]].concat())
    };
    let first = run("1");
    assert_eq!(first, run("1"));
    let compared: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(compared["policies"].as_array().unwrap().len(), shipped.len() + 3);
    assert_ne!(first, run("2"));
}

#[test]
fn request_without_prompt_or_output_is_answered() {
    let files = Files::new();
    let trace = files
        .write("trace.jsonl", "{\"timestamp\":7,\"input_length\":0,\"output_length\":0,\"hash_ids\":[]}\n");
    let run = json(&["--trace", &trace, "--config-file", DEFAULT, "--baseline", "round-robin"]);
    for policy in run["policies"].as_array().unwrap() {
        assert_eq!((policy["answered"].as_u64(), policy["decisions_differ"].is_number()), (Some(1), true));
        // It came at once, so there is no time to divide by.
        assert_eq!(policy["goodput"]["per_second"], 0.0);
    }
}

#[test]
fn same_configuration_decides_alike() {
    let files = Files::new();
    let random = files.write("random.yaml", RANDOM);
    let run = json(&[
        "--config-file",
        &random,
        "--config-file",
        &random,
        "--baseline",
        "round-robin",
        "--workload",
        "poisson",
        "--requests",
        "200",
        "--servers",
        "4",
    ]);
    let policies = run["policies"].as_array().unwrap();
    assert_eq!(policies[0], policies[1], "chance is the same for all");
    assert_eq!(policies[1]["decisions_differ"], 0.0);
    let differ = number(&policies[2]["decisions_differ"]);
    assert!((0.5..1.0).contains(&differ), "three in four are elsewhere by chance: {differ}");
    let shares: Vec<&Value> =
        policies[2]["servers"].as_array().unwrap().iter().map(|server| &server["requests"]).collect();
    assert_eq!(shares, [50, 50, 50, 50]);
}

#[test]
fn refused_requests_are_no_goodput() {
    let run = json(&[
        "--config-file",
        DEFAULT,
        "--baseline",
        "random",
        "--workload",
        "bursts",
        "--requests",
        "640",
        "--utilization",
        "3",
        "--servers",
        "2",
        "--max-running",
        "4",
        "--max-waiting",
        "4",
        "--ttft-limit",
        "1h",
        "--tpot-limit",
        "1h",
    ]);
    assert!((number(&run["utilization"]) - 3.0).abs() < 1e-6);
    for policy in run["policies"].as_array().unwrap() {
        let [answered, refused] = ["answered", "refused"].map(|name| policy[name].as_u64().unwrap());
        assert_eq!(answered + refused, 640);
        assert!(answered >= 80 && refused > 300, "{answered} answered, {refused} refused");
        let refusals = policy["refusals"].as_object().unwrap();
        let reported: u64 = refusals.values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(reported, refused);
        assert_eq!(refusals.keys().collect::<Vec<_>>(), ["429 by the server: the waiting queue is full"]);
        // With so much time, whatever was answered was in time.
        assert_eq!(policy["goodput"]["requests"], answered);
        assert!((number(&policy["goodput"]["share"]) - answered as f64 / 640.0).abs() < 1e-9);
        let by_server = policy["servers"].as_array().unwrap().iter();
        assert_eq!(by_server.map(|server| server["requests"].as_u64().unwrap()).sum::<u64>(), answered);
    }
}

#[test]
fn goodput_depends_on_both_limits() {
    let share = |ttft: &str, tpot: &str| {
        let limits = ["--ttft-limit", ttft, "--tpot-limit", tpot];
        let run = ["--baseline", "round-robin", "--workload", "poisson", "--requests", "100"];
        number(&json(&[&run[..], &limits[..]].concat())["policies"][0]["goodput"]["share"])
    };
    assert_eq!([share("1us", "1h"), share("1h", "1us"), share("1h", "1h")], [0.0, 0.0, 1.0]);
    let [prompt, soon, both] = [share("100ms", "1h"), share("1h", "10ms"), share("100ms", "10ms")];
    assert!(prompt > 0.1 && prompt < 0.9, "{prompt}");
    assert!(soon > 0.1 && soon < 0.95, "{soon}");
    assert!(both < prompt.min(soon), "{both} of {prompt} and {soon}");
}

#[test]
fn hidden_targets_still_judge_requests() {
    let classes = ["--latency-class", "200ms/15ms", "--latency-class", "1h/1h", "--latency-class", "1us/1h"];
    let workload = ["--workload", "poisson", "--requests", "200", "--baseline", "round-robin"];
    let run = |more: &[&str]| json(&[&workload[..], &classes[..], more].concat());
    let shown = run(&[]);
    let policy = &shown["policies"][0];
    let of = |key: &str| -> Vec<f64> {
        policy["classes"].as_array().unwrap().iter().map(|class| number(&class[key])).collect()
    };
    assert_eq!(of("ttft_limit_s"), [0.000_001, 0.2, 3600.0]);
    assert_eq!(of("requests").iter().sum::<f64>(), 200.0);
    let share = of("share");
    assert!(share[0] == 0.0 && share[1] > 0.02 && share[1] < 0.98 && share[2] == 1.0, "{share:?}");
    assert_eq!(run(&["--hide-targets"])["policies"], shown["policies"], "in turns as ever");
    let table = text(&[&workload[..], &classes[..]].concat());
    let line = table.lines().find(|line| line.starts_with("good of the class of")).unwrap();
    assert!(line.contains("0.2 s, 15 ms") && line.ends_with("3600 s, 3600000 ms"), "{line}");
}

#[test]
fn header_targets_are_sent_to_the_picker() {
    let config = "deploy/config/expected-latency.yaml";
    let classes = ["--latency-class", "1s/20ms", "--latency-class", "1h/1h"];
    let workload = ["--workload", "poisson", "--requests", "400", "--config-file", config];
    let differ = |more: &[&str]| {
        let run = json(&[&workload[..], &classes[..], more].concat());
        run["policies"][0]["servers"].clone()
    };
    assert_ne!(differ(&[]), differ(&["--hide-targets"]));
}

#[test]
fn table_lists_ignored_features_once() {
    let arguments = ["--trace", TRACE, "--requests", "40", "--speed", "2", "--config-file", DEFAULT];
    let files = Files::new();
    let found = "plugins: [{type: queue-scorer}, {type: file-discovery, parameters: {path: a}}]
dataLayer: {discovery: {pluginRef: file-discovery}}
";
    let found = files.write("found.yaml", found);
    let others =
        ["--config-file", "deploy/config/lora.yaml", "--config-file", &found, "--baseline", "random"];
    let table = text(&[&arguments[..], &others[..]].concat());
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("requests       tests/data/mooncake.jsonl: 40 in "), "{table}");
    assert!(lines[0].ends_with(" s, 2.00 times as fast"), "{table}");
    assert!(lines[1].starts_with("servers        8, asked for "), "{table}");
    let columns = |line: &str| {
        let parts: Vec<String> = line.split("  ").map(|part| part.trim().to_owned()).collect();
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("|")
    };
    assert_eq!(columns(lines[3]), "TTFT, s|TPOT, ms|E2E, s", "{table}");
    assert_eq!(columns(lines[4]), "p50|p90|p99|p50|p90|p99|p90", "{table}");
    assert_eq!(columns(lines[11]), "good|per s|hits|busiest|differ|refused", "{table}");
    let legend = "\nE2E: until the last token. good: TTFT of 2 s or less and TPOT of 50 ms or less;\nper s: ";
    assert!(table.contains(legend), "{table}");
    let names = ["default.yaml", "lora.yaml", "found.yaml", "random", "round-robin"];
    for (line, name) in lines[5..10].iter().chain(&lines[12..17]).zip(names.iter().cycle()) {
        assert!(line.starts_with(name), "{table}");
    }
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{table}");
    // Sentences are broken at 80 columns.
    let sentences = table.replace('\n', " ");
    assert_eq!(sentences.matches("file-discovery is ignored").count(), 1, "{table}");
    let idle = "note: no request asks for an adapter, so 'lora-affinity-scorer' never acts (lora.yaml)";
    assert_eq!(sentences.matches(idle).count(), 1, "{table}");
}

#[test]
fn attributes_without_a_source_are_named() {
    let files = Files::new();
    let hot = files.write(
        "hot.yaml",
        "
plugins:
- type: metrics-data-source
- type: core-metrics-extractor
  parameters:
    engineConfigs: [{name: vllm, customMetrics: [{attributeKey: heat, metricSpec: gpu_heat}]}]
- {type: endpoint-attribute-scorer, parameters: {attributeKey: heat, algorithm: {type: linear_lower_is_better}}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: endpoint-attribute-scorer}]}
dataLayer:
  sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]
",
    );
    let run = json(&["--config-file", &hot, "--workload", "poisson", "--requests", "10"]);
    let notes = run["notes"].as_array().unwrap();
    let about = |note: &&Value| note["text"].as_str().unwrap().contains("attribute 'heat' has no value");
    let note = notes.iter().find(about).unwrap_or_else(|| panic!("{notes:?}"));
    assert_eq!(note["policies"].as_array().unwrap().len(), 1);
}

#[test]
fn ignored_flow_control_is_noted() {
    let run = json(&[
        "--config-file",
        "deploy/config/flow-control.yaml",
        "--workload",
        "poisson",
        "--requests",
        "10",
    ]);
    let notes = run["notes"].as_array().unwrap();
    let about = |note: &Value| note["text"].as_str().unwrap().starts_with("flow control is left out");
    assert!(notes.iter().any(about), "{notes:?}");
}

#[test]
fn disaggregated_servers_share_the_work() {
    let files = Files::new();
    let servers = files.write(
        "servers.yaml",
        "
servers:
- {name: prefill, count: 2, labels: {llm-d.ai/role: prefill, topology.kubernetes.io/zone: a}}
- {name: decode, count: 2, labels: {llm-d.ai/role: decode, topology.kubernetes.io/zone: a}}
",
    );
    let run = json(&[
        "--config-file",
        "deploy/config/pd-topology.yaml",
        "--baseline",
        "random",
        "--servers-file",
        &servers,
        "--workload",
        "poisson",
        "--requests",
        "100",
        "--utilization",
        "0.3",
    ]);
    let [split, whole] = [0, 1].map(|position: usize| &run["policies"][position]);
    assert_eq!((number(&split["prefilled_elsewhere"]), number(&whole["prefilled_elsewhere"])), (1.0, 0.0));
    let computed = |policy: &Value| -> Vec<bool> {
        let servers = policy["servers"].as_array().unwrap();
        servers.iter().map(|server| server["computed_tokens"].as_u64().unwrap() > 0).collect()
    };
    assert_eq!(computed(split), [true, true, false, false]);
    assert_eq!(computed(whole), [true; 4], "a baseline knows no roles");
    assert!(number(&split["busiest_by_mean"]) < 2.0, "of those that are there for it");
}

#[test]
fn servers_of_a_file_have_labels_and_their_own_speed() {
    let files = Files::new();
    let servers = files.write(
        "servers.yaml",
        "servers:\n- {count: 2}\n- {name: slow, slower: 4}\n- {name: leaving, labels: {draining: soon}}\n",
    );
    let labels = files.write("labels.yaml", LABELS);
    let run = json(&[
        "--config-file",
        &labels,
        "--servers-file",
        &servers,
        "--workload",
        "poisson",
        "--requests",
        "200",
        "--utilization",
        "0.3",
    ]);
    let servers = run["policies"][0]["servers"].as_array().unwrap();
    let names: Vec<&Value> = servers.iter().map(|server| &server["name"]).collect();
    assert_eq!(names, ["server-0", "server-1", "slow", "leaving"]);
    let shares: Vec<u64> = servers.iter().map(|server| server["requests"].as_u64().unwrap()).collect();
    assert!(shares[..3].iter().all(|share| *share > 30) && shares[3] == 0, "{shares:?}");
}

#[test]
fn chat_repeats_the_trace_with_other_texts() {
    let files = Files::new();
    let row = |at: u64, blocks: &str| {
        format!("{{\"timestamp\":{at},\"input_length\":1024,\"output_length\":4,\"hash_ids\":{blocks}}}\n")
    };
    let trace = files.write("trace.jsonl", &(row(0, "[1,2]") + &row(1000, "[1,3]")));
    let run = |requests: &str| {
        json(&[
            "--workload",
            "chat",
            "--trace",
            &trace,
            "--requests",
            requests,
            "--utilization",
            "0.1",
            "--servers",
            "1",
            "--baseline",
            "round-robin",
        ])
    };
    let hits = |run: &Value| number(&run["policies"][0]["token_hits"]);
    let (once, often) = (run("2"), run("20"));
    assert_eq!((once["requests"].as_u64(), often["requests"].as_u64()), (Some(2), Some(20)));
    // Of two prompts of 1,024 tokens, 512 are found, in every round anew.
    assert_eq!((hits(&once), hits(&often)), (0.25, 0.25));
}

#[test]
fn input_errors_name_the_file() {
    let files = Files::new();
    let broken = files.write("broken.yaml", "plugins:\n- {type: no-such-scorer}\n");
    let trace = files.write(
        "trace.jsonl",
        "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}\nhello\n",
    );
    let servers = files.write("servers.yaml", "servers:\n- {slower: -1}\n");
    let together = files.write(
        "together.jsonl",
        "{\"timestamp\":5,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n",
    );
    let month = files.write(
        "month.jsonl",
        "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n{\"timestamp\":9000000000,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n",
    );
    let poisson = ["--workload", "poisson", "--requests", "10"];
    let random = ["--baseline", "random"];
    let table: [(&[&str], &[&str]); 24] = [
        (
            &[&random[..], &poisson[..], &["--latency-class", "1s"]].concat(),
            &["--latency-class", "500ms/25ms"],
        ),
        (&[&random[..], &poisson[..], &["--latency-class", "0/1s"]].concat(), &["longer than 0"]),
        (&[&random[..], &poisson[..], &["--hide-targets"]].concat(), &["--latency-class"]),
        (&[&poisson[..]].concat(), &["no policy to replay", "--config-file", "--baseline"]),
        (
            &[&random[..], &["--trace", TRACE, "--rate", "2"]].concat(),
            &["--rate is requests per second", "give --speed"],
        ),
        (&random, &["--trace", "--workload"]),
        (&[&poisson[..], &["--config-file", &broken]].concat(), &["broken.yaml:2:10", "no-such-scorer"]),
        (&[&poisson[..], &["--config-file", "/nowhere.yaml"]].concat(), &["/nowhere.yaml", "check the path"]),
        (&[&random[..], &["--trace", "/nowhere.jsonl"]].concat(), &["/nowhere.jsonl", "trace"]),
        (
            &[&random[..], &["--trace", &trace]].concat(),
            &["trace.jsonl: line 2: expected value at column 1;"],
        ),
        (&[&random[..], &["--trace", TRACE, "--speed", "0"]].concat(), &["--speed", "above 0"]),
        (
            &[&random[..], &["--trace", TRACE, "--speed", "2", "--utilization", "1"]].concat(),
            &["--speed", "--utilization"],
        ),
        (&[&random[..], &poisson[..], &["--speed", "2"]].concat(), &["--speed", "--workload"]),
        (&[&random[..], &poisson[..], &["--trace", TRACE]].concat(), &["poisson", "--trace", "chat"]),
        (
            &[&random[..], &poisson[..], &["--servers", "2", "--servers-file", &servers]].concat(),
            &["--servers", "--servers-file"],
        ),
        (&[&random[..], &poisson[..], &["--servers", "0"]].concat(), &["--servers"]),
        (
            &[&random[..], &poisson[..], &["--servers-file", &servers]].concat(),
            &["servers.yaml:2:12", "slower"],
        ),
        (
            &[&random[..], &["--workload", "slow-server", "--servers-file", &servers]].concat(),
            &["slow-server", "--servers-file"],
        ),
        (&[&random[..], &poisson[..], &["--jitter", "2"]].concat(), &["jitter"]),
        (
            &[&random[..], &["--trace", &together, "--utilization", "1"]].concat(),
            &["--utilization", "at once"],
        ),
        (&[&random[..], &["--trace", &month]].concat(), &["2500 hours", "720"]),
        (
            &[&random[..], &["--workload", "conversations", "--utilization", "0.5"]].concat(),
            &["--utilization", "--users"],
        ),
        (&[&random[..], &["--suite", "--cases", "chess"]].concat(), &["chess", "distinct-bursts"]),
        (&[&random[..], &["--suite", "--utilizations", "0"]].concat(), &["--utilizations", "above 0"]),
    ];
    for (arguments, parts) in table {
        let Output { status, stdout, stderr } = usher(arguments);
        let line = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{arguments:?}: {line}");
        let is_of_clap = line.ends_with("\n\nsee `usher replay --help`\n");
        assert!(is_of_clap || line.lines().count() == 1, "{arguments:?}: {line}");
        for part in parts {
            assert!(line.contains(part), "{arguments:?}: no {part} in {line}");
        }
    }
}

#[test]
fn page_matches_the_output_of_its_command() {
    let page = include_str!("../../../docs/guide/replay.md");
    let command: String =
        page.split("    usher replay ").nth(1).unwrap().split("\n\n").next().unwrap().replace("\\\n", "");
    let shown = page.split("```\n").nth(1).unwrap();
    let arguments: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(text(&arguments).trim_end(), shown.trim_end());
}
