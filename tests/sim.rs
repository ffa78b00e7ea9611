//! Simulated servers from outside: over sockets, with a client that is not theirs.

#![allow(clippy::unwrap_used, reason = "the exception for tests does not reach their helpers")]

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode, response::Parts};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use usher::sim::{EngineConfig, SimConfig, SimHandle, start};
use xxhash_rust::xxh64::xxh64;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Protocol {
    Http1,
    Http2,
}
use Protocol::{Http1, Http2};

fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

async fn servers(config: SimConfig, count: usize) -> SimHandle {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    start(config, listeners).await.unwrap()
}

async fn instant() -> SimHandle {
    servers(SimConfig { engine: EngineConfig::instant(), ..SimConfig::default() }, 1).await
}

// Each request has its own connection. HTTP/2 takes the path from a full address.
async fn send(
    to: SocketAddr,
    mut request: Request<Body>,
    protocol: Protocol,
) -> hyper::Result<Response<Incoming>> {
    let io = TokioIo::new(TcpStream::connect(to).await.unwrap());
    match protocol {
        Http1 => {
            request.headers_mut().insert("host", "sim".parse().unwrap());
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(connection);
            sender.send_request(request).await
        }
        Http2 => {
            let path = request.uri().path().to_owned();
            *request.uri_mut() = format!("http://sim{path}").parse().unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            sender.send_request(request).await
        }
    }
}

async fn exchange(
    to: SocketAddr,
    request: Request<Body>,
    protocol: Protocol,
) -> (Parts, Bytes, Option<HeaderMap>) {
    let (parts, body) = send(to, request, protocol).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    (parts, body.to_bytes(), trailers)
}

async fn get(to: SocketAddr, path: &str) -> (StatusCode, Bytes) {
    let (parts, body, _) = exchange(to, Request::get(path).body(full("")).unwrap(), Http1).await;
    (parts.status, body)
}

async fn get_json(to: SocketAddr, path: &str) -> Value {
    serde_json::from_slice(&get(to, path).await.1).unwrap()
}

fn chat(body: &Value, fault: &str) -> Request<Body> {
    let request = Request::post("/v1/chat/completions");
    let request = if fault.is_empty() { request } else { request.header("x-sim-fault", fault) };
    request.body(full(body.to_string())).unwrap()
}

async fn ask(to: SocketAddr, body: &Value) -> Value {
    let (parts, body, _) = exchange(to, chat(body, ""), Http1).await;
    assert_eq!(parts.status, 200);
    serde_json::from_slice(&body).unwrap()
}

async fn set_fault(to: SocketAddr, fault: Value) -> StatusCode {
    let request = Request::post("/admin/fault").body(full(fault.to_string())).unwrap();
    exchange(to, request, Http1).await.0.status
}

fn prompt(words: usize) -> Value {
    json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "word".repeat(words)}]})
}

fn streaming(mut body: Value, usage: bool) -> Value {
    body["stream"] = true.into();
    if usage {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

// Polls until the server is in the state that a test waits for.
async fn until(to: SocketAddr, reached: impl Fn(&Value) -> bool) -> Value {
    loop {
        let state = get_json(to, "/admin/state").await;
        if reached(&state) {
            return state;
        }
    }
}

fn events(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).unwrap();
    let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    events.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn metrics(page: &[u8]) -> HashMap<String, f64> {
    // The parser knows no colons in names.
    let lines = std::str::from_utf8(page).unwrap().lines().map(|line| Ok(line.replace("vllm:", "vllm_")));
    let scrape = prometheus_parse::Scrape::parse(lines).unwrap();
    let value = |value: &prometheus_parse::Value| match value {
        prometheus_parse::Value::Counter(v) | prometheus_parse::Value::Gauge(v) => Some(*v),
        _ => None,
    };
    scrape.samples.iter().filter_map(|s| Some((s.metric.clone(), value(&s.value)?))).collect()
}

#[tokio::test]
async fn servers_name_themselves_and_the_models_they_have() {
    let config = SimConfig { loras: vec!["food".into()], strict_models: true, ..SimConfig::default() };
    let group = servers(config, 3).await;
    for (index, address) in group.addresses().iter().enumerate() {
        let (parts, _, _) = exchange(*address, Request::get("/health").body(full("")).unwrap(), Http1).await;
        assert_eq!(parts.status, 200);
        assert_eq!(parts.headers["x-inference-pod"], format!("sim-{index}"));
        assert_eq!(parts.headers["x-inference-port"], address.port().to_string());
    }
    let at = group.addresses()[0];
    let models = get_json(at, "/v1/models").await;
    assert_eq!(
        (&models["data"][1]["id"], &models["data"][1]["parent"]),
        (&json!("food"), &models["data"][0]["id"])
    );
    let (parts, body, _) = exchange(at, chat(&prompt(1), ""), Http1).await;
    assert_eq!(parts.status, 404, "strict about models");
    assert!(body.starts_with(br#"{"error":"#));
    assert_eq!(get(at, "/v1/embeddings").await, (StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#.into()));
    assert_eq!(get(at, "/v1/completions").await.0, StatusCode::METHOD_NOT_ALLOWED);
    group.shutdown().await;
    assert_eq!(TcpStream::connect(at).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_repeated_prompt_is_cached_and_answered_alike() {
    let group = instant().await;
    let at = group.addresses()[0];
    let first = ask(at, &prompt(1000)).await;
    let second = ask(at, &prompt(1000)).await;
    // 4 bytes of role and 4,000 of text.
    assert_eq!(first["usage"]["prompt_tokens"], 1001);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 992);
    assert_eq!(second["usage"]["completion_tokens"], 5);
    assert_eq!(first["choices"], second["choices"]);
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    let page = metrics(&get(at, "/metrics").await.1);
    assert_eq!(
        (page["vllm_prefix_cache_queries_total"], page["vllm_prefix_cache_hits_total"]),
        (2002.0, 992.0)
    );
}

#[tokio::test]
async fn a_stream_has_a_role_the_tokens_the_end_and_usage_only_if_asked() {
    let group = instant().await;
    let at = group.addresses()[0];
    let whole = ask(at, &prompt(3)).await;
    for (protocol, usage) in [(Http1, true), (Http2, false)] {
        let (parts, body, _) = exchange(at, chat(&streaming(prompt(3), usage), ""), protocol).await;
        assert!(parts.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        assert!(body.ends_with(b"data: [DONE]\n\n"));
        let mut events = events(&body);
        if usage {
            let last = events.pop().unwrap();
            assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(5)));
            assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        }
        assert!(events.iter().all(|event| event["usage"].is_null()));
        assert_eq!(events.len(), 6);
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let text: String =
            events[1..].iter().map(|e| e["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
        assert_eq!(text, whole["choices"][0]["message"]["content"]);
        let reasons: Vec<_> = events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
        assert_eq!(reasons[5], "length");
        assert!(reasons[..5].iter().all(|reason| reason.is_null()));
    }
    let body = json!({"prompt": "once", "stream": true, "max_tokens": 2}).to_string();
    let (_, body, _) = exchange(at, Request::post("/v1/completions").body(full(body)).unwrap(), Http1).await;
    let texts = events(&body).iter().filter(|event| event["choices"][0]["text"].is_string()).count();
    assert_eq!(texts, 2);
}

#[tokio::test]
async fn limit_queue_and_adapters_show_in_metrics_and_leave_with_their_clients() {
    // A request takes 100,000 steps of a millisecond: the test is over long before.
    let decode_step = Duration::from_millis(1);
    let engine = EngineConfig { decode_step, max_running: 2, max_waiting: 3, ..EngineConfig::instant() };
    let group = servers(SimConfig { loras: vec!["food".into()], engine, ..SimConfig::default() }, 1).await;
    let at = group.addresses()[0];
    let mut body = streaming(prompt(100), false);
    body["model"] = "food".into();
    body["max_tokens"] = 100_000.into();
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(send(at, chat(&body, ""), Http1).await.unwrap());
    }
    let state = until(at, |state| state["running"] == 2).await;
    assert_eq!(state["waiting"], 3);
    assert_eq!(send(at, chat(&body, ""), Http1).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    let page = get(at, "/metrics").await.1;
    let values = metrics(&page);
    assert_eq!((values["vllm_num_requests_running"], values["vllm_num_requests_waiting"]), (2.0, 3.0));
    // 6 blocks of the prompt are shared; each has its own for the end of it.
    assert!(values["vllm_kv_cache_usage_perc"] >= 8.0 / 27_000.0);
    let text = String::from_utf8(page.to_vec()).unwrap();
    assert!(text.contains(r#"{max_lora="1",running_lora_adapters="food",waiting_lora_adapters=""} "#));
    drop(clients);
    let state = until(at, |state| state["aborted"] == 5).await;
    assert_eq!((&state["running"], &state["waiting"], &state["rejected"]), (&json!(0), &json!(0), &json!(1)));
    assert_eq!(state["kv"]["used_blocks"], 0);
}

#[tokio::test]
async fn the_metrics_page_is_as_large_as_a_real_one_and_well_formed() {
    let group = instant().await;
    let at = group.addresses()[0];
    let before = get(at, "/metrics").await.1;
    assert_eq!(get(at, "/metrics").await.1, before, "nothing happened");
    ask(at, &prompt(100)).await;
    let after = get(at, "/metrics").await.1;
    for page in [&before, &after] {
        assert!((55_000..65_000).contains(&page.len()), "{} bytes", page.len());
    }
    let values = metrics(&after);
    assert_eq!(values["vllm_prompt_tokens_total"], 101.0);
    assert_eq!(values["vllm_generation_tokens_total"], 5.0);
    let text = String::from_utf8(after.to_vec()).unwrap();
    for part in [
        "# TYPE vllm:time_to_first_token_seconds histogram\n",
        "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 1.0\n",
        "vllm:e2e_request_latency_seconds_bucket{engine=\"0\",le=\"0.3\",model_name=",
        "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=",
        "vllm:cache_config_info{block_size=\"16\",",
        ",num_gpu_blocks=\"27000\",",
        "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\",status=\"2xx\"} 1.0\n",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Every family is announced once, before its samples.
    let mut types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let count = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), count);
}

#[tokio::test]
async fn bodies_of_any_kind_are_echoed_by_size_and_hash() {
    let engine = EngineConfig { max_model_len: 2_000_000, num_blocks: 125_000, ..EngineConfig::instant() };
    let group = servers(SimConfig { engine, ..SimConfig::default() }, 1).await;
    let at = group.addresses()[0];
    let words = "a long prompt, ".repeat(5 << 20 >> 4);
    let body = json!({"prompt": words, "max_tokens": 1}).to_string();
    let hash = format!("{:016x}", xxh64(body.as_bytes(), 0));
    let chunks: Vec<Bytes> = body.as_bytes().chunks(30_000).map(Bytes::copy_from_slice).collect();
    for protocol in [Http1, Http2] {
        let frames = chunks.clone().into_iter().map(|chunk| Ok(Frame::data(chunk)));
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
        let frames = frames.chain([Ok(Frame::trailers(trailers))]);
        let request =
            Request::post("/v1/completions").header("trailer", "x-sum").header("authorization", "secret");
        let request = request.body(StreamBody::new(stream::iter(frames)).boxed_unsync()).unwrap();
        let (parts, _, _) = exchange(at, request, protocol).await;
        assert_eq!(parts.status, 200, "{protocol:?}");
        assert_eq!(parts.headers["x-sim-body-bytes"], body.len().to_string());
        assert_eq!(parts.headers["x-sim-body-xxh64"], hash);
        assert_eq!(parts.headers["x-sim-request-trailers"], "x-sum=7");
        let last = &get_json(at, "/admin/state").await["last"];
        assert_eq!((&last["body_xxh64"], &last["trailers"]["x-sum"]), (&json!(hash), &json!(["7"])));
        assert_eq!(last["headers"]["authorization"], json!(["(hidden)"]));
    }
    let (parts, _, _) = exchange(at, Request::get("/nowhere").body(full("")).unwrap(), Http2).await;
    assert_eq!(
        (parts.status, &parts.headers["x-sim-body-bytes"]),
        (StatusCode::NOT_FOUND, &"0".parse().unwrap())
    );
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_but_still_echoed() {
    let config = SimConfig { max_body_bytes: 1000, ..SimConfig::default() };
    let group = servers(config, 1).await;
    let request = Request::post("/v1/completions").body(full(vec![b'x'; 100_000])).unwrap();
    let (parts, _, _) = exchange(group.addresses()[0], request, Http1).await;
    assert_eq!(
        (parts.status, &parts.headers["x-sim-body-bytes"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &"100000".parse().unwrap())
    );
}

#[tokio::test]
async fn trailers_come_when_asked_for() {
    let group = instant().await;
    let at = group.addresses()[0];
    for protocol in [Http1, Http2] {
        for body in [prompt(1), streaming(prompt(1), true)] {
            let mut request = chat(&body, "");
            request.headers_mut().insert("x-sim-trailers", "1".parse().unwrap());
            request.headers_mut().insert("te", "trailers".parse().unwrap());
            let (_, _, trailers) = exchange(at, request, protocol).await;
            assert_eq!(trailers.unwrap()["x-sim-trailer"], "sim-0", "{protocol:?} {body}");
        }
        let (_, _, trailers) = exchange(at, chat(&prompt(1), ""), protocol).await;
        assert_eq!(trailers, None);
    }
}

#[tokio::test]
async fn a_request_can_ask_for_a_status_a_delay_or_be_wrong_about_it() {
    let group = instant().await;
    let at = group.addresses()[0];
    for protocol in [Http1, Http2] {
        let (parts, body, _) = exchange(at, chat(&prompt(1), "slow=1ms, status=503"), protocol).await;
        assert_eq!(parts.status, 503);
        assert!(body.starts_with(br#"{"error":{"#));
        let request = Request::get("/health").header("x-sim-fault", "status=418").body(full("")).unwrap();
        assert_eq!(exchange(at, request, protocol).await.0.status, 418);
        assert_eq!(exchange(at, chat(&prompt(1), "explode"), protocol).await.0.status, 400);
    }
}

#[tokio::test]
async fn reset_and_drop_after_break_off_where_they_say() {
    let group = instant().await;
    let at = group.addresses()[0];
    for protocol in [Http1, Http2] {
        assert!(send(at, chat(&prompt(1), "reset"), protocol).await.is_err());
        let response = send(at, chat(&streaming(prompt(1), false), "drop-after=3"), protocol).await.unwrap();
        let mut body = response.into_body();
        let mut seen = Vec::new();
        let error = loop {
            match body.frame().await.unwrap() {
                Ok(frame) => seen.extend_from_slice(&frame.into_data().unwrap()),
                Err(error) => break error,
            }
        };
        assert!(!error.is_user());
        // The role and three tokens, all of them complete.
        assert_eq!(events(&seen).len(), 4, "{protocol:?}");
        let response = send(at, chat(&prompt(1), "drop-after=3"), protocol).await.unwrap();
        assert!(response.into_body().collect().await.is_err(), "half of the answer, then the end");
    }
    let socket = {
        let socket = TcpStream::connect(at).await.unwrap();
        let request = b"GET /health HTTP/1.1\r\nhost: sim\r\nx-sim-fault: reset\r\n\r\n";
        socket.writable().await.unwrap();
        assert_eq!(socket.try_write(request).unwrap(), request.len());
        socket
    };
    socket.readable().await.unwrap();
    assert_eq!(socket.try_read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_hanging_request_is_never_answered() {
    let group = instant().await;
    let at = group.addresses()[0];
    for (protocol, requests) in [(Http1, 1), (Http2, 2)] {
        let hanging = tokio::spawn(send(at, chat(&prompt(1), "hang"), protocol));
        let state = until(at, |state| state["requests"] == requests).await;
        assert_eq!((&state["running"], &state["statuses"]), (&json!(0), &json!({})));
        assert!(!hanging.is_finished());
        hanging.abort();
    }
    group.shutdown().await;
}

#[tokio::test]
async fn one_server_can_be_broken_for_a_number_of_requests() {
    let config = SimConfig { engine: EngineConfig::instant(), ..SimConfig::default() };
    let group = servers(config, 2).await;
    let [broken, well] = [group.addresses()[0], group.addresses()[1]];
    assert_eq!(set_fault(broken, json!({"status": 500, "count": 2})).await, 200);
    let mut statuses = Vec::new();
    for at in [broken, broken, broken, well] {
        statuses.push(exchange(at, chat(&prompt(1), ""), Http1).await.0.status.as_u16());
    }
    assert_eq!(statuses, [500, 500, 200, 200]);
    assert_eq!(get_json(broken, "/admin/state").await["statuses"], json!({"200": 1, "500": 2}));
    assert_eq!(set_fault(broken, json!({"health": 503})).await, 200);
    assert_eq!((get(broken, "/health").await.0.as_u16(), get(well, "/health").await.0.as_u16()), (503, 200));
    assert_eq!(set_fault(broken, json!({"stats": 500})).await, 400);
    let heal = Request::delete("/admin/fault").body(full("")).unwrap();
    assert_eq!(exchange(broken, heal, Http1).await.0.status, 200);
    assert_eq!(get(broken, "/health").await.0, 200);
}

#[tokio::test]
async fn metrics_go_stale_break_vanish_and_fail() {
    let group = instant().await;
    let at = group.addresses()[0];
    set_fault(at, json!({"metrics": "stale"})).await;
    let before = get(at, "/metrics").await.1;
    ask(at, &prompt(10)).await;
    assert_eq!(get(at, "/metrics").await.1, before);
    set_fault(at, json!({"metrics": "broken"})).await;
    let broken = get(at, "/metrics").await;
    assert_eq!(broken.0, 200);
    assert!(std::str::from_utf8(&broken.1).is_err());
    set_fault(at, json!({"metrics": "empty"})).await;
    assert_eq!(get(at, "/metrics").await, (StatusCode::OK, Bytes::new()));
    set_fault(at, json!({"metrics": "error"})).await;
    assert_eq!(get(at, "/metrics").await.0, 500);
    set_fault(at, json!({"metrics": "hang"})).await;
    let request = Request::get("/metrics").body(full("")).unwrap();
    let hanging = tokio::spawn(send(at, request, Http1));
    ask(at, &prompt(10)).await;
    assert!(!hanging.is_finished());
    set_fault(at, json!({})).await;
    assert_eq!(metrics(&get(at, "/metrics").await.1)["vllm_prompt_tokens_total"], 22.0);
}

#[tokio::test]
async fn bad_requests_are_refused_as_vllm_refuses_them() {
    let group = instant().await;
    let at = group.addresses()[0];
    for body in [
        "{",
        r#"{"model":"m"}"#,
        r#"{"messages":[],"max_tokens":0}"#,
        r#"{"messages":[],"max_tokens":200000}"#,
    ] {
        let request = Request::post("/v1/chat/completions").body(full(body)).unwrap();
        let (parts, answer, _) = exchange(at, request, Http1).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((parts.status.as_u16(), &answer["error"]["code"]), (400, &json!(400)), "{body}");
    }
}

#[tokio::test]
async fn a_starting_server_says_so() {
    let config = SimConfig { startup: Duration::from_secs(86_400), ..SimConfig::default() };
    let group = servers(config, 1).await;
    let at = group.addresses()[0];
    assert_eq!(get(at, "/health").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(at, "/metrics").await.0, StatusCode::OK);
}

mod command {
    use clap::Parser;
    use usher::cli::CliError;
    use usher::cli::sim::{SimArgs, run, write_endpoints};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sim: SimArgs,
    }

    fn args(line: &str) -> SimArgs {
        Cli::try_parse_from(["sim"].into_iter().chain(line.split_whitespace())).unwrap().sim
    }

    #[test]
    fn the_defaults_of_the_flags_are_those_of_the_configuration() {
        assert_eq!(args("").config(), SimConfig::default());
        assert_eq!(args("--instant").config().engine, EngineConfig::instant());
    }

    #[test]
    fn a_taken_port_is_named_in_one_line() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let line = format!("--port {port}");
        let error = run(&args(&line)).unwrap_err().to_string();
        assert_eq!(error, format!("port {port} on 127.0.0.1 is in use; choose another with --port"));
        assert!(args("--port 65535 --count 2").bind().unwrap_err().to_string().contains("65535"));
        assert!(matches!(run(&args(&line)), Err(CliError::Failed(_))));
        assert!(
            matches!(run(&args("--jitter 2 --port 0")), Err(CliError::Usage(text)) if text.contains("jitter"))
        );
    }

    #[test]
    fn addresses_follow_each_other() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let line = format!("--count 3 --spread addresses --address 127.0.0.9 --port {free}");
        let bound: Vec<String> =
            args(&line).bind().unwrap().iter().map(|l| l.local_addr().unwrap().ip().to_string()).collect();
        assert_eq!(bound, ["127.0.0.9", "127.0.0.10", "127.0.0.11"]);
    }

    #[tokio::test]
    async fn the_endpoints_file_lists_the_servers_with_ports_as_strings() {
        let name_prefix = r#"a"b\c"#.to_owned();
        let group = servers(SimConfig { name_prefix, ..SimConfig::default() }, 2).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("endpoints.yaml");
        write_endpoints(&path, &group).unwrap();
        let file: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let port = group.addresses()[1].port().to_string();
        assert_eq!(
            file["endpoints"][1],
            json!({"name": r#"a"b\c-1"#, "namespace": "default", "address": "127.0.0.1", "port": port})
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing partial is left");
    }
}
