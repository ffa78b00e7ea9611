//! Health checks that begin and don't go on.

use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::raw::Raw;
use super::*;

const CHECKS: u32 = 50_000;

/// A health check on a connection of its own.
async fn is_healthy(address: std::net::SocketAddr) {
    let channel = Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap();
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
}

/// 50,000 calls of `Check` without a message, on one connection to each port that has health.
#[tokio::test]
async fn checks_that_are_not_complete_cost_nobody_anything() {
    let process = Process::start(96, 1, &[]);
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
        settle(|| process.metric("usher_memory_streams_bytes") <= f64::from(16 * 8192)).await;
    }
    stayed_within(&process, 96, limit).await;
    assert_eq!(process.metric("usher_memory_refused_total"), 0.0);
}

/// More clients than a small port serves, each of which says nothing.
#[tokio::test]
async fn silent_connections_keep_no_health_check_out() {
    let process = Process::start(96, 1, &[]);
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(std::net::TcpStream::connect(process.health).unwrap());
    }
    is_healthy(process.health).await;
}

/// As many watchers as the port for health has room for.
#[tokio::test]
async fn watchers_of_health_leave_requests_alone() {
    const CONNECTIONS: usize = 256;
    const WATCHERS: usize = 16;
    let process = Process::start(256, 1, &[]);
    let limit = process.limit();
    let mut watchers = Vec::new();
    for _ in 0..CONNECTIONS {
        let endpoint = Endpoint::new(format!("http://{}", process.health)).unwrap();
        let mut client = HealthClient::new(endpoint.connect().await.unwrap());
        for _ in 0..WATCHERS {
            let mut watcher = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
            let first = watcher.message().await.unwrap().unwrap();
            assert_eq!(first.status(), ServingStatus::Serving);
            watchers.push(watcher);
        }
    }
    assert!(process.metric("usher_memory_streams_bytes") >= (CONNECTIONS * WATCHERS * 8192) as f64);
    for _ in 0..10 {
        drop(is_served(&process.connect().await).await);
    }
    assert_eq!(process.metric("usher_memory_refused_total"), 0.0);
    drop(watchers);
    settle(|| process.metric("usher_memory_streams_bytes") <= f64::from(16 * 8192)).await;
    stayed_within(&process, 256, limit).await;
}
