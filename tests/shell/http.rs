use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use usher::observe::http::{HttpServer, Routes};

use crate::support::listener;

async fn ask(address: SocketAddr, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test]
async fn metrics_are_rendered_anew_for_every_scrape() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let scrapes = AtomicUsize::new(0);
    let routes = Routes::new()
        .with_metrics(move || format!("scrapes {}\n", scrapes.fetch_add(1, Ordering::Relaxed) + 1));
    let server = HttpServer::start(listener, routes).unwrap();
    for number in 1..=2 {
        let response = ask(address, "GET", "/metrics").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(
            response.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"),
            "{response}"
        );
        assert!(response.ends_with(&format!("\r\n\r\nscrapes {number}\n")), "{response}");
    }
    assert!(ask(address, "GET", "/").await.starts_with("HTTP/1.1 404 "));
    let refused = ask(address, "POST", "/metrics").await;
    assert!(refused.starts_with("HTTP/1.1 405 ") && refused.contains("allow: GET, HEAD\r\n"), "{refused}");
    let head = ask(address, "HEAD", "/metrics").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");

    // A client that says nothing doesn't keep the server from stopping.
    let mut silent = TcpStream::connect(address).await.unwrap();
    server.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn the_index_of_the_admin_server_lists_its_paths() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let routes = Routes::new().with_page("/endpoints", "text/plain", || "none\n").with_index();
    let _server = HttpServer::start(listener, routes).unwrap();
    assert!(ask(address, "GET", "/").await.ends_with("\r\n\r\n/endpoints\n/healthz\n"));
    assert!(ask(address, "GET", "/endpoints").await.ends_with("\r\n\r\nnone\n"));
    assert!(ask(address, "GET", "/healthz").await.ends_with("\r\n\r\nok\n"));
}

/// Connects and asks for the metrics, and reads nothing.
async fn ask_only(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    stream
}

async fn rest(mut stream: TcpStream) -> usize {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    bytes.len()
}

#[tokio::test]
async fn oldest_silent_connections_are_closed_first() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let _server = HttpServer::start(listener, Routes::new().with_index()).unwrap();
    let mut held = Vec::new();
    for _ in 0..256 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
        held.push(stream);
    }
    for _ in 0..36 {
        assert!(ask(address, "GET", "/healthz").await.ends_with("\r\n\r\nok\n"));
    }
    assert_eq!(rest(held.remove(0)).await, 0);
}

#[tokio::test]
async fn silent_and_stalled_connections_are_closed() {
    // More than sockets hold.
    const PAGE: usize = 32 << 20;
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let routes = Routes::new().with_metrics(|| vec![b'x'; PAGE]).with_index();
    let _server = HttpServer::start(listener, routes).unwrap();
    assert!(rest(ask_only(address).await).await > PAGE);

    let start = Instant::now();
    let mut never_read = Vec::new();
    for _ in 0..3 {
        never_read.push(ask_only(address).await);
    }
    let mut silent = Vec::new();
    for _ in 0..253 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // Those that have asked keep their place.
    assert!(ask(address, "GET", "/healthz").await.ends_with("\r\n\r\nok\n"));
    // Some seconds pass at once, and the clock runs on while the ends are under way.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(8)).await;
    tokio::time::resume();
    for stream in silent {
        assert_eq!(rest(stream).await, 0);
    }
    assert!(ask(address, "GET", "/healthz").await.ends_with("\r\n\r\nok\n"));

    tokio::time::pause();
    tokio::time::sleep_until(start + Duration::from_secs(31)).await;
    for stream in never_read {
        assert!(rest(stream).await < PAGE);
    }
}

#[tokio::test]
async fn stop_closes_stalled_readers_after_five_seconds() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let routes = Routes::new().with_metrics(|| vec![b'x'; 32 << 20]);
    let server = HttpServer::start(listener, routes).unwrap();
    let mut stream = ask_only(address).await;
    stream.read_u8().await.unwrap();
    tokio::time::pause();
    let start = Instant::now();
    server.stop().await;
    assert_eq!(start.elapsed().as_secs(), 5);
    assert!(rest(stream).await < 32 << 20);
}
