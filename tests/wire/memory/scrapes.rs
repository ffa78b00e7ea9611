//! Pages of metrics with many names, and clients that read them slowly.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::*;
use crate::support::response_body;

const NAMES: usize = 2000;

/// One request for each of so many invented models and sessions, with a response and its usage.
async fn invent(process: &Process) {
    let connection = process.connect().await;
    for number in 0..NAMES {
        let mut stream = connection.stream().await;
        let session = format!("invented-{number}");
        let all: Vec<_> = COMPLETION.into_iter().chain([("session-id", &*session)]).collect();
        stream.send(headers(&all, false));
        stream.send(body(format!(r#"{{"model":"invented-{number}","prompt":"hi","stream":true}}"#), true));
        stream.request_headers().await;
        while !stream.request_body().await.1 {}
        stream.send(response_headers(&[(":status", "200"), ("content-type", "text/event-stream")], false));
        stream.response_headers().await;
        let events = "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\n";
        stream.send(response_body(events, true));
        while !stream.response_body().await.1 {}
    }
}

/// A client that asks for the page, and reads its first bytes.
fn slow(address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream: TcpStream = socket.into();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

#[tokio::test]
async fn invented_models_and_slow_scrapers_leave_memory_to_requests() {
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    invent(&process).await;
    let page = process.page();
    is_served_again(&process).await;
    let scrapers: Vec<_> = (0..25).map(|_| slow(process.metrics)).collect();
    is_served_again(&process).await;
    drop(scrapers);
    drop(page);
    stayed_within(&process, small_budget(), limit).await;
}

/// Lines of series of clients' names that there is room for: an eighth of the budget, at 288 bytes.
fn lines() -> usize {
    small_budget() * MI / 8 / 288
}

#[tokio::test]
async fn plugin_series_stay_within_the_budget() {
    const CONFIG: &str = "--config-text={plugins: [{type: agent-identity}, {type: inflight-load-producer}]}";
    let process = Process::start(small_budget(), 1, &[CONFIG, "--allow-experimental-plugins"]);
    let limit = process.limit();
    invent(&process).await;
    let series = process.page().series("llm_d_epp_inflight_requests");
    assert!((16..NAMES / 2).contains(&series), "{series}");
    stayed_within(&process, small_budget(), limit).await;
}

#[tokio::test]
async fn series_of_all_tables_share_an_eighth_of_the_budget() {
    const CONFIG: &str = "--config-text=
featureGates: [flowControl]
plugins:
- {type: agent-identity}
- {type: inflight-load-producer}
- {type: predicted-latency-producer}
- {type: decode-filter}
- {type: prefill-filter}
- {type: always-disagg-pd-decider}
- {type: max-score-picker}
- {type: concurrency-detector}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}]}
";
    let flags = [CONFIG, "--gen-ai-metrics", "--allow-experimental-plugins"];
    let process = Process::start(small_budget(), 1, &flags);
    let limit = process.limit();
    invent(&process).await;
    let page = process.page();
    for family in [
        "llm_d_epp_request_total",
        "llm_d_epp_scheduler_attempts_total",
        "llm_d_epp_inflight_requests",
        "llm_d_epp_flow_control_queue_size",
        "usher_demand_requests",
        "gen_ai_server_request_duration_seconds_count",
        "llm_d_epp_request_predicted_ttft_seconds_count",
        "llm_d_epp_disagg_decision_total",
    ] {
        assert!(page.series(family) >= 16, "{family}: {}", page.series(family));
    }
    let of_clients = page.count("\"invented-");
    assert!(of_clients <= lines(), "{of_clients} lines of {}", lines());
    stayed_within(&process, small_budget(), limit).await;
}
