//! Gateways that send and don't read: what they send stays unread.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::service::service_fn;
use prost::Message;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use usher::extproc::arrivals::RequestBody;
use usher::extproc::conn::{Lifetime, open, serve};
use usher::extproc::preface::PREFACE;
use usher::extproc::spread::Streams;
use usher::memory::{Budget, ConnectionRoom, Kind, Windows};

use super::raw::{DATA, END_HEADERS, END_STREAM, HEADERS, Raw, SETTINGS};
use super::*;

const CONNECTIONS: usize = 16;
const STREAMS: usize = 20;
const EACH: usize = 256 << 10;

/// 80 MiB are sent on streams that can't be answered, so that nobody reads them, to a process
/// with a small budget. Half of that is the resident part of a debug build's file alone.
#[tokio::test]
async fn unread_data_stays_below_the_memory_budget() {
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    let mut connections = Vec::new();
    let message = headers(&[(":method", "GET"), (":path", "/v1/models")], true).encode_to_vec();
    let first = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    for _ in 0..CONNECTIONS {
        let socket = TcpStream::connect(process.extproc).await.unwrap();
        let (mut send, mut connection) = h2::client::Builder::new()
            // No room for any reply.
            .initial_window_size(0)
            .handshake::<_, Bytes>(socket)
            .await
            .unwrap();
        let mut pings = connection.ping_pong().unwrap();
        let task = tokio::spawn(connection);
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let (response, mut body) = begin_call(&mut send, &first).await;
            body.send_data(vec![0; EACH].into(), false).unwrap();
            streams.push((response, body));
        }
        // What the windows let through is there when it has responded some times.
        for _ in 0..20 {
            pings.ping(h2::Ping::opaque()).await.unwrap();
        }
        connections.push((send, streams, task));
    }
    let peak = process.peak();
    assert!(peak < small_budget() * MI, "{peak} bytes");
    connections.iter().for_each(|(.., task)| task.abort());
    drop(connections);
    // The one that asks for metrics counts.
    settle(|| process.metric("usher_memory_connections_bytes") <= 65536.0).await;
    stayed_within(&process, small_budget(), limit).await;
}

/// Uploads that go on to nobody, as their gateway takes no replies, on a connection that others use,
/// while bodies take all memory.
#[tokio::test]
async fn stalled_streams_are_reset_before_the_connection_closes() {
    const STALLED: u32 = 80;
    let process = Process::start(small_budget(), 1, &["--body-idle-timeout=10m"]);
    let limit = process.limit();
    let mut gateway = Raw::connect(process.extproc, 1000);
    gateway.open(1);
    gateway.request(1, &[(":method", "GET"), (":path", "/v1/models")], true);
    assert!(gateway.is_alive());
    // The windows of the server hold from here on.
    gateway.frame(SETTINGS, 1, 0, &[]);
    for stream in (1..=STALLED).map(|index| 2 * index + 1) {
        gateway.open(stream);
        gateway.request(stream, &[(":method", "POST"), (":path", "/v1/messages/count_tokens")], false);
        // Less than the window of the stream.
        for _ in 0..4 {
            gateway.body(stream, &vec![b'x'; 60_000], false);
        }
    }
    assert!(gateway.is_alive());
    let unread = || process.metric("usher_memory_unread_bytes");
    // More than a 32nd of the budget, and less than twice that.
    let share = (small_budget() * MI / 32) as f64;
    settle(|| unread() > share).await;
    assert!(unread() < 2.0 * share, "{}", unread());
    // Bodies until memory is short, and for as long as streams may stall.
    let connection = process.connect().await;
    let chunk = vec![b' '; MI];
    let mut open = Vec::new();
    let start = Instant::now();
    while unread() > share {
        assert!(start.elapsed() < Duration::from_secs(60), "they stay until pings aren't answered");
        let stream = connection.stream().await;
        stream.try_send(headers(&COMPLETION, false));
        stream.try_send(body(&chunk, false));
        open.push(stream);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(process.metric("usher_connections_evicted_total"), 0.0, "{:#?}", process.warnings());
    loop {
        let frame = gateway.next().expect("the connection ended");
        assert!(!frame.ends(1));
        if (1..=STALLED).any(|index| frame.ends(2 * index + 1)) {
            break;
        }
    }
    drop((open, gateway));
    stayed_within(&process, small_budget(), limit).await;
}

/// Requests with bodies in small frames, all of which are there before the connection is first read.
#[tokio::test]
async fn burst_that_is_read_soon_closes_no_connection() {
    const STREAMS: u32 = 400;
    // Twice as many in all as h2 leaves unread.
    const FRAMES: usize = 300;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let mut burst = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for stream in (0..STREAMS).map(|index| 2 * index + 1) {
        // POST, http and / by their numbers in the static table, and an authority.
        burst.extend(frame(HEADERS, END_HEADERS, stream, &[0x83, 0x86, 0x84, 0x01, 1, b'x']));
        burst.extend(frame(DATA, 0, stream, b"x").repeat(FRAMES));
        burst.extend(frame(DATA, END_STREAM, stream, b"x"));
    }
    let (mut client, server) = duplex(burst.len());
    client.write_all(&burst).await.unwrap();
    // A quarter of what comes may stay unread, so that a connection that is slow to be read is closed.
    let budget = Arc::new(Budget::of_process(64 << 20, None));
    assert!(
        burst.len() as u64 + FRAMES as u64 * u64::from(STREAMS) * 256 > budget.process().unwrap() / 8 * 2
    );
    let (room, lifetime) = (ConnectionRoom::new(&budget, Windows::LARGEST), Lifetime::new());
    let served = Arc::new(Semaphore::new(0));
    let count = Arc::clone(&served);
    let service = service_fn(move |request: Request<RequestBody>| {
        let count = Arc::clone(&count);
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), FRAMES + 1);
            count.add_permits(1);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let io = open(ready(Ok(server)), &lifetime).await.unwrap().unwrap();
    tokio::select! {
        ended = serve(io, service, &lifetime, room, Streams::here()) => panic!("{ended:?}"),
        all = served.acquire_many(STREAMS) => drop(all.unwrap()),
    }
    assert_eq!(budget.evicted(), 0, "unread data: {}", budget.used(Kind::Unread));
}
