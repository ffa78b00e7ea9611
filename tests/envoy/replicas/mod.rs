//! Three pickers that share what they know through a real store, behind an Envoy that spreads requests over them: when
//! the store or one of them fails, so do no requests but those that it held, and what ended counts nowhere.

mod proxy;
#[path = "../../wire/replicas/redis.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod redis;
mod requests;

use std::net::SocketAddr;
use std::time::Duration;

use http::Request;
use usher::sim::EngineConfig;

use self::proxy::Proxy;
use self::redis::Redis;
use self::requests::{Held, Load, NONE};
use crate::pickers;
use crate::support::client::{self, HttpResponse, Protocol};
use crate::support::envoy::{Edit, Envoy};
use crate::support::servers::{SERVERS, Servers, quick};
use crate::support::usher::Usher;

const REPLICAS: usize = 3;
/// The replica that something happens to.
const VICTIM: usize = 2;

/// Requests that last, which Envoy spreads evenly.
const HELD: usize = 12 * REPLICAS;

/// Other requests that may come or go between two looks. Fewer than a replica holds.
const PASSING: i64 = 6;

const CONFIG: &str = "--config-text=
plugins:
- {type: approx-prefix-cache-producer, parameters: {autoTune: false, blockSizeTokens: 64}}
- {type: prefix-cache-scorer}
- {type: inflight-load-producer, parameters: {addEstimatedOutputTokens: true}}
- {type: active-request-scorer}
- {type: token-load-scorer}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: active-request-scorer}, {pluginRef: token-load-scorer}]}
";

/// Families of what is under way at a replica.
const UNDER_WAY: [&str; 4] = [
    "llm_d_epp_extproc_streams_inflight",
    "llm_d_epp_inflight_requests",
    "llm_d_epp_inflight_tokens",
    "llm_d_epp_request_running",
];

/// Waits until something is so.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    crate::support::eventually(what, async || is_so().await.then_some(())).await;
}

/// A picker that shares what it knows, and its ports.
struct Replica {
    usher: Usher,
    metrics: SocketAddr,
    admin: SocketAddr,
}

impl Replica {
    async fn start(servers: &[SocketAddr], store: &str) -> Self {
        let flags = [
            "--outlier-detection=false",
            "--admin-address=127.0.0.1:0",
            "--warm-up-timeout=60s",
            "--enable-grpc-stream-metrics",
        ];
        Self::of(Usher::start(servers, &[&flags[..], &[CONFIG, store]].concat()).await).await
    }

    async fn of(usher: Usher) -> Self {
        let (metrics, admin) = (usher.port("metrics").await, usher.port("admin").await);
        Self { usher, metrics, admin }
    }

    /// Requests at all endpoints: its own, and those of the others.
    async fn requests(&self) -> (i64, i64) {
        let page = page(self.admin, "/endpoints").await.json();
        let rows = page["endpoints"].as_array().unwrap();
        let sum = |of: &str| rows.iter().map(|row| row[of].as_i64().unwrap()).sum();
        (sum("in_flight"), sum("in_flight_of_others"))
    }

    /// Sum over a family's series.
    async fn sum(&self, family: &str) -> f64 {
        sum(page(self.metrics, "/metrics").await.text(), family)
    }

    /// Everything that is not 0, though nothing is under way.
    async fn remains(&self) -> Vec<(&'static str, f64)> {
        let (own, others) = self.requests().await;
        let page = page(self.metrics, "/metrics").await;
        let gauges = UNDER_WAY.map(|family| (family, sum(page.text(), family)));
        let requests = [("own requests", own as f64), ("others' requests", others as f64)];
        requests.into_iter().chain(gauges).filter(|(_, value)| *value != 0.0).collect()
    }

    async fn is_connected(&self, connected: bool) {
        let is_so = async || self.sum("usher_state_store_connected").await == f64::from(u8::from(connected));
        eventually("the store", is_so).await;
    }
}

async fn page(of: SocketAddr, path: &str) -> HttpResponse {
    client::send(of, Protocol::Http1, Request::get(path).body(client::empty()).unwrap()).await
}

/// Sum over a family's series on a page of metrics.
fn sum(page: &str, family: &str) -> f64 {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(family)?;
        let (_, value) = rest.rsplit_once(' ').filter(|_| rest.starts_with(['{', ' ']))?;
        value.parse::<f64>().ok()
    });
    values.sum()
}

/// Replicas, servers, and Envoy.
struct Pool {
    _servers: Servers,
    replicas: Vec<Replica>,
    envoy: Envoy,
}

impl Pool {
    async fn start(store: &str, edits: &[Edit<'_>]) -> Self {
        // Requests of the load last half a second.
        let engine = EngineConfig { decode_step: Duration::from_millis(100), ..quick() };
        let servers = Servers::start_with(vec![engine; SERVERS]).await;
        let mut replicas = Vec::new();
        for _ in 0..REPLICAS {
            let replica = Replica::start(&servers.addresses, store).await;
            replica.is_connected(true).await;
            replicas.push(replica);
        }
        let pickers: Vec<_> = replicas.iter().map(|replica| replica.usher.address).collect();
        let edits = [&[("lb_policy: LEAST_REQUEST", "lb_policy: ROUND_ROBIN")], edits].concat();
        let envoy = pickers::spread(&pickers, &servers.addresses, &edits).await;
        Self { _servers: servers, replicas, envoy }
    }

    async fn hold(&self) -> Held {
        Held::open(self.envoy.address, HELD).await
    }

    fn load(&self) -> Load {
        Load::start(self.envoy.address)
    }

    fn victim(&self) -> &Replica {
        &self.replicas[VICTIM]
    }

    /// Waits until each of these replicas counts the requests that these have, no more and no fewer.
    async fn counts(&self, replicas: &[usize]) {
        eventually("each other's requests", async || {
            let mut requests = Vec::new();
            for replica in replicas {
                requests.push(self.replicas[*replica].requests().await);
            }
            let all: i64 = requests.iter().map(|(own, _)| own).sum();
            requests.iter().all(|(own, others)| *own > PASSING && (all - own - others).abs() <= PASSING)
        })
        .await;
    }

    async fn know_each_other(&self) {
        self.counts(&[0, 1, VICTIM]).await;
    }

    async fn know_the_same_prefixes(&self) {
        eventually("the same prefixes", async || {
            let mut known = Vec::new();
            for replica in &self.replicas {
                known.push(replica.sum("llm_d_epp_prefix_indexer_size").await);
            }
            known[0] > 0.0 && known.iter().all(|blocks| *blocks == known[0])
        })
        .await;
    }

    /// Waits until each replica counts its own requests alone.
    async fn loses_its_store(&self) {
        for replica in &self.replicas {
            replica.is_connected(false).await;
            eventually("none of the others", async || replica.requests().await.1 == 0).await;
        }
    }

    /// Waits until all replicas know the same again.
    async fn finds_its_store(&self) {
        for replica in &self.replicas {
            replica.is_connected(true).await;
        }
        self.know_each_other().await;
        self.know_the_same_prefixes().await;
    }

    /// Waits until nothing is under way anywhere, as each replica sees it.
    async fn becomes_idle(&self) {
        let mut before = Vec::new();
        crate::support::eventually("gauges of 0", async || {
            let mut remains = Vec::new();
            for replica in &self.replicas {
                remains.push(replica.remains().await);
            }
            if remains != before {
                println!("not 0: {remains:?}");
            }
            before = remains;
            before.iter().all(Vec::is_empty).then_some(())
        })
        .await;
    }

    /// The end of each test: all know all, and then that there is nothing.
    async fn converges(&self) {
        let held = self.hold().await;
        self.know_each_other().await;
        self.know_the_same_prefixes().await;
        drop(held);
        self.becomes_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_connections_to_the_store_fail_no_request() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let proxy = Proxy::start(redis.socket()).await;
    let pool = Pool::start(&proxy.flag(), &[]).await;
    let (held, mut load) = (pool.hold().await, pool.load());
    load.answers(30).await;
    pool.know_each_other().await;
    for replica in &pool.replicas {
        eventually("gauges above 0", async || replica.remains().await.len() == UNDER_WAY.len() + 2).await;
    }
    proxy.set_faults(true);
    eventually("faults", async || proxy.did_enough()).await;
    load.answers(30).await;
    println!("{proxy}");
    drop(held);
    assert_eq!(load.end().await, NONE);
    // The faults go on.
    pool.becomes_idle().await;
    proxy.set_faults(false);
    pool.converges().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_that_is_killed_under_load_fails_no_request() {
    let Some(mut redis) = Redis::start(&[]).await else { return };
    let pool = Pool::start(&redis.flag(), &[]).await;
    let (held, mut load) = (pool.hold().await, pool.load());
    load.answers(30).await;
    pool.know_each_other().await;
    redis.kill();
    pool.loses_its_store().await;
    load.answers(90).await;
    redis.restart().await;
    pool.finds_its_store().await;
    assert_eq!(load.end().await, NONE);
    drop(held);
    pool.becomes_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_that_stops_under_load_fails_no_request() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let pool = Pool::start(&redis.flag(), &[]).await;
    let (held, mut load) = (pool.hold().await, pool.load());
    load.answers(30).await;
    pool.know_each_other().await;
    redis.signal("STOP");
    // It takes connections, and says nothing.
    pool.loses_its_store().await;
    load.answers(90).await;
    redis.signal("CONT");
    pool.finds_its_store().await;
    assert_eq!(load.end().await, NONE);
    drop(held);
    pool.becomes_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_replica_counts_nothing_until_it_goes_on() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let pool = Pool::start(&redis.flag(), &[("- timeout: 5s", "- timeout: 3s")]).await;
    let (held, mut load) = (pool.hold().await, pool.load());
    load.answers(30).await;
    pool.know_each_other().await;
    let victim = pool.victim().usher.address;
    let (begun, open) = pool.envoy.streams_to(victim).await;
    pool.victim().usher.signal("STOP").await;
    pool.counts(&[0, 1]).await;
    pool.envoy.has_pickers(REPLICAS - 1).await;
    load.stop();
    let met = open + pool.envoy.streams_to(victim).await.0 - begun;

    let mut without = pool.load();
    without.answers(60).await;
    pool.victim().usher.signal("CONT").await;
    pool.envoy.has_pickers(REPLICAS).await;
    without.answers(30).await;
    assert_eq!(without.end().await, NONE);
    // Those that met the stopped one waited: no message timeout ends a stream whose bodies are sent in full duplex.
    // After 15 s Envoy would have closed its connection.
    let failed = load.end().await.len();
    println!("{failed} failed of {met} that met the stopped replica");
    assert!(failed as u64 <= met, "{failed} failed of {met}");
    drop(held);
    pool.becomes_idle().await;
    pool.converges().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replica_costs_what_it_held_and_comes_back_warm() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let mut pool = Pool::start(&redis.flag(), &[]).await;
    let mut held = pool.hold().await;
    let lost = usize::try_from(pool.victim().requests().await.0).unwrap();
    let mut load = pool.load();
    load.answers(30).await;
    pool.know_each_other().await;
    pool.know_the_same_prefixes().await;
    let victim = pool.victim().usher.address;
    let (begun, open) = pool.envoy.streams_to(victim).await;
    pool.replicas[VICTIM].usher.kill().await;
    pool.counts(&[0, 1]).await;
    pool.envoy.has_pickers(REPLICAS - 1).await;
    // Those that it had, and whichever found out that it is gone.
    let had = open + pool.envoy.streams_to(victim).await.0 - begun;
    let gone = pool.envoy.statistic("cluster.usher.upstream_cx_connect_fail").await;
    load.answers(30).await;
    let failed = lost + load.end().await.len();
    println!("{failed} failed: it had {had}, and {gone} connections to it failed");
    assert!(failed as u64 <= had + gone, "{failed} failed of {had} and {gone}");
    crate::support::eventually("the ends of streams", async || (held.left() == HELD - lost).then_some(()))
        .await;

    let mut load = pool.load();
    let victim = pool.replicas.remove(VICTIM);
    pool.replicas.push(Replica::of(victim.usher.restart().await).await);
    pool.envoy.has_pickers(REPLICAS).await;
    // Before the first request.
    assert!(pool.victim().sum("usher_replicas_prefix_blocks_total{result=\"restored\"}").await > 0.0);
    load.answers(60).await;
    assert_eq!(load.end().await, NONE);
    assert_eq!(held.left(), HELD - lost);
    drop(held);
    pool.becomes_idle().await;
    pool.converges().await;
}
