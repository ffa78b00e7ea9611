use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use usher::extproc::accept::accept;
use usher::extproc::health::{self, HealthState};
use usher::extproc::router::Router;
use usher::extproc::tls::Tls;
use usher::extproc::workers::Workers;
use usher::settings::TlsSettings;

use crate::health::check;
use crate::server::{Call, EchoServer, Running, echo, plain, secure};
use crate::support::listener;

fn router() -> Router<EchoServer> {
    Router::new(echo(), health::service(Arc::new(HealthState::new(false))), &Arc::default())
}

#[tokio::test]
async fn connections_spread_evenly_over_the_threads() {
    let listener = listener();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap();
    let workers = Arc::new(Workers::start(4, &router(), None, Default::default()).unwrap());
    let acceptor = tokio::spawn({
        let workers = workers.clone();
        async move { accept(&listener, |stream, peer| workers.serve(stream.into_std().unwrap(), peer)).await }
    });

    let mut calls = Vec::new();
    let mut per_thread = BTreeMap::new();
    for _ in 0..12 {
        let call = Call::open(&plain(address).await).await;
        *per_thread.entry(call.thread.clone()).or_insert(0) += 1;
        calls.push(call);
    }
    let names = ["usher-worker-0", "usher-worker-1", "usher-worker-2", "usher-worker-3"];
    assert_eq!(per_thread, names.map(|name| (name.to_owned(), 3)).into());
    assert_eq!(workers.threads().open(), [3, 3, 3, 3]);

    // Streams of one connection stay on its thread.
    let channel = plain(address).await;
    let first = Call::open(&channel).await.thread;
    for _ in 0..8 {
        assert_eq!(Call::open(&channel).await.thread, first);
    }
    drop((calls, channel));
    workers.drain().await;
    // Streams end a moment after their connection, on threads of their own.
    let ended = async {
        while workers.threads().open() != [0, 0, 0, 0] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("all streams end");
    acceptor.abort();
    assert!(acceptor.await.unwrap_err().is_cancelled());
    Arc::into_inner(workers).unwrap().close();
}

#[tokio::test]
async fn connections_carry_thousands_of_open_streams() {
    let server = Running::plain();
    let channels = join_all((0..30).map(|_| plain(server.extproc))).await;
    let mut calls = join_all(channels.iter().cycle().take(3000).map(Call::open)).await;
    for call in &mut calls {
        call.exchange().await.unwrap();
    }
    for call in calls {
        call.finish().await.unwrap();
    }
}

#[tokio::test]
async fn garbage_does_no_harm() {
    for tls in [None, Some(TlsSettings::default())] {
        let secured = tls.is_some();
        let server = Running::start(tls, std::time::Duration::ZERO);
        for junk in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], &[0xff; 4096], &[0x16, 3, 1, 0xff, 0xff, 1]] {
            for port in [server.extproc, server.health_port] {
                let mut stream = TcpStream::connect(port).await.unwrap();
                // The server may hang up before it has read everything.
                let _ = stream.write_all(junk).await;
                let _ = stream.shutdown().await;
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
            }
        }
        let channel = if secured { secure(server.extproc).await } else { plain(server.extproc).await };
        check(&channel, "").await;
        check(&plain(server.health_port).await, "").await;
        Call::open(&channel).await.exchange().await.unwrap();
    }
}

/// Frames of HTTP/2 on the wire, as far as these tests need them.
struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

/// Connects and sends the preface and empty settings.
async fn greet(server: &Running) -> TcpStream {
    let mut stream = TcpStream::connect(server.extproc).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
    stream
}

async fn read_frame(stream: &mut TcpStream) -> Frame {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).await.unwrap();
    Frame { kind: head[3], flags: head[4], payload }
}

#[tokio::test]
async fn many_pings_are_answered() {
    let server = Running::plain();
    let mut stream = greet(&server).await;
    let mut answered = 0_u64;
    let mut settings = None;
    for number in 0_u64..200 {
        stream.write_all(&[0, 0, 8, PING, 0, 0, 0, 0, 0]).await.unwrap();
        stream.write_all(&number.to_be_bytes()).await.unwrap();
        while answered <= number {
            let frame = read_frame(&mut stream).await;
            assert_ne!(frame.kind, GOAWAY, "after {number} pings");
            if frame.kind == SETTINGS && frame.flags & ACK == 0 {
                settings = Some(frame.payload);
            } else if frame.kind == PING {
                assert_eq!((frame.flags & ACK, frame.payload), (ACK, number.to_be_bytes().to_vec()));
                answered += 1;
            }
        }
    }
    // What the gateway learns about limits: identifier, value.
    let settings: BTreeMap<_, _> = settings
        .unwrap()
        .chunks_exact(6)
        .map(|entry| {
            let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
            (u16::from_be_bytes([entry[0], entry[1]]), value)
        })
        .collect();
    let (max_streams, window, header_list) = (settings[&3], settings[&4], settings[&6]);
    // Gateways open other connections then. Fewer than 100 HTTP/2 advises against.
    assert_eq!(max_streams, 100);
    assert!(window >= 64 * 1024, "{window}");
    assert!(header_list >= 8 * 1024, "{header_list}");
}

#[tokio::test]
async fn mass_disconnects_leave_the_connection_usable() {
    let server = Running::plain();
    let mut stream = greet(&server).await;
    // 500 calls that are reset right after their headers, in one write: POST, http, "/".
    let mut crowd = Vec::new();
    for id in (1..1000_u32).step_by(2) {
        crowd.extend([0, 0, 3, 1, 4]);
        crowd.extend(id.to_be_bytes());
        crowd.extend([0x83, 0x86, 0x84]);
        crowd.extend([0, 0, 4, 3, 0]);
        crowd.extend(id.to_be_bytes());
        crowd.extend(8_u32.to_be_bytes());
    }
    crowd.extend([0, 0, 8, PING, 0, 0, 0, 0, 0]);
    crowd.extend([7; 8]);
    stream.write_all(&crowd).await.unwrap();
    loop {
        let frame = read_frame(&mut stream).await;
        assert_ne!(frame.kind, GOAWAY);
        if frame.kind == PING {
            break;
        }
    }
}

#[tokio::test]
async fn early_streams_above_the_limit_are_served() {
    const RST_STREAM: u8 = 3;
    let server = Running::plain();
    let mut stream = greet(&server).await;
    let mut calls = Vec::new();
    for id in (1..1000_u32).step_by(2) {
        // As above, and they stay open.
        calls.extend([0, 0, 3, 1, 4]);
        calls.extend(id.to_be_bytes());
        calls.extend([0x83, 0x86, 0x84]);
    }
    calls.extend([0, 0, 8, PING, 0, 0, 0, 0, 0]);
    calls.extend([7; 8]);
    stream.write_all(&calls).await.unwrap();
    loop {
        let frame = read_frame(&mut stream).await;
        let refused = frame.kind == RST_STREAM && frame.payload == [0, 0, 0, 7];
        assert!(frame.kind != GOAWAY && !refused);
        if frame.kind == PING {
            break;
        }
    }
}

#[tokio::test]
async fn dropping_the_workers_closes_their_connections() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let tls = Tls::new(&TlsSettings::default()).unwrap();
    let workers = Workers::start(1, &router(), Some(tls.config), Default::default()).unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    let (stream, peer) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    workers.serve(stream, peer);
    drop(workers);
    let mut rest = Vec::new();
    // End of file or a reset; anything but waiting for the handshake to time out.
    let _ = client.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}
