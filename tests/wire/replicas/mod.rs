//! Replicas that share their load, prefixes and what they learned through a real Redis.

mod capacity;
mod learned;
mod prefixes;
mod redis;
mod store;

#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../../support/log.rs"]
mod log;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../../support/usher.rs"]
mod usher;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use self::redis::{PATIENCE, Redis};
use self::usher::Usher;
use crate::support::*;

/// Endpoints at which nobody listens.
const PODS: [&str; 2] = ["127.0.0.1:1", "127.0.0.1:2"];

/// Picks the endpoint with the fewest requests in flight.
const LEAST_REQUESTS: &str = "--config-text=
plugins: [{type: active-request-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}]}]
";

/// Waits until something is so.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "late: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A replica as a process, and its ports.
struct Replica {
    usher: Usher,
    metrics: SocketAddr,
    admin: SocketAddr,
}

impl Replica {
    async fn start(flags: &[&str]) -> Self {
        Self::start_with(&PODS.map(|pod| pod.parse().unwrap()), flags).await
    }

    async fn start_with(pods: &[SocketAddr], flags: &[&str]) -> Self {
        let common = ["--secure-serving=false", "--outlier-detection=false", "--admin-address=127.0.0.1:0"];
        let usher = Usher::start(pods, &[&common[..], flags].concat()).await;
        let (metrics, admin) = (usher.port("metrics").await, usher.port("admin").await);
        Self { usher, metrics, admin }
    }

    /// Opens requests that last, at the endpoint of this address.
    async fn hold(&self, requests: usize, pod: &str) -> Vec<Stream> {
        let connection = Connection::to(self.usher.address).await;
        let mut held = Vec::new();
        for _ in 0..requests {
            let mut stream = connection.stream().await;
            stream.send(with_subset(headers(&[(":path", "/v1/completions")], false), string(pod)));
            stream.send(body(PROMPT, true));
            assert_eq!(stream.request_headers().await.destination(), pod);
            held.push(stream);
        }
        held
    }

    /// The endpoint of one more request, which ends at once.
    async fn pick(&self) -> String {
        let mut stream = Connection::to(self.usher.address).await.stream().await;
        stream.send(headers(&[(":path", "/v1/completions")], false));
        stream.send(body(PROMPT, true));
        stream.request_headers().await.destination().to_owned()
    }

    /// Requests of the other replicas at each endpoint, as this one knows them.
    fn others(&self) -> [i64; 2] {
        let page = Picker::get(self.admin, "/endpoints");
        let json: serde_json::Value = serde_json::from_str(page.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let rows = json["endpoints"].as_array().unwrap();
        PODS.map(|pod| {
            let row = rows.iter().find(|row| row["address"] == pod).unwrap();
            row["in_flight_of_others"].as_i64().unwrap()
        })
    }

    async fn knows(&self, others: [i64; 2]) {
        eventually(&format!("{others:?} of others"), async || self.others() == others).await;
    }

    fn metric(&self, series: &str) -> f64 {
        Picker::metric_of(self.metrics, series).unwrap_or(0.0)
    }

    async fn is_connected(&self, connected: bool) {
        let is_so = async || self.metric("usher_state_store_connected") == f64::from(u8::from(connected));
        eventually("the store", is_so).await;
    }
}

#[tokio::test]
async fn burst_counts_at_the_other_replicas_until_it_ends() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let store = redis.flag();
    let flags = [LEAST_REQUESTS, &store];
    let (mut a, b, c) =
        (Replica::start(&flags).await, Replica::start(&flags).await, Replica::start(&flags).await);
    let own = b.hold(4, PODS[1]).await;
    assert_eq!(b.pick().await, PODS[0]);
    let burst = a.hold(20, PODS[0]).await;
    b.knows([20, 0]).await;
    c.knows([20, 4]).await;
    a.knows([0, 4]).await;
    for replica in [&b, &c] {
        assert_eq!(replica.pick().await, PODS[1]);
    }
    drop(burst);
    b.knows([0, 0]).await;
    assert_eq!(b.pick().await, PODS[0]);
    drop(own);
    for replica in [&a, &b, &c] {
        replica.knows([0, 0]).await;
    }
    // One that is killed gives nothing back.
    let _burst = a.hold(20, PODS[0]).await;
    b.knows([20, 0]).await;
    a.usher.kill().await;
    for replica in [&b, &c] {
        replica.knows([0, 0]).await;
    }
    // A new replica gets what is under way at once, however seldom the others publish.
    let _own = b.hold(3, PODS[1]).await;
    let d = Replica::start(&flags).await;
    d.knows([0, 3]).await;
    // Of one name here: they are of one machine.
    let has_ages =
        async || Picker::get(d.metrics, "/metrics").contains("usher_replicas_age_seconds{replica=");
    eventually("ages", has_ages).await;
    assert!(d.metric("usher_replicas_messages_total{result=\"own\"}") > 0.0);
}

#[tokio::test]
async fn request_waits_for_room_that_another_replica_has_taken() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let config = "--config-text=
plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 2}}]
featureGates: [flowControl]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
";
    let store = redis.flag();
    let (a, b) = (Replica::start(&[config, &store]).await, Replica::start(&[config, &store]).await);
    let mut held = a.hold(2, PODS[0]).await;
    held.extend(a.hold(2, PODS[1]).await);
    b.knows([2, 2]).await;
    let mut stream = Connection::to(b.usher.address).await.stream().await;
    stream.send(headers(&[(":path", "/v1/completions")], false));
    stream.send(body(PROMPT, true));
    let waits = async || {
        let page = Picker::get(b.metrics, "/metrics");
        page.lines()
            .any(|line| line.starts_with("llm_d_epp_flow_control_queue_size{") && line.ends_with(" 1"))
    };
    eventually("a request that waits", waits).await;
    held.pop();
    assert_eq!(stream.request_headers().await.destination(), PODS[1]);
}

#[tokio::test]
async fn unshared_producer_counts_own_requests_only() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let config = "--config-text=
plugins:
- {type: inflight-load-producer, parameters: {syncCrossReplicaState: false}}
- {type: active-request-scorer}
schedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}]}]
";
    let store = redis.flag();
    let (a, b) = (Replica::start(&[LEAST_REQUESTS, &store]).await, Replica::start(&[config, &store]).await);
    let _burst = a.hold(20, PODS[0]).await;
    let _own = b.hold(4, PODS[1]).await;
    b.knows([20, 0]).await;
    assert_eq!(b.pick().await, PODS[0]);
    a.knows([0, 4]).await;
}

#[tokio::test]
async fn expected_latency_counts_requests_of_other_replicas() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let config = "--config-text=
plugins: [{type: expected-latency-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: expected-latency-scorer}]}]
";
    let store = redis.flag();
    let (a, b) = (Replica::start(&[config, &store]).await, Replica::start(&[config, &store]).await);
    let _own = b.hold(4, PODS[1]).await;
    assert_eq!(b.pick().await, PODS[0]);
    let _burst = a.hold(40, PODS[0]).await;
    b.knows([40, 0]).await;
    assert_eq!(b.pick().await, PODS[1]);
}
