//! Clients that leave what is sent to them in their sockets: HTTP/2 keeps the ends of their streams, and has no flow
//! control for those.

use std::net::SocketAddr;

use super::raw::{DATA, END_HEADERS, END_STREAM, HEADERS, PRIORITY, PUSH_PROMISE, Raw};
use super::*;

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Calls of a connection: several times as many as would take the budget.
const CALLS: u32 = 300_000;

/// Clients that take nothing, each on a connection.
const CLIENTS: u32 = 4;

/// Asserts that such clients of the ext_proc port are made to wait, and that another client is served meanwhile.
async fn is_bounded(call: fn(&mut Raw, u32)) {
    let process = Process::start(small_budget(), 1, &[]);
    is_bounded_at(&process, process.extproc, call).await;
}

/// The same of another port of the process.
async fn is_bounded_at(process: &Process, address: SocketAddr, call: fn(&mut Raw, u32)) {
    let limit = process.limit();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            tokio::task::spawn_blocking(move || {
                let mut raw = Raw::deaf(address);
                let mut calls = 0;
                while calls < CALLS {
                    (0..100).for_each(|more| call(&mut raw, 2 * (calls + more) + 1));
                    if !raw.try_send() {
                        break;
                    }
                    calls += 100;
                }
                (raw, calls)
            })
        })
        .collect();
    let mut open = Vec::new();
    for client in clients {
        let (raw, calls) = client.await.unwrap();
        assert!(calls < CALLS, "it has to wait");
        open.push(raw);
    }
    is_served_again(process).await;
    drop(open);
    stayed_within(process, small_budget(), limit).await;
}

#[tokio::test]
async fn replies_unread_in_client_sockets_are_bounded() {
    is_bounded(|raw, stream| {
        raw.call(stream, PROCESS);
        raw.request(stream, &[(":path", "/")], true);
        raw.frame(DATA, END_STREAM, stream, &[]);
    })
    .await;
}

#[tokio::test]
async fn refused_calls_of_silent_clients_are_bounded() {
    is_bounded(|raw, stream| {
        raw.call(stream, "/no.such.Service/Call");
        raw.frame(DATA, END_STREAM, stream, &[0; 5]);
    })
    .await;
}

#[tokio::test]
async fn resets_unread_in_client_sockets_are_bounded() {
    is_bounded(|raw, stream| raw.broken(stream, PROCESS)).await;
}

/// PRIORITY of a stream that depends on itself, which HTTP/2 resets whether there is one or not.
#[tokio::test]
async fn resets_for_priority_frames_are_bounded() {
    let process = Process::start(small_budget(), 1, &[]);
    for address in [process.extproc, process.health] {
        let priority = |raw: &mut Raw, stream: u32| {
            raw.frame(PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[0]].concat());
        };
        is_bounded_at(&process, address, priority).await;
    }
}

/// PUSH_PROMISE whose headers have two paths, which resets the stream that it names.
#[tokio::test]
async fn resets_for_push_promises_are_bounded() {
    let process = Process::start(small_budget(), 1, &[]);
    for address in [process.extproc, process.health] {
        let promise = |raw: &mut Raw, stream: u32| {
            raw.frame(PUSH_PROMISE, END_HEADERS, stream, &[0, 0, 0, 2, 0x84, 0x84]);
        };
        is_bounded_at(&process, address, promise).await;
    }
}

/// Trailers that are hundreds of bytes on their way, and sixteen thousand in memory.
#[tokio::test]
async fn unread_trailers_are_bounded() {
    const CONNECTIONS: usize = 40;
    const STREAMS: u32 = 100;
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    // Names by their numbers in the static table, but for those that say how a message is sent.
    let names: Vec<u8> = (15..62).filter(|name| ![28, 38, 57].contains(name)).collect();
    let trailers: Vec<u8> = names.iter().cycle().take(320).map(|name| 0x80 | name).collect();
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut raw = Raw::connect(process.extproc, 0);
        let streams = || (0..STREAMS).map(|number| 2 * number + 1);
        for stream in streams() {
            raw.open(stream);
            raw.request(stream, &[(":method", "GET"), (":path", "/v1/models")], true);
        }
        let _ = raw.try_send();
        for stream in streams() {
            raw.frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
        }
        let _ = raw.try_send();
        open.push(raw);
    }
    // All of them come from one address.
    settle(|| process.logged("more trailers than may be unread") == 1).await;
    is_served_again(&process).await;
    drop(open);
    stayed_within(&process, small_budget(), limit).await;
}
