//! Prefixes that one replica has sent, known to the others and after a restart.

use std::path::PathBuf;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UnixStream};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::redis::Redis;
use super::{LEAST_REQUESTS, PODS, Replica, eventually};
use crate::support::*;

const STREAM: &[u8] = b"usher:v1:{default/epp}:prefixes";

/// Prompts of a test: enough that chance does not send all to the endpoints that have them.
const PROMPTS: usize = 12;

/// Picks the endpoint that has most of the prompt, with blocks of this many tokens.
pub(super) fn config(block: u32) -> String {
    format!(
        "--config-text=
plugins:
- {{type: approx-prefix-cache-producer, parameters: {{autoTune: false, blockSizeTokens: {block}}}}}
- {{type: prefix-cache-scorer}}
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: prefix-cache-scorer}}]}}]
"
    )
}

fn prompt(number: usize) -> String {
    format!(r#"{{"model":"m","prompt":"{}"}}"#, format!("marmalade {number} ").repeat(400))
}

/// Endpoint of a prompt. Prompts go there by a hint.
fn pod(number: usize) -> &'static str {
    PODS[number / 3 % 2]
}

impl Replica {
    async fn send(&self, number: usize, hint: Option<&str>) -> String {
        let mut stream = Connection::to(self.usher.address).await.stream().await;
        let headers = headers(&[(":path", "/v1/completions")], false);
        stream.send(match hint {
            Some(pod) => with_subset(headers, string(pod)),
            None => headers,
        });
        stream.send(body(prompt(number), true));
        stream.request_headers().await.destination().to_owned()
    }

    /// Blocks that it knows, of all endpoints.
    fn known(&self) -> f64 {
        let producer = "approx-prefix-cache-producer";
        let labels = format!("plugin_name=\"{producer}\",plugin_type=\"{producer}\"");
        self.metric(&format!("llm_d_epp_prefix_indexer_size{{{labels}}}"))
    }

    /// Waits until it knows as much as another.
    pub(super) async fn knows_as(&self, other: &Self) {
        eventually("the last block", async || self.known() == other.known()).await;
    }

    fn blocks(&self, result: &str) -> f64 {
        self.metric(&format!("usher_replicas_prefix_blocks_total{{result=\"{result}\"}}"))
    }

    fn matched(&self, source: &str) -> f64 {
        self.metric(&format!("usher_replicas_prefix_matched_blocks_total{{source=\"{source}\"}}"))
    }

    fn ignored(&self, reason: &str) -> f64 {
        self.metric(&format!("usher_replicas_prefix_entries_ignored_total{{reason=\"{reason}\"}}"))
    }

    /// Sends prompts to the endpoints of theirs, and waits until the store has them.
    pub(super) async fn warm(&self, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let before = self.blocks("sent");
            assert_eq!(self.send(number, Some(pod(number))).await, pod(number));
            eventually("a batch", async || self.blocks("sent") > before).await;
        }
    }

    pub(super) async fn finds(&self, numbers: std::ops::Range<usize>) {
        for number in numbers {
            assert_eq!(self.send(number, None).await, pod(number), "{number}");
        }
    }

    /// Waits until the health says that it serves.
    async fn serves(&self) {
        let address = format!("http://{}", self.usher.address);
        let channel = tonic::transport::Endpoint::try_from(address).unwrap().connect().await.unwrap();
        let serves = async || {
            let request = HealthCheckRequest::default();
            let response = HealthClient::new(channel.clone()).check(request).await.unwrap();
            response.into_inner().status() == ServingStatus::Serving
        };
        eventually("its health", serves).await;
    }

    pub(super) async fn shares_prefixes(&self, shares: bool) {
        let is_so = async || self.metric("usher_replicas_prefix_connected") == f64::from(u8::from(shares));
        eventually("prefixes", is_so).await;
    }
}

#[tokio::test]
async fn prompts_of_one_replica_are_found_by_the_others_and_after_its_restart() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let (store, config) = (redis.flag(), config(64));
    let flags = [&config, &store, "--warm-up-timeout=60s"];
    let (mut a, mut b) = (Replica::start(&flags).await, Replica::start(&flags).await);
    a.serves().await;
    b.shares_prefixes(true).await;
    a.warm(0..PROMPTS).await;
    b.knows_as(&a).await;
    b.finds(0..PROMPTS).await;
    assert!(b.blocks("imported") >= 100.0 && b.blocks("restored") == 0.0);
    eventually("hits", async || b.matched("others") >= 100.0).await;
    assert_eq!((b.matched("own"), b.matched("restored")), (0.0, 0.0));
    a.usher.kill().await;
    b.usher.kill().await;
    let a = Replica::start(&flags).await;
    // The first requests after the start already.
    a.serves().await;
    a.finds(0..PROMPTS).await;
    assert!(a.blocks("restored") >= 100.0);
    eventually("hits", async || a.matched("restored") >= 100.0).await;
    let stream = redis.ask_to_the_end(&[b"XRANGE", STREAM, b"-", b"+"]);
    assert!(stream.len() > 2000);
    assert!(!stream.windows(9).any(|window| window == b"marmalade"), "the store has hashes alone");
}

#[tokio::test]
async fn store_that_loses_the_stream_gets_it_again() {
    let Some(mut redis) = Redis::start(&[]).await else { return };
    let (store, config) = (redis.flag(), config(64));
    let flags = [&config, &store, "--warm-up-timeout=60s"];
    let (a, b) = (Replica::start(&flags).await, Replica::start(&flags).await);
    b.shares_prefixes(true).await;
    a.warm(0..6).await;
    redis.kill();
    a.shares_prefixes(false).await;
    a.send(6, Some(pod(6))).await;
    redis.restart().await;
    a.warm(7..PROMPTS).await;
    let c = Replica::start(&flags).await;
    c.serves().await;
    for replica in [&b, &c] {
        replica.knows_as(&a).await;
        replica.finds(0..PROMPTS).await;
    }
}

#[tokio::test]
async fn entries_of_other_blocks_and_damaged_ones_are_ignored() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let (store, [small, large]) = (redis.flag(), [config(64), config(128)]);
    let (a, b) = (Replica::start(&[&small, &store]).await, Replica::start(&[&small, &store]).await);
    let other = Replica::start(&[&large, &store]).await;
    for replica in [&a, &b, &other] {
        replica.shares_prefixes(true).await;
    }
    for payload in [&b""[..], b"\x01", b"\x02nonsense", &[0xff; 100_000]] {
        redis.ask(&[b"XADD", STREAM, b"*", b"b", payload]);
    }
    redis.ask(&[b"XADD", STREAM, b"*", b"a", b"1", b"c", b"2"]);
    let add: [&[u8]; 3] = [b"XADD", STREAM, b"*"];
    for (fields, value) in [(5000, &b"x"[..]), (500, &[b'x'; 60_000])] {
        redis.ask(&[&add[..], &[&b"b"[..], value].repeat(fields)].concat());
    }
    eventually("damage", async || b.ignored("malformed") == 7.0).await;
    other.warm(0..1).await;
    eventually("other blocks", async || b.ignored("foreign") >= 1.0).await;
    assert_eq!(b.blocks("imported"), 0.0);
    let said = "another configuration or version adds prefixes";
    b.usher.log().find(0, said, |line| line.contains(said).then_some(())).await;
    a.warm(0..PROMPTS).await;
    b.knows_as(&a).await;
    b.finds(0..PROMPTS).await;
    assert_eq!((b.usher.log().count(said), other.blocks("imported")), (1, 0.0));
}

/// A store behind a network in which a connection brings replicas a MiB, and nothing more.
async fn narrow(store: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut replica, _) = listener.accept().await.unwrap();
            let mut store = UnixStream::connect(&store).await.unwrap();
            tokio::spawn(async move {
                let ((mut from, mut to), (back, mut into)) = (replica.split(), store.split());
                let first = async {
                    let _ = tokio::io::copy(&mut back.take(1 << 20), &mut to).await;
                    std::future::pending().await
                };
                tokio::select! {
                    _ = tokio::io::copy(&mut from, &mut into) => {}
                    () = first => {}
                }
            });
        }
    });
    format!("--state-store=redis://{address}")
}

#[tokio::test]
async fn entry_that_never_comes_in_time_is_passed() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let add_huge = || redis.ask(&[b"XADD", STREAM, b"*", b"b", &vec![b'x'; 8 << 20]]);
    add_huge();
    let (store, config) = (narrow(redis.socket()).await, config(64));
    let a = Replica::start(&[&config, &store]).await;
    a.shares_prefixes(true).await;
    assert_eq!(redis.ask(&[b"XLEN", STREAM]), ":0\r\n", "none was before it");
    a.warm(0..3).await;
    add_huge();
    let b = Replica::start(&[&config, &redis.flag()]).await;
    b.warm(3..6).await;
    a.knows_as(&b).await;
    a.finds(0..6).await;
    assert_eq!(a.ignored("malformed"), 1.0);
    assert!(a.metric("usher_replicas_prefix_stream_bytes") > f64::from(8 << 20));
}

#[tokio::test]
async fn refusal_of_prefixes_is_one_line_and_load_is_still_shared() {
    let port = super::store::free_port();
    let Some(redis) = Redis::start(&["--bind", "127.0.0.1", "--port", &port.to_string()]).await else {
        return;
    };
    let set_user = |rights: &[&[u8]]| {
        let begin: [&[u8]; 3] = [b"ACL", b"SETUSER", b"usher"];
        assert_eq!(redis.ask(&[&begin[..], rights].concat()), "+OK\r\n");
    };
    set_user(&[b"on", b">p", b"resetchannels", b"&usher:*", b"-@all", b"+hello", b"+subscribe", b"+publish"]);
    let store = format!("--state-store=redis://usher:p@127.0.0.1:{port}");
    let config = config(64);
    let (a, b) = (Replica::start(&[&config, &store]).await, Replica::start(&[LEAST_REQUESTS, &store]).await);
    let refused = async |reason: &str, part: &str| {
        let failures = format!("usher_state_store_failures_total{{reason=\"{reason}\"}}");
        eventually(reason, async || a.metric(&failures) >= 2.0).await;
        let said = |line: &str| line.contains("prefixes are not shared") && line.contains(reason);
        let line = a.usher.log().find(0, reason, |line| said(line).then(|| line.to_owned())).await;
        assert!(line.contains(part), "{line}");
        let _held = b.hold(2, PODS[0]).await;
        a.knows([2, 0]).await;
    };
    refused("not_permitted", "'xrange' command").await;
    a.serves().await;
    let stream: [&[u8]; 7] =
        [b"~usher:*", b"+xadd", b"+xrange", b"+xread", b"+xrevrange", b"+xtrim", b"+expire"];
    set_user(&stream);
    a.shares_prefixes(true).await;
    redis.ask(&[b"SET", b"other", &vec![b'x'; 1 << 20]]);
    redis.ask(&[b"CONFIG", b"SET", b"maxmemory", b"1mb"]);
    a.send(0, None).await;
    refused("out_of_memory", "raise its maxmemory").await;
    redis.ask(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
    a.shares_prefixes(true).await;
    redis.ask(&[b"SET", STREAM, b"text"]);
    refused("wrong_type", "delete it, or use another database").await;
    assert_eq!(a.usher.log().count("prefixes are not shared"), 3);
    redis.ask(&[b"DEL", STREAM]);
    a.shares_prefixes(true).await;
    a.warm(1..2).await;
}
