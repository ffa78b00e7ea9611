use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use usher::observe::http::{HttpServer, Routes, text};

use crate::support::listener;

async fn ask(address: SocketAddr, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
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
        let answer = ask(address, "GET", "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
        assert!(answer.ends_with(&format!("\r\n\r\nscrapes {number}\n")), "{answer}");
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
    let routes = Routes::new().with("/endpoints", Arc::new(|_| text(StatusCode::OK, "none\n"))).with_index();
    let _server = HttpServer::start(listener, routes).unwrap();
    assert!(ask(address, "GET", "/").await.ends_with("\r\n\r\n/endpoints\n/healthz\n"));
    assert!(ask(address, "GET", "/endpoints").await.ends_with("\r\n\r\nnone\n"));
    assert!(ask(address, "GET", "/healthz").await.ends_with("\r\n\r\nok\n"));
}

#[tokio::test]
async fn connections_beyond_the_bound_are_closed() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let _server = HttpServer::start(listener, Routes::new().with_index()).unwrap();
    let mut held = Vec::new();
    let mut closed = 0;
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        match stream.read_u8().await {
            Ok(_) => held.push(stream),
            Err(_) => closed += 1,
        }
    }
    assert_eq!((held.len(), closed), (64, 36));
}
