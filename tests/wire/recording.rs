//! `usher serve --record`: what a picker writes about the requests that pass.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::*;

const TWO: [(&str, &str, u16); 2] = [("a", "127.0.0.1", 1), ("b", "127.0.0.2", 1)];

/// Words of prompts, names and headers that must not be in a recording.
const SECRETS: [&str; 5] = ["wombat", "quokka", "tenant-of-mine", "session-of-mine", "sk-credential"];

fn recording() -> (tempfile::TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    let flag = format!("--record={}", path.display());
    (folder, path, flag)
}

/// Values of the lines of one kind.
fn lines(path: &Path, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'));
    let values = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    values.filter_map(|mut line| line.get_mut(kind).map(Value::take)).collect()
}

/// Sends a prompt, and a stream of three tokens as its response.
async fn exchange(picker: &Picker, prompt: &str, flow: &str) -> String {
    let mut stream = picker.stream().await;
    let fields = [
        (":path", "/v1/completions"),
        ("x-llm-d-inference-fairness-id", flow),
        ("x-session-id", SECRETS[3]),
        ("authorization", SECRETS[4]),
        ("x-llm-d-slo-ttft-ms", "500"),
    ];
    stream.send(headers(&fields, false));
    let text = serde_json::json!({"model": "m", "prompt": prompt, "stream": true, "max_tokens": 9});
    stream.send(body(text.to_string(), true));
    let destination = stream.request_headers().await.destination().to_owned();
    stream.request_body().await;
    stream.send(response_headers(&[(":status", "200"), ("content-type", "text/event-stream")], false));
    stream.response_headers().await;
    for word in ["wombat", "quokka"] {
        stream.send(response_body(format!("data: {{\"choices\":[{{\"text\":\"{word}\"}}]}}\n\n"), false));
        stream.response_body().await;
    }
    let usage = r#"{"prompt_tokens":170,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}"#;
    let last = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n");
    stream.send(response_body(last, true));
    stream.response_body().await;
    destination
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_recorded_without_their_text() {
    let (_folder, path, flag) = recording();
    let picker = Picker::start(&TWO, &[&flag, "--decision-records=0"]).await;
    let shared = "wombat ".repeat(64);
    let mut destinations = Vec::new();
    for end in ["quokka".repeat(40), "wombat".repeat(40)] {
        destinations.push(exchange(&picker, &(shared.clone() + &end), SECRETS[2]).await);
    }
    destinations.push(exchange(&picker, &"quokka".repeat(50), "another").await);
    // Its client leaves.
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions")], false));
    stream.send(body(PROMPT, true));
    stream.request_headers().await;
    drop(stream);
    let written = || picker.metric("usher_recording_bytes_total").unwrap() > 0.0;
    while !(written() && lines(&path, "request").len() == 4) {
        tokio::task::yield_now().await;
    }
    assert_eq!(picker.metric("usher_recording_dropped_total"), Some(0.0));
    assert_eq!(picker.metric("usher_recording_errors_total"), Some(0.0));
    drop(picker);

    let header = &lines(&path, "header")[0];
    assert_eq!((&header["format"], &header["version"]), (&"usher-recording".into(), &1.into()));
    let endpoints = lines(&path, "endpoint");
    assert_eq!((endpoints.len(), &endpoints[0]["address"]), (2, &"127.0.0.1:1".into()));
    let requests = lines(&path, "request");
    let blocks: Vec<Vec<(u64, u64)>> = requests
        .iter()
        .take(3)
        .map(|request| serde_json::from_value(request["blocks"].clone()).unwrap())
        .collect();
    // 64 times seven bytes are three and a half blocks of 128.
    assert_eq!((blocks[0].as_slice(), blocks[1][0]), (&[(0, 6)][..], (0, 3)), "{blocks:?}");
    assert!(blocks[2][0].0 > blocks[1][1].0, "{blocks:?}");
    let first = &requests[0];
    assert_eq!(
        (&first["model"], &first["prompt_tokens"], &first["max_output_tokens"]),
        (&"m".into(), &172.into(), &9.into())
    );
    assert_eq!(
        (&first["flow"], &first["session"], &first["ttft_target_ms"]),
        (&0.into(), &0.into(), &500.0.into())
    );
    assert_eq!((&requests[1]["flow"], &requests[2]["flow"]), (&0.into(), &1.into()));
    let address = |id: &Value| {
        let endpoint = endpoints.iter().find(|endpoint| &endpoint["id"] == id).unwrap();
        endpoint["address"].as_str().unwrap().to_owned()
    };
    for (request, destination) in requests.iter().zip(&destinations) {
        let pick = &request["picks"][0]["picks"][0];
        assert_eq!((&address(&pick["id"]), &pick["in_flight"]), (destination, &0.into()));
        assert_eq!((&request["candidates"], &request["endpoints"]), (&2.into(), &2.into()));
        let outcome = &request["outcome"];
        assert_eq!((&outcome["ending"], &outcome["status"]), (&"complete".into(), &200.into()));
        let tokens =
            ["prompt_tokens", "cached_tokens", "output_tokens"].map(|name| outcome[name].as_u64().unwrap());
        assert_eq!(tokens, [170, 4, 3]);
        let [first, total] = ["first_token_us", "total_us"].map(|name| outcome[name].as_u64().unwrap());
        assert!(first <= total);
    }
    assert_eq!(requests[3]["outcome"]["ending"], "cut_off");
    let text = std::fs::read_to_string(&path).unwrap();
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_under_way_and_refused_ones_are_recorded() {
    let (_folder, path, flag) = recording();
    let picker = Picker::start_with("", &["--allow-empty-endpoints", &flag]).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions")], false));
    stream.send(body(PROMPT, true));
    stream.immediate().await;
    drop(picker);
    let refused = &lines(&path, "request")[0];
    assert_eq!((&refused["refusal"]["status"], &refused["outcome"]), (&503.into(), &Value::Null));
    // The next picker goes on in the same file.
    let picker = Picker::start(&TWO, &[&flag]).await;
    exchange(&picker, "wombat", "x").await;
    drop(picker);
    let headers = lines(&path, "header");
    assert_eq!((headers.len(), lines(&path, "request").len()), (2, 2));
    assert_ne!(headers[0]["run"], headers[1]["run"]);
}

#[test]
fn unusable_recording_file_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("notes.txt");
    std::fs::write(&other, "my notes\n").unwrap();
    let missing = folder.path().join("missing/recording.jsonl");
    let rotated = folder.path().join("rotated.jsonl");
    std::fs::write(folder.path().join("rotated.jsonl.1"), "my notes\n").unwrap();
    let cases = [
        (PathBuf::new(), "there is no file name; write --record FILE"),
        (other.clone(), "notes.txt exists and is no recording; name another file"),
        (rotated, "rotated.jsonl.1 exists and is no recording; name another file"),
        (folder.path().to_owned(), "is no regular file"),
        (missing, "cannot be opened: No such file or directory"),
    ];
    for (path, expected) in cases {
        let ports = ["--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--admin-address=off"];
        let output = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args([
                "serve",
                "--bind-address=127.0.0.1",
                "--endpoints-file=/dev/null",
                "--allow-empty-endpoints",
            ])
            .args(ports)
            .arg(format!("--record={}", path.display()))
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        let last = error.lines().last().unwrap_or_default();
        assert!(last.contains("--record: ") && last.contains(expected), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "my notes\n");
}
