//! The memory budget, measured from outside: what load makes a process of its own take at most.
//!
//! A build for tests takes 55 MiB before any request, and 65 when it has run all of its code:
//! several times what it should.
#![cfg(target_os = "linux")]

mod bodies;
mod checks;
mod frames;
mod handshakes;
mod idle;
mod invalid;
mod kv_events;
mod names;
mod parts;
mod process;
mod raw;
mod scrapes;
mod stalled;
mod streams;
mod tokenizers;
mod unread;
mod unsent;
mod unwritten;
mod waiting;

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use envoy_types::pb::envoy::service::ext_proc::v3::ImmediateResponse;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use tokio::task::JoinHandle;

use crate::support::{Connection, PROMPT, Stream, body, headers, response_headers};
use process::Process;

const COMPLETION: [(&str, &str); 2] = [(":method", "POST"), (":path", "/v1/completions")];
const MI: usize = 1 << 20;

/// Another address of this machine.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The least budget that Usher is made for, in MiB. A debug build has as much more as its larger file takes.
fn small_budget() -> usize {
    const LEAST: usize = 96;
    /// Part of that which a release's file takes, in MB.
    const FILE: usize = 26;
    static OF_DEBUG: LazyLock<usize> = LazyLock::new(|| {
        let base = Process::start(4 * LEAST, 1, &[]).metric("usher_memory_base_bytes");
        LEAST - FILE + (base as usize).div_ceil(MI)
    });
    if std::env::var_os(process::PROGRAM).is_some() { LEAST } else { *OF_DEBUG }
}

/// The budget of tests whose requests need more, in MiB.
fn medium_budget() -> usize {
    small_budget() + 32
}

/// After this a test gives up waiting. Long, because a loaded machine is not a failure.
const PATIENCE: Duration = Duration::from_secs(300);

fn has_reason(refusal: &ImmediateResponse, reason: &str) -> bool {
    let set = &refusal.headers.as_ref().unwrap().set_headers;
    let has = |name: &str, value: &str| {
        set.iter().filter_map(|option| option.header.as_ref()).any(|header| {
            header.key == name && (header.raw_value == value.as_bytes() || header.value == value)
        })
    };
    refusal.status.as_ref().unwrap().code == 429
        && has("x-llm-d-request-dropped-reason", reason)
        && has("retry-after", "1")
}

/// Waits for something that the other process does.
async fn settle(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "it doesn't come");
        // Asking all the time would take the processor from who is asked.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A small request finds room.
async fn is_served(connection: &Connection) -> Stream {
    let mut stream = connection.stream().await;
    stream.send(headers(&COMPLETION, false));
    stream.send(body(PROMPT, true));
    let destination = stream.request_headers().await.destination().to_owned();
    assert!(destination.starts_with("127.0.0.") && destination.ends_with(":1"), "{destination}");
    stream
}

/// Asks until a request finds room: what takes it has to go first.
async fn is_served_again(process: &Process) {
    let start = Instant::now();
    loop {
        let mut stream = process.connect().await.stream().await;
        stream.try_send(headers(&COMPLETION, false));
        stream.try_send(body(PROMPT, true));
        if let Some(Reply::RequestHeaders(_)) = stream.reply().await.response {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{:#?}", process.warnings());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Outcomes of requests.
#[derive(Debug, Default)]
struct Responses {
    served: usize,
    /// Refused as there was no room.
    refused: usize,
    /// Refused while they waited, to make room.
    shed: usize,
}

/// Reads what becomes of a request, and its body where it is served. Whoever doesn't read one
/// stream of a connection is sent nothing on the others, so every one needs a reader.
fn reader(mut stream: Stream) -> JoinHandle<Responses> {
    tokio::spawn(async move {
        let mut responses = Responses::default();
        match stream.reply().await.response {
            Some(Reply::RequestHeaders(_)) => {
                while !stream.request_body().await.1 {}
                responses.served += 1;
            }
            Some(Reply::ImmediateResponse(refusal)) if has_reason(&refusal, "rejected-saturated") => {
                responses.refused += 1;
            }
            Some(Reply::ImmediateResponse(refusal)) if has_reason(&refusal, "evicted-queue-pressure") => {
                responses.shed += 1;
            }
            other => panic!("{other:?}"),
        }
        responses
    })
}

/// Outcomes of all requests together.
async fn responses(readers: Vec<JoinHandle<Responses>>) -> Responses {
    let mut all = Responses::default();
    for reader in readers {
        let Responses { served, refused, shed } = reader.await.unwrap();
        (all.served, all.refused, all.shed) = (all.served + served, all.refused + refused, all.shed + shed);
    }
    all
}

/// Takes out the streams that have been refused by now for want of room. Returns how many those are.
fn take_refused(streams: &mut Vec<Stream>) -> usize {
    let is_refused = |stream: &mut Stream| match stream.ready_reply().map(|reply| reply.response) {
        None => false,
        Some(Some(Reply::ImmediateResponse(refusal))) => {
            assert!(has_reason(&refusal, "rejected-saturated"), "{refusal:?}");
            true
        }
        Some(other) => panic!("{other:?}"),
    };
    streams.extract_if(.., is_refused).count()
}

/// The process has never taken as much as its budget, and has much of the room again that it had: its
/// own code has come since. Others are served meanwhile, as threads that serve nothing keep what
/// others freed for them.
async fn stayed_within(process: &Process, budget: usize, limit: f64) {
    let peak = process.peak();
    assert!(peak < budget * MI, "{peak} bytes of {budget} MiB");
    let start = Instant::now();
    while process.limit() < limit * 0.55 && start.elapsed() < PATIENCE / 4 {
        let mut stream = process.connect().await.stream().await;
        stream.try_send(headers(&COMPLETION, false));
        stream.try_send(body(PROMPT, true));
        // It may be refused as yet.
        drop(stream.reply().await);
    }
    // Judged by one look: what is counted moves between two of them.
    let (mut held, mut now) = (0.0, 0.0);
    let mut is_back = false;
    settle(|| {
        (held, now) = (process.held(), process.limit());
        is_back = held == 0.0 && now > limit * 0.4;
        is_back || start.elapsed() > PATIENCE / 2
    })
    .await;
    assert!(is_back, "{held} bytes are held, and the limit is {now} of {limit}: {:#?}", process.warnings());
    is_served(&process.connect().await).await;
    let peak = process.peak();
    assert!(peak < budget * MI, "{peak} bytes of {budget} MiB");
}

/// Sends a request with this body until there is room for it. Returns how often it was refused.
async fn served_in_the_end(process: &Process, text: &str) -> u32 {
    for refused in 0..1000 {
        let mut stream = process.connect().await.stream().await;
        stream.try_send(headers(&COMPLETION, false));
        stream.try_send(body(text, true));
        match stream.reply().await.response {
            Some(Reply::RequestHeaders(_)) => return refused,
            Some(Reply::ImmediateResponse(refusal)) => assert!(has_reason(&refusal, "rejected-saturated")),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it is never served");
}

/// Begins an ext_proc call with a first message, framed, and waits for the head of its response.
async fn begin_call(
    send: &mut SendRequest<Bytes>,
    first: &[u8],
) -> (http::Response<RecvStream>, SendStream<Bytes>) {
    let request = http::Request::post("http://x/envoy.service.ext_proc.v3.ExternalProcessor/Process")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    poll_fn(|context| send.poll_ready(context)).await.unwrap();
    let (response, mut body) = send.send_request(request, false).unwrap();
    body.send_data(Bytes::copy_from_slice(first), false).unwrap();
    (response.await.unwrap(), body)
}
