//! Connections to the ext_proc port on which nothing is asked, or nothing said.

use std::net::TcpStream;

use super::checks::is_healthy;
use super::raw::{DATA, GOAWAY, Raw};
use super::*;

/// More than twice what a [small budget](small_budget) has room for.
const IDLE: usize = 1100;

/// Idle connections, all of which the process has seen.
fn idle(process: &Process) -> Vec<Raw> {
    let mut idle: Vec<_> = (0..IDLE)
        .map(|_| {
            let mut raw = Raw::connect(process.extproc, 1 << 20);
            raw.send();
            raw
        })
        .collect();
    assert!(idle.iter_mut().next_back().unwrap().is_alive());
    idle
}

/// Most of them have been closed.
async fn made_room(process: &Process) {
    // Those of 32 KiB in an eighth of the budget stay.
    let staying = small_budget() * MI / 8 / (32 << 10);
    let most = (IDLE - staying) as f64 * 0.9;
    settle(|| process.metric("usher_connections_evicted_total") >= most).await;
    settle(|| process.metric("usher_memory_connections_bytes") <= (small_budget() * MI / 8) as f64).await;
}

#[tokio::test]
async fn idle_connections_block_no_new_stream() {
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    let idle = idle(&process);
    is_healthy(process.extproc).await;
    is_healthy(process.health).await;
    made_room(&process).await;
    // The allocator takes a moment to give back what those had that were closed.
    let used = || process.held() + process.metric("usher_memory_connections_bytes");
    settle(|| process.limit() > used() + (4 * MI) as f64).await;
    let before = process.metric("usher_memory_refused_total");
    for _ in 0..10 {
        drop(is_served(&process.connect().await).await);
    }
    assert_eq!(process.metric("usher_memory_refused_total"), before);
    drop(idle);
    stayed_within(&process, small_budget(), limit).await;
}

/// The connections of gateways that are as old as any: one with a request, and an idle one.
#[tokio::test]
async fn connections_with_a_request_and_those_of_other_addresses_stay() {
    let process = Process::start(small_budget(), 1, &[]);
    let busy = process.connect().await;
    let mut stream = is_served(&busy).await;
    let mut gateway = Raw::connect_from(ELSEWHERE, process.extproc, 1 << 20);
    assert!(gateway.is_alive());
    let _idle = idle(&process);
    made_room(&process).await;
    assert!(stream.request_body().await.1);
    stream.send(response_headers(&[(":status", "200")], true));
    stream.response_headers().await;
    gateway.open(1);
    gateway.request(1, &[(":method", "GET"), (":path", "/v1/models")], true);
    gateway.send();
    loop {
        let frame = gateway.next().expect("the connection ended");
        assert_ne!(frame.kind, GOAWAY);
        if frame.kind == DATA {
            break;
        }
    }
}

/// More connections than the process may have open files, none of which leaves when it is told to.
#[tokio::test]
async fn idle_connections_free_file_descriptors() {
    const FILES: usize = 512;
    let process = Process::start_with_files(FILES, 256, 1, &[]);
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        let mut raw = Raw::connect(process.extproc, 1 << 20);
        // One that is refused may be closed by now.
        if raw.try_send() {
            idle.push(raw);
        }
    }
    settle(|| process.metric("usher_connections_evicted_total") > 0.0).await;
    // Those that are idle leave, so that there is room again, without more that come.
    settle(|| process.metric("usher_memory_connections_bytes") <= (FILES / 64 * 25 * (32 << 10)) as f64)
        .await;
    is_healthy(process.health).await;
    is_healthy(process.extproc).await;
    drop(is_served(&process.connect().await).await);
    // Five eighths of all files are for connections.
    assert!(process.metric("usher_memory_connections_bytes") <= (FILES / 8 * 5 * (32 << 10)) as f64);
    assert_eq!(process.logged("cannot accept connections"), 0, "{:#?}", process.warnings());
    drop(idle);
}

/// More connections than may be opening at a time, none of which says anything.
#[tokio::test]
async fn silent_connections_block_no_gateway() {
    let process = Process::start(small_budget(), 1, &[]);
    let _silent: Vec<_> = (0..1200).map(|_| TcpStream::connect(process.extproc).unwrap()).collect();
    is_healthy(process.extproc).await;
    drop(is_served(&process.connect().await).await);
    assert_ne!(process.metric("usher_connections_refused_total"), 0.0);
}
