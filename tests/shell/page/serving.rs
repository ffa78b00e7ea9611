//! Headers, caching and streams of the page.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::start;

const POLICY: &str = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

/// Listeners that a port has at a time.
pub(super) const LISTENERS: usize = 16;

pub(super) async fn begin(address: SocketAddr, method: &str, path: &str, accept: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn ask(address: SocketAddr, method: &str, path: &str, accept: &str) -> String {
    let mut response = String::new();
    begin(address, method, path, accept).await.read_to_string(&mut response).await.unwrap();
    response
}

/// Reads until there are so many events, and returns the text.
pub(super) async fn read_events(stream: &mut TcpStream, count: usize) -> String {
    let (mut text, mut buffer) = (String::new(), vec![0; 1 << 16]);
    while text.matches("data: ").count() < count || !text.ends_with("\n\n\r\n") {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsers_get_the_page_and_others_the_list_of_paths() {
    let (usher, admin) = start(&[], &["--metrics-endpoint-auth=false"]).await;
    let page = ask(admin, "GET", "/", "text/html,*/*;q=0.8").await;
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("<!doctype html>"), "{page}");
    for header in [
        POLICY,
        "content-type: text/html; charset=utf-8\r\n",
        "x-content-type-options: nosniff\r\n",
        "referrer-policy: no-referrer\r\n",
        "cache-control: no-store\r\n",
        "cross-origin-resource-policy: same-origin\r\n",
        "cross-origin-opener-policy: same-origin\r\n",
        "vary: accept\r\n",
    ] {
        assert!(page.contains(header), "{header} in {page}");
    }
    // Every file that it names is there, with the same policy.
    let names: Vec<&str> = page.split('"').filter(|part| part.starts_with("ui/")).collect();
    assert_eq!(names, ["ui/icon.svg", "ui/style.css", "ui/app.js"]);
    // No other site shows or embeds any of it.
    for (path, accept) in [("/", "*/*"), ("/decisions", "*/*"), ("/ui/app.js", "*/*"), ("/nowhere", "*/*")] {
        let response = ask(admin, "GET", path, accept).await;
        for header in [
            "x-content-type-options: nosniff\r\n",
            "cross-origin-resource-policy: same-origin\r\n",
            "referrer-policy: no-referrer\r\n",
            "frame-ancestors 'none'",
        ] {
            assert!(response.contains(header), "{header} in {path}: {response}");
        }
    }
    for name in names {
        let file = ask(admin, "GET", &format!("/{name}"), "*/*").await;
        assert!(file.starts_with("HTTP/1.1 200 OK\r\n") && file.contains(POLICY), "{file}");
    }
    let list = ask(admin, "GET", "/", "*/*").await;
    assert!(list.contains("content-type: text/plain; charset=utf-8\r\n"), "{list}");
    assert!(
        list.ends_with("\r\n\r\n/endpoints\n/latency\n/config\n/decisions\n/log-level\n/healthz\n"),
        "{list}"
    );
    let head = ask(admin, "HEAD", "/events", "text/event-stream").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("cross-origin-resource-policy: same-origin\r\n"), "{head}");
    assert!(ask(admin, "POST", "/events", "*/*").await.starts_with("HTTP/1.1 405 "));
    let metrics = usher.port("metrics").await;
    for path in ["/", "/events", "/ui/app.js"] {
        assert!(ask(metrics, "GET", path, "text/html").await.starts_with("HTTP/1.1 404 "), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_dns_name_is_refused_on_loopback() {
    let (_usher, admin) = start(&[], &[]).await;
    for (host, status) in [("attacker.example", 403), ("localhost:9095", 200), ("127.0.0.1:9095", 200)] {
        for (method, path) in [("GET", "/"), ("GET", "/decisions"), ("PUT", "/log-level")] {
            let mut stream = TcpStream::connect(admin).await.unwrap();
            let request =
                format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 4\r\n\r\ninfo");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{host} {path}: {response}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_stream_sends_the_state_then_changes() {
    let (_usher, admin) = start(&[], &[]).await;
    let mut stream = begin(admin, "GET", "/events", "text/event-stream").await;
    let text = read_events(&mut stream, 2).await;
    assert!(
        text.contains("content-type: text/event-stream\r\n") && text.contains("retry: 500\n\n"),
        "{text}"
    );
    // Headers ask proxies not to hold them back.
    for header in ["cache-control: no-store, no-transform\r\n", "x-accel-buffering: no\r\n"] {
        assert!(text.contains(header), "{header} in {text}");
    }
    let states: Vec<serde_json::Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}")))
        .collect();
    assert_eq!(states[0]["endpoints"], serde_json::json!({"names": [], "rows": []}));
    assert_eq!(states[1]["endpoints"], serde_json::json!({"changed": []}));
    // One alone, where a proxy does so all the same.
    let once = ask(admin, "GET", "/events?once", "text/event-stream").await;
    assert!(once.matches("data: {").count() == 1 && once.ends_with("\r\n0\r\n\r\n"), "{once}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_are_bounded_and_let_the_server_stop() {
    let (mut usher, admin) = start(&[], &[]).await;
    let mut listeners = Vec::new();
    for _ in 0..LISTENERS {
        let mut stream = begin(admin, "GET", "/events", "text/event-stream").await;
        read_events(&mut stream, 1).await;
        listeners.push(stream);
    }
    let refused = ask(admin, "GET", "/events", "text/event-stream").await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("retry-after: 5\r\n"), "{refused}");
    // Other paths are answered as before, and a place that is left is free.
    assert!(ask(admin, "GET", "/healthz", "*/*").await.ends_with("ok\n"));
    drop(listeners.pop());
    crate::support::eventually("a free place", async || {
        let mut stream = begin(admin, "GET", "/events", "text/event-stream").await;
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        (&first == b"HTTP/1.1 200").then_some(())
    })
    .await;
    usher.terminate().await;
    // Streams end as they should: one that is cut off at the end of the time for that has no last chunk.
    for mut stream in listeners {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    }
}
