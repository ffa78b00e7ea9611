//! An ext_proc server as the target.

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Kind;
use envoy_types::pb::google::protobuf::value::Kind as ValueKind;
use serde_json::{Value, json};

use crate::load::fake::{Fake, Fault};
use crate::load::{assert_requests, load};
use crate::support::nobody;
use crate::support::usher::Usher;

/// Two endpoints that need not be there, as nothing is sent to them.
async fn usher(flags: &[&str]) -> (Usher, [String; 2]) {
    // Their ports differ, as their names are made of them.
    let endpoints = [nobody(), ([127, 0, 0, 2], nobody().port() ^ 1).into()];
    let usher = Usher::start(&endpoints, flags).await;
    (usher, endpoints.map(|endpoint| endpoint.to_string()))
}

fn count(report: &Value, latency: &str) -> u64 {
    let times = &report["latency_ms"][latency];
    let sorted = ["p50", "p90", "p99", "p999", "max"].map(|name| times[name].as_f64().unwrap());
    assert!(sorted.is_sorted() && sorted[0] > 0.0, "{report:#}");
    times["count"].as_u64().unwrap()
}

#[tokio::test]
async fn a_closed_loop_counts_requests_chunks_and_endpoints() {
    // With TLS, and without: each is found out.
    for flags in [&[][..], &["--secure-serving=false"]] {
        let (usher, endpoints) = usher(flags).await;
        let pid = format!("me={}", std::process::id());
        let report = load(
            usher.address,
            &[
                "--requests=60",
                "--concurrency=4",
                "--connections=2",
                "--stream",
                "--output-tokens=5",
                "--pid",
                &pid,
            ],
        )
        .await;
        assert_requests(&report, 60, 0);
        assert_eq!(
            (&report["target"], &report["protocol"]),
            (&json!(usher.address.to_string()), &json!("ext_proc"))
        );
        assert_eq!((&report["chunks"]["sent"], &report["chunks"]["returned"]), (&json!(300), &json!(300)));
        for latency in ["decision", "first_byte", "total"] {
            assert_eq!(count(&report, latency), 60, "{latency}");
        }
        assert_eq!(count(&report, "chunk"), 300);
        assert_eq!(report["errors"], json!({}));
        let picked = endpoints.map(|endpoint| report["endpoints"][endpoint].as_u64().unwrap());
        assert!(picked[0] > 0 && picked[1] > 0 && picked[0] + picked[1] == 60, "{report:#}");
        let rate = report["requests_per_second"].as_f64().unwrap();
        assert!((rate * report["seconds"].as_f64().unwrap() - 60.0).abs() < 1e-6, "{report:#}");
        let body = report["peak_body_bytes_in_flight"].as_u64().unwrap();
        assert!(body > 800 && body < 4 * 2000, "{report:#}");
        let process = &report["processes"][0];
        assert_eq!((&process["name"], &process["pid"]), (&json!("me"), &json!(std::process::id())));
        for number in ["rss_before_mib", "rss_mib", "peak_rss_mib"] {
            assert!(process[number].as_f64().unwrap() > 0.0, "{number} of {report:#}");
        }
        // It only waits, and may have used nothing that can be measured.
        let cpu = process["cpu_seconds"].as_f64().unwrap();
        assert!(
            (process["cpu_ms_per_request"].as_f64().unwrap() - cpu * 1e3 / 60.0).abs() < 1e-9,
            "{report:#}"
        );
        assert!(
            (process["cpu_us_per_chunk"].as_f64().unwrap() - cpu * 1e6 / 300.0).abs() < 1e-9,
            "{report:#}"
        );
        assert_eq!(report.get("late"), None, "a closed loop is never late");
    }
}

#[tokio::test]
async fn open_loop_sends_when_due_and_reports_lateness() {
    let (usher, _) = usher(&[]).await;
    for arrivals in ["even", "poisson"] {
        let report = load(
            usher.address,
            &[
                "--rate=500",
                "--requests=50",
                "--warm-up=20ms",
                "--arrivals",
                arrivals,
                "--chunk-interval=1ms",
                "--stream",
            ],
        )
        .await;
        assert_requests(&report, 50, 0);
        let late = &report["late"];
        let (requests, share) = (late["requests"].as_u64().unwrap(), late["share"].as_f64().unwrap());
        assert_eq!(share, requests as f64 / 50.0, "{report:#}");
        assert!(late["p99_ms"].as_f64() <= late["max_ms"].as_f64(), "{report:#}");
        // 49 times between 50 requests.
        assert!(arrivals == "poisson" || report["seconds"].as_f64().unwrap() >= 0.098, "{report:#}");
    }
}

#[tokio::test]
async fn run_measures_for_its_duration() {
    let (usher, _) = usher(&[]).await;
    let report = load(usher.address, &["--duration=300ms", "--warm-up=100ms", "--concurrency=2"]).await;
    let requests = &report["requests"];
    assert!(requests["completed"].as_u64().unwrap() > 0 && requests["failed"] == 0, "{report:#}");
    assert!(report["seconds"].as_f64().unwrap() >= 0.3, "{report:#}");
}

#[tokio::test]
async fn idle_exchanges_are_decided_and_held() {
    let (usher, _) = usher(&[]).await;
    let report = load(usher.address, &["--idle=200", "--duration=100ms"]).await;
    assert_requests(&report, 200, 0);
    assert_eq!(count(&report, "decision"), 200);
    assert_eq!((report.get("chunks"), report["latency_ms"].get("total")), (None, None));
}

#[tokio::test]
async fn a_subset_hint_is_followed() {
    let (usher, endpoints) = usher(&[]).await;
    let subset = format!("10.9.9.9,{}", endpoints[1].split(':').next().unwrap());
    let report = load(usher.address, &["--requests=20", "--subset", &subset]).await;
    assert_eq!(report["endpoints"], json!({ endpoints[1].clone(): 20 }), "{report:#}");
}

#[tokio::test]
async fn traces_give_sizes_and_times() {
    let (usher, _) = usher(&[]).await;
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/demo/trace.jsonl");
    let report = load(
        usher.address,
        &["--trace", trace, "--requests=20", "--concurrency=2", "--output-tokens=2", "--stream"],
    )
    .await;
    assert_requests(&report, 20, 0);
    assert_eq!(report["chunks"]["sent"], 40);
    assert_eq!(report.get("late"), None);

    // Three requests in two seconds, ten times as fast.
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("azure.csv");
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.0000000,100,2\r\n\
                2023-11-16 18:17:04.0000000,20000,3\r\n2023-11-16 18:17:05.0000000,1,4\r\n";
    std::fs::write(&trace, rows).unwrap();
    let mut fake = Fake::start(Fault::None);
    let arguments = ["--trace", trace.to_str().unwrap(), "--speed=10", "--stream"];
    let report = load(fake.address, &arguments).await;
    assert_requests(&report, 3, 0);
    assert_eq!(report["chunks"]["sent"], 2 + 3 + 4);
    assert!(report["seconds"].as_f64().unwrap() >= 0.2 && report["late"].is_object(), "{report:#}");
    let sizes: Vec<usize> =
        fake.all_seen().iter().filter_map(request_body).map(|(body, _)| body.len()).collect();
    assert!(sizes.iter().sum::<usize>() > 4 * 20_101 && sizes.contains(&32768), "{sizes:?}");
}

fn request_body(message: &ProcessingRequest) -> Option<(&[u8], bool)> {
    match &message.request {
        Some(Kind::RequestBody(body)) => Some((&body.body, body.end_of_stream)),
        _ => None,
    }
}

/// Name and value of each header.
fn headers(message: &ProcessingRequest) -> Vec<(&str, &str)> {
    let (Some(Kind::RequestHeaders(headers)) | Some(Kind::ResponseHeaders(headers))) = &message.request
    else {
        panic!("no headers: {message:?}");
    };
    let headers = &headers.headers.as_ref().unwrap().headers;
    let value = |value| std::str::from_utf8(value).unwrap();
    headers.iter().map(|header| (header.key.as_str(), value(&header.raw_value[..]))).collect()
}

fn header<'a>(message: &'a ProcessingRequest, name: &str) -> &'a str {
    headers(message).into_iter().find(|(key, _)| *key == name).unwrap_or_else(|| panic!("no {name}")).1
}

#[tokio::test]
async fn messages_have_the_fields_that_envoy_sends() {
    let mut fake = Fake::start(Fault::None);
    let arguments = [
        "--requests=2",
        "--tokens=20000",
        "--api=completions",
        "--header=x-tenant: a=b",
        "--subset=10.0.0.9",
    ];
    let arguments = [&arguments[..], &["--stream", "--output-tokens=2", "--model=m\"1"]].concat();
    assert_requests(&load(fake.address, &arguments).await, 2, 0);
    let messages = fake.all_seen();
    let (first, second) = messages.split_at(messages.len() / 2);

    let config = first[0].protocol_config.as_ref().unwrap();
    assert_eq!((config.request_body_mode, config.response_body_mode), (4, 4));
    assert!(first[1..].iter().all(|message| message.protocol_config.is_none()));
    for (name, value) in [(":method", "POST"), (":path", "/v1/completions"), ("x-tenant", "a=b")] {
        assert_eq!(header(&first[0], name), value);
    }
    let ids = [&first[0], &second[0]].map(|message| header(message, "x-request-id"));
    assert!(ids[0] != ids[1] && ids[0].len() == 36, "{ids:?}");
    let metadata = first[0].metadata_context.as_ref().unwrap();
    let hint =
        &metadata.filter_metadata["envoy.lb.subset_hint"].fields["x-gateway-destination-endpoint-subset"];
    assert_eq!(hint.kind, Some(ValueKind::StringValue("10.0.0.9".to_owned())));

    let chunks: Vec<(&[u8], bool)> = first.iter().filter_map(request_body).collect();
    assert_eq!(chunks.len(), 3);
    assert!(chunks[..2].iter().all(|(chunk, end)| chunk.len() == 32 << 10 && !end));
    assert!(chunks[2].1);
    let body: Vec<u8> = chunks.concat_bytes();
    assert_eq!(header(&first[0], "content-length"), body.len().to_string());
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&body["model"], &body["max_tokens"], &body["stream"]),
        (&json!("m\"1"), &json!(2), &json!(true))
    );
    assert_eq!(body["prompt"].as_str().unwrap().len(), 80_000);

    assert_eq!(header(&first[4], "content-type"), "text/event-stream; charset=utf-8");
    let response: Vec<(&[u8], bool)> = first[5..]
        .iter()
        .map(|message| match &message.request {
            Some(Kind::ResponseBody(body)) => (&body.body[..], body.end_of_stream),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(response.iter().map(|(_, end)| *end).collect::<Vec<_>>(), [false, true]);
    let text = String::from_utf8(response.concat_bytes()).unwrap();
    let events: Vec<&str> =
        text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
    assert_eq!((events.len(), events[3]), (4, "[DONE]"));
    let events: Vec<Value> = events[..3].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert_eq!(events[1]["choices"][0]["finish_reason"], "length");
    assert_eq!(
        events[2]["usage"],
        json!({"prompt_tokens": 20_000, "completion_tokens": 2, "total_tokens": 20_002})
    );
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for Vec<(&[u8], bool)> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|(chunk, _)| chunk.iter().copied()).collect()
    }
}

#[tokio::test]
async fn prompts_of_a_group_share_their_prefix() {
    let mut fake = Fake::start(Fault::None);
    let arguments = ["--requests=4", "--tokens=50", "--prefix-groups=2", "--prefix-tokens=40"];
    load(fake.address, &arguments).await;
    let messages = fake.all_seen();
    let prompts: Vec<String> = messages
        .iter()
        .filter_map(request_body)
        .map(|(body, _)| {
            let body: Value = serde_json::from_slice(body).unwrap();
            body["messages"][0]["content"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(prompts.len(), 4);
    for (first, second, shared) in [(0, 2, true), (1, 3, true), (0, 1, false)] {
        assert_eq!(prompts[first][..160] == prompts[second][..160], shared, "{prompts:#?}");
        assert_ne!(prompts[first][160..], prompts[second][160..]);
    }
}
