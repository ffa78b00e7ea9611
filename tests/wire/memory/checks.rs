//! Health checks that begin and don't go on.

use std::io::Write;
use std::net::TcpStream;

use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use usher::scaling::keda::proto::ScaledObjectRef;

use super::process::ADMIN;
use super::raw::{ACK, DATA, END_STREAM, PING, Raw};
use super::*;
use crate::capacity::policy;

const CHECKS: u32 = 50_000;

/// Most bytes that all small ports take of a small budget: a sixteenth.
fn share() -> f64 {
    (small_budget() * MI / 16) as f64
}

/// Bytes that small ports take.
fn small(process: &Process) -> f64 {
    let bytes = process.metric("usher_memory_small_ports_bytes");
    assert!(bytes > 0.0, "the scrape counts itself");
    bytes
}

/// A health check on a connection of its own.
pub async fn is_healthy(address: std::net::SocketAddr) {
    let channel = Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap();
    let response =
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(response.status(), ServingStatus::Serving);
}

/// 50,000 calls of `Check` without a message, on one connection to each port that has health.
#[tokio::test]
async fn incomplete_health_checks_are_bounded() {
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    for address in [process.extproc, process.health] {
        let mut raw = Raw::connect(address, 1 << 20);
        for check in 0..CHECKS {
            raw.call(2 * check + 1, "/grpc.health.v1.Health/Check");
            if check % 1000 == 999 {
                assert!(raw.is_alive());
            }
        }
        is_healthy(address).await;
        drop(is_served(&process.connect().await).await);
        // Those that are read wait for the rest, and all others were refused.
        settle(|| small(&process) <= f64::from(256 << 10)).await;
    }
    stayed_within(&process, small_budget(), limit).await;
    assert_eq!(process.metric("usher_memory_refused_total"), 0.0);
}

/// More empty frames than HTTP/2 lets a client send.
#[tokio::test]
async fn closed_small_port_connection_is_counted_and_logged() {
    let process = Process::start(small_budget(), 1, &[]);
    let mut raw = Raw::connect(process.health, 1 << 20);
    raw.call(1, "/grpc.health.v1.Health/Check");
    (0..200).for_each(|_| raw.frame(DATA, 0, 1, &[]));
    assert!(!raw.is_alive());
    settle(|| process.metric("usher_connections_goaway_total") == 1.0).await;
    settle(|| process.logged("connection ended with GOAWAY") == 1).await;
    assert_eq!(process.logged("ENHANCE_YOUR_CALM"), 1, "{:#?}", process.warnings());
    // One from elsewhere is another line, though it ends for the same reason.
    let mut raw = Raw::connect_from(ELSEWHERE, process.health, 1 << 20);
    raw.call(1, "/grpc.health.v1.Health/Check");
    (0..200).for_each(|_| raw.frame(DATA, 0, 1, &[]));
    assert!(!raw.is_alive());
    settle(|| process.logged(&format!("{ELSEWHERE}:")) == 1).await;
}

/// Acknowledgements of a PING that nobody sent.
#[tokio::test]
async fn clients_cannot_flood_the_log() {
    let process = Process::start(small_budget(), 1, &[]);
    for address in [process.extproc, process.health] {
        let mut raw = Raw::connect(address, 1 << 20);
        (0..100).for_each(|_| raw.frame(PING, ACK, 0, &[9; 8]));
        assert!(raw.is_alive());
    }
    // Connections that end for the same reason are one line.
    for _ in 0..5 {
        let mut raw = Raw::connect(process.health, 1 << 20);
        raw.frame(DATA, 0, 0, &[]);
        assert!(!raw.is_alive());
    }
    settle(|| process.metric("usher_connections_goaway_total") == 5.0).await;
    let lines = (process.logged("PING"), process.logged("connection ended with GOAWAY"));
    assert_eq!(lines, (0, 1), "{:#?}", process.warnings());
}

/// More clients than a small port serves, each of which says nothing.
#[tokio::test]
async fn silent_connections_block_no_health_check_or_scrape() {
    let process = Process::start(small_budget(), 1, &[]);
    let mut silent = Vec::new();
    for address in [process.health, process.metrics] {
        for _ in 0..300 {
            let mut stream = TcpStream::connect(address).unwrap();
            // The head of a request that never ends, or a broken preface's beginning.
            stream.write_all(b"P").unwrap();
            silent.push(stream);
        }
    }
    is_healthy(process.health).await;
    assert!(small(&process) <= share());
    for _ in 0..10 {
        drop(is_served(&process.connect().await).await);
    }
    assert_eq!(process.metric("usher_memory_refused_total"), 0.0);
}

/// More connections than the port for health has room for, each of which has said enough.
#[tokio::test]
async fn connections_of_one_address_close_no_others() {
    let process = Process::start(small_budget(), 1, &[]);
    let mut gateway = Raw::connect_from(ELSEWHERE, process.health, 1 << 20);
    assert!(gateway.is_alive());
    let mut others = Vec::new();
    for _ in 0..300 {
        let mut other = Raw::connect(process.health, 1 << 20);
        assert!(other.is_alive());
        others.push(other);
    }
    assert!(gateway.is_alive());
    // A quarter of the share, besides the scrape: most of the others were closed.
    assert!(small(&process) <= share() / 4.0 + f64::from(128 << 10));
}

/// More watchers than there is room for, on each port that has health.
#[tokio::test]
async fn health_watchers_do_not_affect_requests() {
    const CONNECTIONS: usize = 256;
    const WATCHERS: usize = 16;
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    let mut watchers = Vec::new();
    for address in [process.health, process.extproc] {
        for _ in 0..CONNECTIONS {
            let endpoint = Endpoint::new(format!("http://{address}")).unwrap();
            let mut client = HealthClient::new(endpoint.connect().await.unwrap());
            for _ in 0..WATCHERS {
                let mut watcher = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
                let first = watcher.message().await.unwrap().unwrap();
                assert_eq!(first.status(), ServingStatus::Serving);
                watchers.push(watcher);
            }
        }
        assert!(small(&process) <= share(), "{}", small(&process));
        is_healthy(address).await;
        for _ in 0..10 {
            drop(is_served(&process.connect().await).await);
        }
    }
    assert_eq!(process.metric("usher_memory_refused_total"), 0.0);
    assert!(process.metric("usher_small_requests_ended_total") > (CONNECTIONS * WATCHERS) as f64);
    settle(|| process.metric("usher_memory_connections_bytes") <= (small_budget() * MI / 8) as f64).await;
    drop(watchers);
    // The scrape that says so counts itself.
    settle(|| small(&process) <= f64::from(128 << 10)).await;
    stayed_within(&process, small_budget(), limit).await;
}

/// Watchers that leave no window for what they are sent.
#[tokio::test]
async fn health_watchers_that_read_nothing_are_closed() {
    const CONNECTIONS: u32 = 40;
    const WATCHERS: u32 = 16;
    let process = Process::start(small_budget(), 1, &[]);
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut raw = Raw::connect(process.health, 0);
        for stream in (0..WATCHERS).map(|index| 2 * index + 1) {
            raw.call(stream, "/grpc.health.v1.Health/Watch");
            // A message without a name.
            raw.frame(DATA, END_STREAM, stream, &[0; 5]);
        }
        assert!(raw.is_alive());
        connections.push(raw);
    }
    // A fifth of a quarter is for one port, and each takes 10 KiB.
    let room = (share() / 20.0 / f64::from(10 << 10)).ceil();
    let ended = || process.metric("usher_small_requests_ended_total");
    settle(|| ended() >= f64::from(CONNECTIONS * WATCHERS) - room).await;
    let most = share() / 4.0 + f64::from(CONNECTIONS * (28 << 10)) + f64::from(128 << 10);
    settle(|| small(&process) <= most).await;
    is_healthy(process.health).await;
}

/// More watchers on one port than it has room for, and before them one on another.
#[tokio::test]
async fn watchers_of_one_port_close_none_of_another() {
    let process = Process::start(small_budget(), 1, &[]);
    let watch = |address, watchers: u32| {
        let mut raw = Raw::connect(address, 1 << 20);
        for stream in (0..watchers).map(|index| 2 * index + 1) {
            raw.call(stream, "/grpc.health.v1.Health/Watch");
            raw.frame(DATA, END_STREAM, stream, &[0; 5]);
        }
        assert!(raw.is_alive());
        raw
    };
    let mut gateway = watch(process.extproc, 1);
    let _others: Vec<_> = (0..30).map(|_| watch(process.health, 16)).collect();
    settle(|| process.metric("usher_small_requests_ended_total") >= 400.0).await;
    assert!(!gateway.frames().iter().any(|frame| frame.ends(1)));
}

/// More silent connections, watchers and streams on the ports for KEDA and administration than there is room for.
#[tokio::test]
async fn floods_of_keda_and_admin_leave_requests_alone() {
    const CONNECTIONS: usize = 300;
    const STREAMS: u32 = 256;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy("llama", "interval: 30m, roles: {decode: {min: 0, max: 8}}")).unwrap();
    let flags = [ADMIN, "--keda-address=127.0.0.1:0", &format!("--capacity-policy={}", file.display())];
    let process = Process::start(small_budget(), 1, &flags);
    let limit = process.limit();
    let (admin, keda) = (process.admin.unwrap(), process.keda.unwrap());
    let mut open = Vec::new();
    for (address, said) in
        [(admin, "P"), (keda, "P"), (admin, "GET /events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")]
    {
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(address).unwrap();
            // What it says last is never read.
            let _ = stream.write_all(said.as_bytes());
            open.push(stream);
        }
        drop(is_served(&process.connect().await).await);
    }
    let watched = ScaledObjectRef {
        scaler_metadata: [("policy".to_owned(), "llama".to_owned())].into(),
        ..ScaledObjectRef::default()
    };
    let mut watchers = Vec::new();
    for _ in 0..20 {
        let mut raw = Raw::connect(keda, 1 << 20);
        for index in 0..STREAMS {
            raw.call(2 * index + 1, "/externalscaler.ExternalScaler/StreamIsActive");
            // Every other one asks for nothing.
            if index % 2 == 0 {
                raw.message(2 * index + 1, &watched);
            }
        }
        // It may have been closed for others.
        raw.try_send();
        watchers.push(raw);
        drop(is_served(&process.connect().await).await);
    }
    settle(|| process.metric("usher_small_requests_ended_total") > f64::from(STREAMS)).await;
    assert!(small(&process) <= share(), "{}", small(&process));
    is_healthy(process.health).await;
    assert_eq!(process.metric("usher_memory_refused_total"), 0.0);
    drop((open, watchers));
    settle(|| small(&process) <= f64::from(128 << 10)).await;
    stayed_within(&process, small_budget(), limit).await;
}

#[tokio::test]
async fn health_is_answered_while_memory_is_full() {
    let process = Process::start(small_budget(), 1, &["--body-idle-timeout=10m"]);
    let limit = process.limit();
    let connection = process.connect().await;
    let chunk = vec![b' '; MI];
    let refused = || process.metric("usher_memory_refused_total");
    let mut open = Vec::new();
    while refused() == 0.0 {
        let stream = connection.stream().await;
        stream.try_send(headers(&COMPLETION, false));
        stream.try_send(body(&chunk, false));
        open.push(stream);
        settle(|| process.held() >= (open.len() * MI) as f64 || refused() > 0.0).await;
    }
    for address in [process.extproc, process.health] {
        is_healthy(address).await;
    }
    drop(open);
    stayed_within(&process, small_budget(), limit).await;
}
