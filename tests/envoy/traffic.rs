//! Traffic that passes through, as it arrives at the other end.

use futures_util::future::join_all;
use http::{HeaderMap, HeaderName, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::Stack;
use crate::support::client::{self, Body, Client, HttpResponse, Protocol};
use crate::support::eventually;

pub(crate) const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// Headers that decide where a request goes, and so are not the client's to set.
pub(crate) const ROUTING_HEADERS: [&str; 7] = [
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-served",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    "x-llm-d-request-dropped-reason",
];

/// A chat request with a prompt of `size` bytes and a response of 5 tokens.
pub(crate) fn chat(size: usize) -> String {
    let content = "All work and no play. ".repeat(size / 22 + 1);
    json!({"model": "base", "max_tokens": 5, "messages": [{"role": "user", "content": content[..size]}]})
        .to_string()
}

pub(crate) fn post(path: &str, body: Body) -> Request<Body> {
    Request::post(path).header("content-type", "application/json").body(body).unwrap()
}

pub(crate) fn post_chat(body: impl Into<bytes::Bytes>) -> Request<Body> {
    post("/v1/chat/completions", client::full(body))
}

/// Adds each routing header with an address that the client chose.
pub(crate) fn forge(mut request: Request<Body>) -> Request<Body> {
    for name in ROUTING_HEADERS {
        request.headers_mut().insert(HeaderName::from_static(name), "192.0.2.1:666".parse().unwrap());
    }
    request
}

/// Everything that a healthy stack must do.
pub(crate) async fn passes(stack: &Stack) {
    for protocol in BOTH {
        responses(stack, protocol).await;
        bodies_arrive_unchanged(stack, protocol).await;
        trailers_arrive(stack, protocol).await;
        streams(stack, protocol).await;
        routing_headers_are_ours(stack, protocol).await;
    }
    all_servers_are_used(stack).await;
}

async fn ask(stack: &Stack, protocol: Protocol, request: Request<Body>) -> HttpResponse {
    client::send(stack.envoy.address, protocol, request).await
}

async fn responses(stack: &Stack, protocol: Protocol) {
    let completion = json!({"model": "base", "prompt": "Once upon a time", "max_tokens": 5}).to_string();
    let rows: [(Method, &str, String, fn(&Value) -> bool); 4] = [
        (Method::POST, "/v1/chat/completions", chat(50), |response| {
            response["object"] == "chat.completion" && response["usage"]["completion_tokens"] == 5
        }),
        (Method::POST, "/v1/completions", completion, |response| {
            response["choices"][0]["text"].as_str().unwrap().len() == 20
        }),
        (Method::GET, "/v1/models", String::new(), |response| response["object"] == "list"),
        // Nothing here knows this path, the server included.
        (Method::POST, "/v2/dreams", "not JSON".to_owned(), |response| response["detail"] == "Not Found"),
    ];
    for (method, path, body, good) in rows {
        let request = Request::builder().method(method).uri(path).body(client::full(body.clone())).unwrap();
        let response = ask(stack, protocol, request).await;
        let status = if path == "/v2/dreams" { StatusCode::NOT_FOUND } else { StatusCode::OK };
        assert_eq!(response.status, status, "{protocol:?} {path}");
        assert!(good(&response.json()), "{protocol:?} {path}: {response:?}");
        assert_eq!(response.header("x-went-into-resp-headers"), "true", "{protocol:?} {path}");
        response.assert_received(body.as_bytes());
    }
}

async fn bodies_arrive_unchanged(stack: &Stack, protocol: Protocol) {
    for size in [300_000, 5_000_000] {
        let body = chat(size);
        let response = ask(stack, protocol, post_chat(body.clone())).await;
        assert_eq!(response.status, 200, "{protocol:?} {size}: {response:?}");
        response.assert_received(body.as_bytes());
        // Bytes that are no text, to a path whose bodies nobody reads.
        let bytes: Vec<u8> = (0..size).map(|at| ((at * at) >> 3) as u8).collect();
        let response = ask(stack, protocol, post("/v1/audio", client::full(bytes.clone()))).await;
        assert_eq!(response.status, 404, "{protocol:?} {size}: {response:?}");
        response.assert_received(&bytes);
    }
}

async fn trailers_arrive(stack: &Stack, protocol: Protocol) {
    let mut request = post_chat(chat(40_000));
    // Over HTTP/1.1 a server may send trailers only to who asks for them.
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    request.headers_mut().insert("x-sim-trailers", "1".parse().unwrap());
    let response = ask(stack, protocol, request).await;
    assert_eq!(response.status, 200);
    let trailers = response.trailers.as_ref().unwrap_or_else(|| panic!("{protocol:?}: {response:?}"));
    assert_eq!(trailers["x-sim-trailer"], response.header("x-inference-pod"));

    let body = chat(40_000);
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-checksum"), "4711".parse().unwrap())]);
    let mut request = post("/v1/chat/completions", client::with_trailers(body.clone(), trailers));
    // HTTP/1.1 announces them.
    request.headers_mut().insert("trailer", "x-checksum".parse().unwrap());
    let response = ask(stack, protocol, request).await;
    assert_eq!(response.status, 200, "{protocol:?}: {response:?}");
    response.assert_received(body.as_bytes());
    assert_eq!(response.header("x-sim-request-trailers"), "x-checksum=4711", "{protocol:?}");
}

async fn streams(stack: &Stack, protocol: Protocol) {
    let mut body: Value = serde_json::from_str(&chat(50)).unwrap();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let response = ask(stack, protocol, post_chat(body.to_string())).await;
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").starts_with("text/event-stream"));
    let events: Vec<_> = response.text().split_terminator("\n\n").collect();
    // The role, 5 tokens, the usage and the end.
    assert_eq!((events.len(), events[7]), (8, "data: [DONE]"), "{events:?}");
    assert!(events[6].contains(r#""completion_tokens":5"#), "{events:?}");

    // One that would take an hour: its first event comes while it runs, and when the
    // client leaves, so does the request.
    body["max_tokens"] = 3_600_000.into();
    let mut client = Client::connect(stack.envoy.address, protocol).await.unwrap();
    let mut response = client.begin(post_chat(body.to_string())).await.unwrap();
    let first = response.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"data: {"), "{first:?}");
    drop((response, client));
    eventually("the servers to be idle", async || {
        let states = join_all((0..4).map(|index| stack.servers.state(index))).await;
        states.iter().all(|state| state["running"] == 0).then_some(())
    })
    .await;
}

async fn routing_headers_are_ours(stack: &Stack, protocol: Protocol) {
    for request in [post_chat(chat(50)), Request::get("/v1/models").body(client::empty()).unwrap()] {
        let response = ask(stack, protocol, forge(request)).await;
        assert_eq!(response.status, 200, "{response:?}");
        let headers = stack.servers.last_headers(response.server()).await;
        let address = stack.servers.addresses[response.server()].to_string();
        for name in ROUTING_HEADERS {
            if name == "x-gateway-destination-endpoint" {
                let picked = headers[name][0].as_str().unwrap();
                assert_eq!(picked.split(',').next(), Some(&*address), "{protocol:?}");
            } else {
                assert_eq!(headers[name], Value::Null, "{protocol:?} {name}");
            }
        }
    }
}

/// Envoy lets clients say which model.
pub(crate) async fn models_are_renamed_and_named_back(stack: &Stack, protocol: Protocol) {
    for stream in [false, true] {
        let mut body: Value = serde_json::from_str(&chat(50)).unwrap();
        body["stream"] = stream.into();
        let body = body.to_string();
        let mut request = post_chat(body.clone());
        request.headers_mut().insert("x-llm-d-model-name-rewrite", "the-one-served".parse().unwrap());
        let response = ask(stack, protocol, request).await;
        assert_eq!(response.status, 200);
        response.assert_received(body.replace(r#""base""#, r#""the-one-served""#).as_bytes());
        assert!(response.text().contains(r#""model":"base""#), "{response:?}");
        assert!(!response.text().contains("the-one-served"), "{response:?}");
    }
}

async fn all_servers_are_used(stack: &Stack) {
    let mut used = std::collections::BTreeSet::new();
    // Equals are picked at random: one of four is missed by 400 requests once in 10^49.
    for number in 0..400 {
        // Each begins with another text, so that none is in a server's prefix cache.
        let text = chat(50).replace("All work", &format!("Work {number}"));
        used.insert(ask(stack, Protocol::Http1, post_chat(text)).await.server());
        if used.len() == stack.servers.addresses.len() {
            return;
        }
    }
    panic!("only {used:?} were used");
}
