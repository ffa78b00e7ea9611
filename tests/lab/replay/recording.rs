//! `usher replay --recording`.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use super::support::{DEFAULT, Files, json as replayed, number, text, usher};
use crate::load::{assert_requests, load};
use crate::support::log::Log;
use crate::support::nobody;
use crate::support::usher::Usher;

/// Keeps away from servers with the label `draining`.
const LABELS: &str = "
plugins:
- type: label-selector-filter
  parameters: {matchExpressions: [{key: draining, operator: DoesNotExist}]}
- {type: random-picker}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: label-selector-filter}, {pluginRef: random-picker}]}
";

fn line(kind: &str, value: &Value) -> String {
    json!({kind: value}).to_string() + "\n"
}

fn header() -> String {
    let header = json!({"format": "usher-recording", "version": 1, "usher": "0", "run": "r", "started_unix_ms": 0,
        "pool": "p", "block_tokens": 32, "token_bytes": 4});
    line("header", &header)
}

fn endpoint(id: u32, labels: &Value) -> String {
    let endpoint = json!({"at_us": 0, "id": id, "name": format!("default/pod-{id}"),
        "address": format!("10.0.0.{id}:8000"), "labels": labels});
    line("endpoint", &endpoint)
}

/// A request to the endpoint 0, with a prompt of ten blocks, of which all share the first eight.
fn request(number: u64) -> Value {
    json!({"at_us": number * 50_000, "model": "m", "stream": true, "prompt_tokens": 320,
        "blocks": [[0, 8], [100 + 2 * number, 2]],
        "picks": [{"profile": "default", "is_primary": true, "picks": [{"id": 0}]}],
        "outcome": {"ending": "complete", "status": 200, "first_token_us": 50_000, "total_us": 250_000,
            "prompt_tokens": 300, "cached_tokens": 150, "output_tokens": 21}})
}

fn recording() -> String {
    let requests: String = (0..100).map(|number| line("request", &request(number))).collect();
    header() + &endpoint(0, &json!({})) + &endpoint(1, &json!({"draining": "yes"})) + &requests
}

#[test]
fn report_shows_measured_beside_replayed_latencies() {
    let files = Files::new();
    let path = files.write("recording.jsonl", &recording());
    let labels = files.write("labels.yaml", LABELS);
    let run = replayed(&["--recording", &path, "--config", &labels, "--config", DEFAULT]);
    assert_eq!((&run["requests"], &run["servers"], &run["speed"]), (&100.into(), &2.into(), &1.0.into()));
    let [recorded, labels, default, round_robin] = &run["policies"].as_array().unwrap()[..] else {
        panic!("{run}")
    };
    assert_eq!(recorded["policy"], "recorded");
    assert!((number(&recorded["ttft"]["p50_s"]) - 0.05).abs() < 1e-9);
    assert!((number(&recorded["tpot"]["p99_s"]) - 0.01).abs() < 1e-9);
    assert!((number(&recorded["token_hits"]) - 0.5).abs() < 1e-9, "as the server counts");
    assert_eq!((&recorded["decisions_differ"], &labels["decisions_differ"]), (&0.0.into(), &0.0.into()));
    assert_eq!((&round_robin["decisions_differ"], &default["answered"]), (&0.5.into(), &100.into()));
    // All but the first find the shared blocks.
    assert!((number(&labels["token_hits"]) - 0.8 * 0.99).abs() < 0.01, "{labels}");
    let recording = &run["recording"];
    assert_eq!((&recording["measured"], &recording["unfitted"]), (&100.into(), &Value::Null));
    assert!(number(&recording["tpot_error"]) < 0.1, "{recording}");
}

#[test]
fn report_lists_fitted_and_skipped_constants() {
    let files = Files::new();
    let path = files.write("recording.jsonl", &(recording() + "{\"request\":{\"at_"));
    let report = text(&["--recording", &path, "--config", DEFAULT]);
    assert!(report.contains("\nengines        fitted to 100 responses: "), "{report}");
    assert!(report.contains("\nerror          TTFT "), "{report}");
    assert!(report.contains("the last line is cut short"), "{report}");
    assert!(report.contains("\nrecorded "), "{report}");
    let few = text(&["--recording", &path, "--config", DEFAULT, "--requests", "20"]);
    assert!(few.contains("note: 20 streamed responses have measured times, and a fit"), "{few}");
    let given = ["--prefill-rate=1000", "--decode-step=5ms", "--batch-factor=0", "--gateway-delay=3ms"];
    let given = replayed(&[&["--recording", path.as_str(), "--config", DEFAULT], &given[..]].concat());
    let constants =
        json!({"prefill_rate": 1000.0, "decode_step_ms": 5.0, "batch_factor": 0.0, "delay_ms": 3.0});
    assert_eq!(given["recording"]["constants"], constants);
}

#[test]
fn file_of_another_format_is_a_usage_error_in_a_line() {
    let files = Files::new();
    let good = files.write("good.jsonl", &recording());
    let newer = files.write("newer.jsonl", "{\"header\":{\"format\":\"usher-recording\",\"version\":2}}\n");
    let empty = files.write("empty.jsonl", "");
    let other = files.write("other.jsonl", "{}\n");
    let no_endpoint = files.write("none.jsonl", &(header() + &line("request", &request(0))));
    let late = line("request", &json!({"at_us": u64::MAX, "model": "m"}));
    let late = files.write("late.jsonl", &(recording() + &late));
    let cases: [(&[&str], &str); 10] = [
        (&["--recording", "/dev/zero"], "/dev/zero is no recording: its first line is no header"),
        (&["--recording", &late], "late.jsonl:104: this request comes 5124095576 hours after that of"),
        (&["--recording", &newer], "version 2 of the format, and this usher reads versions up to 1"),
        (&["--recording", &empty], "there is no request in"),
        (&["--recording", &other], "is no recording: its first line is no header"),
        (&["--recording", &no_endpoint], "names no endpoint"),
        (&["--recording", "missing.jsonl"], "cannot read missing.jsonl"),
        (&["--recording", &good, "--trace", "t"], "cannot be used with"),
        (&["--recording", &good, "--workload", "poisson"], "cannot be used with"),
        (&["--recording", &good, "--servers", "2"], "cannot be used with"),
    ];
    for (arguments, expected) in cases {
        let output = usher(&[&["--config", DEFAULT], arguments].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
        let is_of_clap = error.ends_with("\n\nsee `usher replay --help`\n");
        assert!(is_of_clap || error.lines().count() == 1, "{error}");
    }
}

#[test]
fn refused_picks_and_a_damaged_rotated_file_are_reported() {
    let files = Files::new();
    let endpoint = json!({"at_us": 0, "id": 0, "name": "default/pod-0", "address": "10.0.0.1:8000",
        "block_size": 16, "num_blocks": 4});
    let requests: String = (0..100).map(|number| line("request", &request(number))).collect();
    let path = files.write("small.jsonl", &(header() + &line("endpoint", &endpoint) + &requests));
    files.write("small.jsonl.1", "notes\n");
    let report = text(&["--recording", &path, "--config", DEFAULT]);
    assert!(!report.contains("fitted to"), "{report}");
    assert!(report.contains("\nerror          TTFT not known, TPOT not known "), "{report}");
    // Paragraphs are wrapped.
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains("note: the engines refuse 100 of 100 recorded picks, as larger"), "{report}");
    assert!(report.contains("small.jsonl.1 is no recording: its first line is no header"), "{report}");
}

#[tokio::test]
async fn recording_of_a_picker_is_replayable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl").display().to_string();
    let record = format!("--record={path}");
    let endpoints = [nobody(), ([127, 0, 0, 2], nobody().port() ^ 1).into()];
    let mut usher = Usher::start(&endpoints, &[&record, "--secure-serving=false", "--drain-timeout=0"]).await;
    let shape = ["--requests=80", "--concurrency=4", "--stream", "--output-tokens=6", "--tokens=200"];
    assert_requests(&load(usher.address, &shape).await, 80, 0);
    usher.terminate().await;
    let run = tokio::task::spawn_blocking(move || replayed(&["--recording", &path, "--config", DEFAULT]));
    let run = run.await.unwrap();
    assert_eq!((&run["requests"], &run["servers"]), (&80.into(), &2.into()));
    assert_eq!((&run["policies"][0]["answered"], &run["recording"]["measured"]), (&80.into(), &80.into()));
}

#[tokio::test]
async fn a_full_disk_ends_the_recording_and_not_the_picker() {
    let folder = tempfile::tempdir().unwrap();
    let (path, endpoints) = (folder.path().join("recording.jsonl"), folder.path().join("endpoints.json"));
    let entries =
        json!({"endpoints": [{"name": "a", "address": "127.0.0.1", "port": nobody().port().to_string()}]});
    std::fs::write(&endpoints, entries.to_string()).unwrap();
    // No file grows beyond 16 blocks, of 512 bytes or 1,024: a write that would fails, as on a full disk.
    let mut usher = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_usher"), "serve"])
        .args(["--bind-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"])
        .args([
            "--admin-address=off",
            "--zap-encoder=json",
            "--secure-serving=false",
            "--outlier-detection=false",
        ])
        .arg(format!("--endpoints-file={}", endpoints.display()))
        .arg(format!("--record={}", path.display()))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let log = Log::follow("usher", usher.stderr.take().unwrap());
    let serving = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line["message"] == "serving").then(|| line["extproc"].as_str()?.parse::<SocketAddr>().ok())?
    };
    let address = log.find(0, "its address", serving).await;
    let shape = ["--requests=80", "--concurrency=4", "--stream", "--output-tokens=6", "--tokens=200"];
    assert_requests(&load(address, &shape).await, 80, 0);
    log.find(0, "the failure", |line| line.contains("recording interrupted").then_some(())).await;
    // Requests are still served.
    assert_requests(&load(address, &shape).await, 80, 0);
    usher.kill().await.unwrap();
    let path = path.display().to_string();
    let run = tokio::task::spawn_blocking(move || replayed(&["--recording", &path, "--config", DEFAULT]));
    let run = run.await.unwrap();
    let count = run["requests"].as_u64().unwrap();
    assert!((1..80).contains(&count), "{run}");
    assert!(run["recording"]["notes"].to_string().contains("the last line is cut short"), "{run}");
}
