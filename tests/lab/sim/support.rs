//! A client that is not theirs, and what the tests ask with it.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, response::Parts};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use usher::sim::{EngineConfig, SimConfig, SimHandle, start};

pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}
pub(crate) use Protocol::{Http1, Http2};

pub(crate) fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) async fn servers(config: SimConfig, count: usize) -> SimHandle {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    start(config, listeners).await.unwrap()
}

pub(crate) async fn instant() -> SimHandle {
    servers(SimConfig { engine: EngineConfig::instant(), ..SimConfig::default() }, 1).await
}

// Each request has its own connection. HTTP/2 takes the path from a full address.
pub(crate) async fn send(
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

pub(crate) async fn exchange(
    to: SocketAddr,
    request: Request<Body>,
    protocol: Protocol,
) -> (Parts, Bytes, Option<HeaderMap>) {
    let (parts, body) = send(to, request, protocol).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    (parts, body.to_bytes(), trailers)
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> (StatusCode, Bytes) {
    let (parts, body, _) = exchange(to, Request::get(path).body(full("")).unwrap(), Http1).await;
    (parts.status, body)
}

pub(crate) async fn get_json(to: SocketAddr, path: &str) -> Value {
    serde_json::from_slice(&get(to, path).await.1).unwrap()
}

pub(crate) fn chat(body: &Value, fault: &str) -> Request<Body> {
    let request = Request::post("/v1/chat/completions");
    let request = if fault.is_empty() { request } else { request.header("x-sim-fault", fault) };
    request.body(full(body.to_string())).unwrap()
}

pub(crate) async fn ask(to: SocketAddr, body: &Value) -> Value {
    let (parts, body, _) = exchange(to, chat(body, ""), Http1).await;
    assert_eq!(parts.status, 200);
    serde_json::from_slice(&body).unwrap()
}

pub(crate) async fn set_fault(to: SocketAddr, fault: Value) -> StatusCode {
    let request = Request::post("/admin/fault").body(full(fault.to_string())).unwrap();
    exchange(to, request, Http1).await.0.status
}

pub(crate) fn prompt(words: usize) -> Value {
    json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "word".repeat(words)}]})
}

pub(crate) fn streaming(mut body: Value, usage: bool) -> Value {
    body["stream"] = true.into();
    if usage {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

// Polls until the server is in the state that a test waits for.
pub(crate) async fn until(to: SocketAddr, reached: impl Fn(&Value) -> bool) -> Value {
    loop {
        let state = get_json(to, "/admin/state").await;
        if reached(&state) {
            return state;
        }
    }
}

pub(crate) fn events(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).unwrap();
    let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    events.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

pub(crate) fn metrics(page: &[u8]) -> HashMap<String, f64> {
    // The parser knows no colons in names.
    let lines = std::str::from_utf8(page).unwrap().lines().map(|line| Ok(line.replace("vllm:", "vllm_")));
    let scrape = prometheus_parse::Scrape::parse(lines).unwrap();
    let value = |value: &prometheus_parse::Value| match value {
        prometheus_parse::Value::Counter(v) | prometheus_parse::Value::Gauge(v) => Some(*v),
        _ => None,
    };
    scrape.samples.iter().filter_map(|s| Some((s.metric.clone(), value(&s.value)?))).collect()
}
