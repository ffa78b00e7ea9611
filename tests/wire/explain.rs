//! Decisions that were made are explained: on the admin port, and by `usher explain`.

use std::process::Stdio;

use envoy_types::pb::envoy::service::ext_proc::v3::ProtocolConfiguration;
use serde_json::Value;
use tokio::process::Command;

use crate::support::*;

const TWO: [(&str, &str, u16); 2] = [("a", "127.0.0.1", 1), ("b", "127.0.0.2", 1)];

/// Sends a request with this id, and its response with the usage of a stream. Returns the destination.
async fn exchange(picker: &Picker, id: &str, status: &str) -> String {
    exchange_of(picker, id, status, r#"{"model":"m","prompt":"a secret","stream":true,"max_tokens":9}"#).await
}

/// The same with this body.
pub(crate) async fn exchange_of(picker: &Picker, id: &str, status: &str, text: &str) -> String {
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions"), ("x-request-id", id)], false));
    stream.send(body(text, true));
    let destination = stream.request_headers().await.destination().to_owned();
    stream.request_body().await;
    stream.send(response_headers(&[(":status", status), ("content-type", "text/event-stream")], false));
    stream.response_headers().await;
    let event = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
    stream.send(response_body(event, false));
    stream.response_body().await;
    let usage = r#"{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}"#;
    stream
        .send(response_body(format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n"), true));
    stream.response_body().await;
    destination
}

fn get(picker: &Picker, query: &str) -> (String, String) {
    let response = Picker::get(picker.admin, &format!("/decisions{query}"));
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}

pub(crate) fn page(picker: &Picker, query: &str) -> Value {
    let (status, body) = get(picker, query);
    assert_eq!(status, "200", "{query}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Runs `usher explain`, and returns its exit code, output and errors.
pub(crate) async fn explain(admin: &str, flags: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["explain", "--admin", admin])
        .args(flags)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_is_recorded_with_its_scores_and_its_end() {
    let picker = Picker::start(&TWO, &[]).await;
    let destination = exchange(&picker, "r-1", "200").await;
    let shown = page(&picker, "?id=r-1");
    assert_eq!(
        (&shown["version"], &shown["kept"], &shown["recording"]),
        (&1.into(), &1.into(), &true.into())
    );
    let decision = &shown["decisions"][0];
    assert_eq!((&decision["model"], &decision["max_output_tokens"]), (&"m".into(), &9.into()));
    assert_eq!((&decision["endpoints"], &decision["candidates"]), (&2.into(), &2.into()));
    let profile = &decision["profiles"][0];
    assert_eq!((&profile["picks"][0], &profile["primary"]), (&destination.as_str().into(), &true.into()));
    let scorers: Vec<_> = profile["scorers"].as_array().unwrap().iter().map(|each| &each["scorer"]).collect();
    assert_eq!(scorers, ["queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer"]);
    for scored in profile["scored"].as_array().unwrap() {
        let scores = scored["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap());
        let total: f64 = scores.zip([2.0, 2.0, 3.0]).map(|(score, weight)| score * weight).sum();
        assert!((total - scored["total"].as_f64().unwrap()).abs() < 1e-4, "{scored}");
    }
    let outcome = &decision["outcome"];
    assert_eq!((&outcome["status"], &outcome["ending"]), (&200.into(), &"complete".into()), "{outcome}");
    assert_eq!((&outcome["output_tokens"], &outcome["cached_tokens"]), (&3.into(), &4.into()));
    assert!(outcome["first_token"].is_f64() && outcome["per_token"].is_f64(), "{outcome}");
    assert_eq!(decision["detailed"][0]["in_flight"], 0, "a request doesn't count itself");
    assert!(!shown.to_string().contains("secret"));

    let (code, text, _) = explain(&picker.admin.to_string(), &["r-1"]).await;
    assert_eq!(code, 0);
    assert!(text.starts_with("request        r-1\n"), "{text}");
    assert!(text.contains(&format!("\nsent to        {destination} (default/")), "{text}");
    assert!(
        text.contains("\nresponse       status 200 from ") && text.contains("4 of 7 prompt tokens"),
        "{text}"
    );
    assert!(text.contains("queue-scorer") && text.contains("picked"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_are_selected_and_followed() {
    let picker = Picker::start(&TWO, &[]).await;
    exchange(&picker, "r-1", "200").await;
    let first = page(&picker, "")["sequence"].as_u64().unwrap();
    let destination = exchange(&picker, "r-2", "503").await;
    let ids = |query: &str| -> Vec<String> {
        let page = page(&picker, query);
        let decisions = page["decisions"].as_array().unwrap().iter();
        decisions.map(|decision| decision["request_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(""), ["r-1", "r-2"]);
    assert_eq!(ids("?last=1"), ["r-2"]);
    assert_eq!(ids("?failed"), ["r-2"]);
    assert_eq!(ids(&format!("?since={first}")), ["r-2"]);
    assert_eq!(ids("?model=m&last=5"), ["r-1", "r-2"]);
    assert_eq!(ids("?model=n"), Vec::<String>::new());
    assert!(ids(&format!("?endpoint={destination}")).contains(&"r-2".to_owned()));
    assert_eq!(ids("?slow"), Vec::<String>::new());
    assert_eq!(ids("?number=2"), ["r-2"]);
    assert_eq!(ids("?search=R-"), ["r-1", "r-2"]);
    assert_eq!(ids(&format!("?search={destination}&failed")), ["r-2"]);
    assert_eq!(ids("?search=nobody"), Vec::<String>::new());
    let brief = &page(&picker, "?brief&last=1")["decisions"][0];
    assert_eq!((&brief["number"], &brief["picked"]), (&2.into(), &destination.as_str().into()));
    assert_eq!((&brief["outcome"]["status"], &brief["failed"]), (&503.into(), &true.into()));
    assert!(brief.get("profiles").is_none() && brief.get("detailed").is_none());
    let (code, text, _) = explain(&picker.admin.to_string(), &["--last", "2"]).await;
    assert_eq!((code, text.lines().count()), (0, 3), "{text}");
    let (_, json, _) = explain(&picker.admin.to_string(), &["r-2", "--output", "json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["decisions"][0]["outcome"]["status"], 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_recorded_with_their_reason() {
    let picker = Picker::start_with("", &["--allow-empty-endpoints"]).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions"), ("x-request-id", "r-3")], false));
    stream.send(body(PROMPT, true));
    stream.immediate().await;
    let decision = &page(&picker, "?failed")["decisions"][0];
    assert_eq!((&decision["request_id"], &decision["refusal"]["status"]), (&"r-3".into(), &503.into()));
    let (code, text, _) = explain(&picker.admin.to_string(), &[]).await;
    assert!(code == 0 && text.contains("refused        status 503 (rejected-no-endpoints)"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_never_scheduled_are_recorded() {
    let picker = Picker::start(&TWO, &["--max-request-body-bytes=1000"]).await;
    for (id, sent, status) in [("cut", "{\"prompt\": \"a secret", 400), ("large", &"x".repeat(1001), 413)] {
        let mut stream = picker.stream().await;
        stream.send(headers(&[(":path", "/v1/completions"), ("x-request-id", id)], false));
        stream.send(body(sent, true));
        stream.immediate().await;
        let shown = page(&picker, &format!("?id={id}"));
        assert_eq!(shown["matched"], 1, "{shown}");
        let decision = &shown["decisions"][0];
        assert_eq!((&decision["refusal"]["status"], &decision["failed"]), (&status.into(), &true.into()));
        assert!(decision["profiles"].as_array().unwrap().is_empty(), "{decision}");
        assert!(!shown.to_string().contains("secret"));
        let (code, text, _) = explain(&picker.admin.to_string(), &[id]).await;
        assert!(code == 0 && text.contains(&format!("refused        status {status}")), "{text}");
    }
    assert_eq!(page(&picker, "")["kept"], 2, "once each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_ids_and_queries_are_harmless() {
    let picker = Picker::start(&TWO, &[]).await;
    let hostile = format!("<script>\"'&{}", "x".repeat(900));
    exchange(&picker, &hostile, "200").await;
    let id = page(&picker, "")["decisions"][0]["request_id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("<script>\"'&xx") && id.chars().count() == 129, "{id}");
    // One that is no name at all is replaced.
    exchange(&picker, &"y".repeat(3000), "200").await;
    assert_eq!(page(&picker, "?last=1")["decisions"][0]["request_id"].as_str().unwrap().len(), 36);
    let (code, text, _) = explain(&picker.admin.to_string(), &[&hostile]).await;
    assert!(code == 0 && text.starts_with("request        <script>"), "{text}");
    for query in
        ["?last=0", "?x=1", "?id=%zz", "?since=a", "?%3Cb%3E=1", &format!("?id={}", "y".repeat(5000))]
    {
        let (status, body) = get(&picker, query);
        assert!(
            status == "400" && body.len() < 200 && !body.contains("<b>\u{1b}"),
            "{query}: {status} {body}"
        );
    }
    let (code, _, error) = explain(&picker.admin.to_string(), &["\u{1b}[31m<b>"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("is kept; there are 2 records") && !error.contains('\u{1b}'), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_errors_name_their_reason() {
    let picker = Picker::start(&TWO, &["--decision-records=0"]).await;
    exchange(&picker, "r-1", "200").await;
    assert_eq!(page(&picker, "")["recording"], false);
    let (code, _, error) = explain(&picker.admin.to_string(), &["r-1"]).await;
    assert!(code == 1 && error.contains("--decision-records=0") && error.lines().count() == 1, "{error}");
    let (code, _, error) = explain(&picker.metrics.to_string(), &[]).await;
    assert!(code == 1 && error.contains("responds with 404"), "{error}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, _, error) = explain(&closed.to_string(), &[]).await;
    assert!(code == 1 && error.contains("--admin-address of a running usher serve"), "{error}");
    let (code, _, error) = explain("nowhere://x", &[]).await;
    assert!(code == 2 && error.contains("--admin"), "{error}");
}

#[tokio::test]
async fn request_file_is_explained_without_a_picker() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let request = file("request.json", r#"{"model":"m","prompt":"a secret"}"#);
    let config = file(
        "config.yaml",
        "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: by-label-selector, name: only-gold, parameters: {matchLabels: {tier: gold}}}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: only-gold
  - {pluginRef: queue-scorer, weight: 2}
",
    );
    let endpoints = file(
        "endpoints.yaml",
        "
endpoints:
- {name: a, address: 10.0.0.1, port: '8000', labels: {tier: gold}}
- {name: b, address: 10.0.0.2, port: '8000'}
",
    );
    let flags = ["--request", &request, "--config", &config, "--endpoints-file", &endpoints];
    let (code, text, error) = explain("127.0.0.1:1", &flags).await;
    assert_eq!(code, 0, "{error}");
    assert!(
        text.contains("\nsent to        10.0.0.1:8000 (default/a), the only one that was left\n"),
        "{text}"
    );
    assert!(text.contains("dropped by only-gold") && text.contains("only-gold left 1 of 2"), "{text}");
    assert!(!text.contains("secret"));
    let empty = file("empty.json", "");
    let (code, _, error) =
        explain("127.0.0.1:1", &["--request", &empty, "--endpoints-file", &endpoints]).await;
    assert!(code == 2 && error.contains("--request") && error.lines().count() == 1, "{error}");
    let (code, _, error) = explain("127.0.0.1:1", &["--request", &request]).await;
    assert!(code == 2 && error.contains("--endpoints-file"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_responses_do_not_count_as_aborted() {
    const NONE: i32 = 0;
    const FULL_DUPLEX: i32 = 4;
    let picker = Picker::start(&TWO, &[]).await;
    for (id, response_body_mode) in [("hidden", NONE), ("shown", FULL_DUPLEX)] {
        let mut stream = picker.stream().await;
        let mut first = headers(&[(":path", "/v1/completions"), ("x-request-id", id)], false);
        first.protocol_config = Some(ProtocolConfiguration {
            request_body_mode: FULL_DUPLEX,
            response_body_mode,
            ..ProtocolConfiguration::default()
        });
        stream.send(first);
        stream.send(body(r#"{"model":"m","prompt":"a"}"#, true));
        stream.request_headers().await;
        stream.request_body().await;
        stream.send(response_headers(&[(":status", "200")], false));
        stream.response_headers().await;
        drop(stream);
    }
    let ending = async |id: &str| loop {
        let page = page(&picker, &format!("?id={id}"));
        let outcome = &page["decisions"][0]["outcome"];
        if outcome.is_object() {
            return outcome["ending"].as_str().unwrap().to_owned();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(ending("hidden").await, "not shown by the gateway");
    assert_eq!(ending("shown").await, "cut off");
    let failed = page(&picker, "?failed");
    assert_eq!(failed["decisions"].as_array().unwrap().len(), 1, "{failed}");
}
