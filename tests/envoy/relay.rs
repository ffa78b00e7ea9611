//! Bodies that nobody reads: an upload that is larger than any memory, and a call with messages in
//! both directions.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::support::client::{self, Body, Client, Protocol};
use crate::support::envoy::Envoy;
use crate::support::servers::SERVERS;
use crate::support::usher::Usher;
use crate::traffic::BOTH;
use crate::{ORIGINAL_DST, transport_socket};

const MI: usize = 1 << 20;
const GI: usize = 1 << 30;

/// A server that speaks HTTP/2: `/echo` is answered with its body as it comes, other paths with the
/// length of theirs.
async fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (io, _) = listener.accept().await.unwrap();
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(io), service_fn(respond));
            tokio::spawn(connection);
        }
    });
    address
}

async fn respond(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == "/echo" {
        return Ok(Response::new(request.into_body().map_err(|error| panic!("{error}")).boxed_unsync()));
    }
    let mut body = request.into_body();
    let mut length = 0_usize;
    while let Some(Ok(frame)) = body.frame().await {
        let data = frame.into_data().unwrap_or_default();
        // Every 4 KiB have their number.
        let first = length.next_multiple_of(4096) - length;
        for at in (first..data.len()).step_by(4096) {
            assert_eq!(data[at], ((length + at) >> 12) as u8, "at {}", length + at);
        }
        length += data.len();
    }
    Ok(Response::new(Full::new(length.to_string().into()).boxed_unsync()))
}

/// Body of `count` MiB in which every 4 KiB have a number of their own.
fn upload(count: usize) -> Request<Body> {
    let chunk: Vec<u8> = (0..MI).map(|at| (at >> 12) as u8).collect();
    let chunk = Bytes::from(chunk);
    let body = stream::iter((0..count).map(move |_| Ok(Frame::data(chunk.clone()))));
    let request = Request::post("/v1/files").header("content-length", count * MI);
    request.body(StreamBody::new(body).boxed_unsync()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unparsed_bodies_of_any_size_pass_through() {
    let server = server().await;
    let flags = ["--secure-serving=false", "--outlier-detection=false", "--memory-budget=96Mi"];
    let usher = Usher::start(&[server], &flags).await;
    let tls = transport_socket(ORIGINAL_DST);
    let edits = [
        (&*tls, ""),
        ("failure_mode_allow: true", "failure_mode_allow: false"),
        ("http_protocol_options: { enable_trailers: true }", "http2_protocol_options: {}"),
    ];
    let envoy = Envoy::start(ORIGINAL_DST, usher.address, &[server; SERVERS], &edits).await;
    envoy.picker_is(true).await;
    for protocol in BOTH {
        messages_pass_in_both_directions(envoy.address, protocol).await;
    }
    // All code has run after this, and buffers are as large as uploads make them.
    for protocol in BOTH {
        let response = client::send(envoy.address, protocol, upload(64)).await;
        assert_eq!(response.text(), (64 * MI).to_string());
    }
    let before = usher.peak_memory();
    let response = client::send(envoy.address, Protocol::Http1, upload(GI / MI)).await;
    assert_eq!((response.status.as_u16(), response.text()), (200, &*GI.to_string()));
    let after = usher.peak_memory();
    println!("{before} bytes before an upload of 1 GiB, {after} after it");
    // How much is under way at a time depends on how threads take turns.
    assert!(after < before + 32 * MI, "{before} bytes before, {after} after");
}

/// As a gRPC call: a response comes for each message before the next is sent.
async fn messages_pass_in_both_directions(envoy: SocketAddr, protocol: Protocol) {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(1);
    let frames = stream::poll_fn(move |context| receiver.poll_recv(context));
    let frames = futures_util::StreamExt::map(frames, |data| Ok(Frame::data(data)));
    let request = Request::post("/echo").header("te", "trailers").header("content-type", "application/grpc");
    let mut client = Client::connect(envoy, protocol).await.unwrap();
    let mut response =
        client.begin(request.body(StreamBody::new(frames).boxed_unsync()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    for message in ["first", "second", "third"] {
        sender.send(message.into()).await.unwrap();
        let mut echo = Vec::new();
        while echo.len() < message.len() {
            let frame = response.frame().await.unwrap().unwrap();
            echo.extend(frame.into_data().unwrap());
        }
        assert_eq!(echo, message.as_bytes());
    }
    drop(sender);
    assert!(response.frame().await.is_none_or(|frame| frame.unwrap().into_data().unwrap().is_empty()));
}
