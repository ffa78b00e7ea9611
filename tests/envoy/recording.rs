//! A recording of real traffic, replayed on engines that are fitted to it.

use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use serde_json::{Value, json};
use usher::sim::EngineConfig;

use crate::ORIGINAL_DST;
use crate::support::client::{self, Body, Protocol};
use crate::support::envoy::Envoy;
use crate::support::servers::{SERVERS, Servers};
use crate::support::usher::Usher;

const REQUESTS: usize = 128;

/// A streamed completion whose prompt begins as that of every fourth.
fn completion(number: usize) -> Request<Body> {
    let prompt = format!(
        "{} {}",
        format!("wombat {} ", number % 4).repeat(40),
        format!("quokka {number} ").repeat(100 + 7 * (number % 40))
    );
    let tokens = 8 + number * 7 % 24;
    let usage = json!({"include_usage": true});
    let body = json!({"model": "m", "prompt": prompt, "stream": true, "max_tokens": tokens, "stream_options": usage});
    let request = Request::post("/v1/completions").header("content-type", "application/json");
    request.body(client::full(body.to_string())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_traffic_is_replayed() {
    let engine = EngineConfig {
        prefill_tokens_per_second: 6000.0,
        decode_step: Duration::from_millis(12),
        batch_factor: 0.05,
        ..EngineConfig::default()
    };
    let mut engines = vec![engine; SERVERS];
    engines[SERVERS - 1].slow_down(2.0);
    let servers = Servers::start_with(engines).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    let record = format!("--record={}", path.display());
    let mut usher = Usher::start(&servers.addresses, &[&record, "--outlier-detection=false"]).await;
    let envoy = Envoy::start(ORIGINAL_DST, usher.address, &servers.addresses, &[]).await;
    // Sixteen clients, each with one request after the other.
    let client = async |first: usize| {
        for number in (first..REQUESTS).step_by(16) {
            let response = client::send(envoy.address, Protocol::Http1, completion(number)).await;
            assert_eq!(response.status, 200, "{response:?}");
        }
    };
    join_all((0..16).map(client)).await;
    drop(envoy);
    usher.terminate().await;

    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("wombat") && !text.contains("quokka"));
    let output = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["replay", "--output", "json", "--config", "deploy/config/default.yaml"])
        .args(["--config", "deploy/config/expected-latency.yaml", "--recording"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let replayed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let recording = &replayed["recording"];
    // How near the fit is depends on what else the machine does; that is tested in virtual time.
    println!("{recording:#}");
    assert_eq!((&recording["measured"], &recording["unfitted"]), (&REQUESTS.into(), &Value::Null));
    let policies: Vec<&str> = replayed["policies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|policy| policy["policy"].as_str().unwrap())
        .collect();
    let expected =
        ["recorded", "deploy/config/default.yaml", "deploy/config/expected-latency.yaml", "round-robin"];
    assert_eq!(policies, expected);
    let recorded = &replayed["policies"][0];
    assert_eq!((&recorded["answered"], &replayed["servers"]), (&REQUESTS.into(), &SERVERS.into()));
    assert!(recorded["token_hits"].as_f64().unwrap() > 0.0, "{recorded}");
}
