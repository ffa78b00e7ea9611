//! Clients that stop reading in the middle of long responses, on a gateway that others use.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::support::client::{self, Body, Client, Protocol};
use crate::support::envoy::Envoy;
use crate::support::servers::SERVERS;
use crate::support::usher::Usher;
use crate::support::{PATIENCE, eventually};
use crate::traffic::BOTH;
use crate::{ORIGINAL_DST, OVERRIDE_HOST};

/// More than have room in the window of a connection to the picker: 16 streams.
const SLOW: usize = 40;

/// Looks in a row, 20 ms apart, that find nothing sent: all wait for their clients.
const QUIET: usize = 25;

/// A server whose responses to `long` never end. It counts their bytes.
async fn server(sent: &Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sent = Arc::clone(sent);
    tokio::spawn(async move {
        loop {
            let (io, _) = listener.accept().await.unwrap();
            let sent = Arc::clone(&sent);
            let service = service_fn(move |request| respond(request, Arc::clone(&sent)));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(io), service));
        }
    });
    address
}

async fn respond(request: Request<Incoming>, sent: Arc<AtomicUsize>) -> Result<Response<Body>, Infallible> {
    let prompt = request.into_body().collect().await.unwrap().to_bytes();
    if !prompt.windows(4).any(|word| word == b"long") {
        return Ok(Response::new(Full::new("short".into()).boxed_unsync()));
    }
    let event = Bytes::from(format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "x".repeat(4000)));
    let events = stream::repeat_with(move || {
        sent.fetch_add(event.len(), Relaxed);
        Ok(Frame::data(event.clone()))
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    Ok(response.body(StreamBody::new(events).boxed_unsync()).unwrap())
}

fn request(prompt: &str) -> Request<Body> {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}","stream":true}}"#);
    Request::post("/v1/completions").body(client::full(body)).unwrap()
}

async fn others_are_answered(configuration: &str, protocol: Protocol) {
    let sent = Arc::<AtomicUsize>::default();
    let server = server(&sent).await;
    let usher = Usher::start(&[server], &["--outlier-detection=false"]).await;
    let edits = [("failure_mode_allow: true", "failure_mode_allow: false")];
    let envoy = Envoy::start(configuration, usher.address, &[server; SERVERS], &edits).await;
    envoy.picker_is(true).await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let mut client = Client::connect(envoy.address, protocol).await.unwrap();
        let response = client.begin(request("long")).await.unwrap();
        assert_eq!(response.status(), 200);
        // Nobody reads it.
        slow.push((client, response));
    }
    let (mut before, mut quiet) = (0, 0);
    eventually("all responses to wait for their clients", async || {
        let now = sent.load(Relaxed);
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
        (quiet >= QUIET).then_some(())
    })
    .await;
    let paused = envoy.statistic("cluster.usher.upstream_flow_control_paused_reading_total").await;
    println!("{before} bytes are on their way; Envoy stopped reading from the picker {paused} times");
    for _ in 0..20 {
        let response = client::send(envoy.address, protocol, request("hi"));
        let response = tokio::time::timeout(PATIENCE, response).await.unwrap();
        assert_eq!((response.status.as_u16(), response.text()), (200, "short"));
    }
    // And one of the slow ones goes on where it was.
    let (_client, mut response) = slow.pop().unwrap();
    let mut read = 0;
    while read < 1 << 20 {
        let frame = tokio::time::timeout(PATIENCE, response.frame()).await.unwrap().unwrap().unwrap();
        read += frame.into_data().unwrap().len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_do_not_delay_other_clients() {
    for configuration in [ORIGINAL_DST, OVERRIDE_HOST] {
        for protocol in BOTH {
            others_are_answered(configuration, protocol).await;
        }
    }
}
