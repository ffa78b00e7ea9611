//! Cached tokens that engines published, beside those that responses name.

use std::process::Command;

use serde_json::{Value, json};

use super::simulated::{heard, post, simulated};
use super::*;

/// Enough for the doctor to look at.
const REQUESTS: u32 = 24;

/// Sends a request through the picker, and this response back.
async fn relayed(picker: &Picker, request: &Value, respond: impl FnOnce() -> String) {
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions")], false));
    stream.send(body(request.to_string(), true));
    stream.request_headers().await;
    stream.request_body().await;
    stream.send(response_headers(&[(":status", "200"), ("content-type", "application/json")], false));
    stream.response_headers().await;
    stream.send(response_body(respond(), true));
    stream.response_body().await;
}

/// Compared requests, those that were not cached, and those that were not published, once so many were compared.
fn agreement(picker: &Picker, compared: u32) -> [f64; 2] {
    let count = |name: &str, kind: &str| {
        let labels = format!("endpoint=\"default/a\",{kind}plugin_name=\"precise-prefix-cache-producer\"");
        picker.metric(&format!("usher_precise_prefix_{name}_total{{{labels}}}"))
    };
    let end = Instant::now() + Duration::from_secs(30);
    while count("compared", "") != Some(f64::from(compared)) {
        assert!(Instant::now() < end, "{:?} were compared", count("compared", ""));
    }
    ["not_cached", "not_told"].map(|kind| count("mismatches", &format!("kind=\"{kind}\",")).unwrap())
}

/// Finding of `usher doctor` about KV events of this kind, if any.
pub(super) fn finding(picker: &Picker, code: &str) -> Option<String> {
    let url = format!("http://{}", picker.metrics);
    let doctor = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["doctor", "--output=json", "--metrics", &url])
        .env_remove("NAMESPACE")
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == "kv-events").unwrap();
    assert_ne!(check["status"], "skipped", "{check}");
    assert_eq!(doctor.status.code(), Some(i32::from(check["status"] == "wrong")), "{report:#}");
    let findings = check["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["code"] == code)?;
    Some(["what", "fix"].map(|part| found[part].as_str().unwrap()).join(" "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn tokens_of_another_vocabulary_are_detected() {
    for agrees in [true, false] {
        let (servers, at, port) = simulated().await;
        // To the engine four bytes are a token, and one to the other.
        let url = if agrees { format!("http://{at}") } else { Renderer::rendering().url };
        let more = format!(
            ", {{type: token-producer, parameters: {{modelName: m, vllm: {{url: '{url}', timeout: 30s}}}}}}"
        );
        let flag = config(&format!("podDiscoveryConfig: {{socketPort: {port}}}"), &more);
        let picker = Picker::start(&[("a", A, at.port())], &[&flag]).await;
        heard(at);
        let text = "Four bytes are a token. Four of these are a block, and this is a prompt of five.";
        let request = json!({"model": "m", "prompt": text, "max_tokens": 1});
        relayed(&picker, &request, || post(at, "/v1/completions", &request)).await;
        wait(&picker, "known", "a", 2.0);
        wait(&picker, "blocks", "a", 5.0);
        for _ in 0..REQUESTS {
            relayed(&picker, &request, || post(at, "/v1/completions", &request)).await;
        }
        let not_told = if agrees { 0.0 } else { f64::from(REQUESTS) };
        assert_eq!(agreement(&picker, REQUESTS), [0.0, not_told], "{agrees}");
        let found = finding(&picker, "kv-events-disagree");
        assert_eq!(found.is_none(), agrees, "{found:?}");
        let says = |words: &str| found.as_ref().is_none_or(|found| found.contains(words));
        assert!(says("default/a by precise-prefix-cache-producer: "), "{found:?}");
        assert!(says("in 24 of 24 requests") && says("tokenizer and chat template"), "{found:?}");
        servers.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_side_cache_separation_is_detected() {
    let mut a = Engine::at(A, 0).await;
    let flag = config(&format!("podDiscoveryConfig: {{socketPort: {}}}", a.port), "");
    let picker = Picker::start(&[("a", A, 8000)], &[&flag]).await;
    connected(&picker, &mut a, "a").await;
    a.store(None, 0..20).await;
    wait(&picker, "blocks", "a", 5.0);
    let request = json!({"model": "m", "prompt": (0..21).collect::<Vec<_>>()});
    let response = |cached: u32| {
        let details = json!({"cached_tokens": cached});
        let usage = json!({"prompt_tokens": 21, "completion_tokens": 1, "prompt_tokens_details": details});
        json!({"model": "m", "usage": usage}).to_string()
    };
    // Part of the prompt was evicted while the request waited, or nothing is said of it.
    for cached in [20, 16, 12] {
        relayed(&picker, &request, || response(cached)).await;
    }
    relayed(&picker, &request, || json!({"model": "m", "usage": {"prompt_tokens": 21}}).to_string()).await;
    assert_eq!(agreement(&picker, 3), [0.0, 0.0]);
    for _ in 0..REQUESTS {
        relayed(&picker, &request, || response(0)).await;
    }
    assert_eq!(agreement(&picker, REQUESTS + 3), [f64::from(REQUESTS), 0.0]);
    let found = finding(&picker, "kv-events-disagree").unwrap();
    assert!(found.contains("in 24 of 27 requests") && found.contains("cache salts"), "{found}");
    // Where it may hold more, what is cached beside its events says nothing, and what they show does.
    a.lose(None, 50..54).await;
    a.store(None, 0..8).await;
    wait(&picker, "known", "a", 1.0);
    wait(&picker, "blocks", "a", 2.0);
    relayed(&picker, &request, || response(20)).await;
    a.store(Some(7), 8..20).await;
    wait(&picker, "blocks", "a", 5.0);
    for cached in [20, 0] {
        relayed(&picker, &request, || response(cached)).await;
    }
    assert_eq!(agreement(&picker, REQUESTS + 5), [f64::from(REQUESTS + 1), 0.0]);
}
