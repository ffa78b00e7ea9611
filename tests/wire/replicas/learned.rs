//! Sessions and latencies that replicas learned, known after a restart and to the others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use super::redis::Redis;
use super::{Replica, eventually};
use crate::support::*;

const STREAM: &[u8] = b"usher:v1:{default/epp}:learned";

/// Keeps sessions where they were, and learns latencies.
const CONFIG: &str = "--config-text=
plugins:
- {type: expected-latency-scorer}
- {type: session-affinity-filter, parameters: {strategy: session_id}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: session-affinity-filter}, {pluginRef: expected-latency-scorer}]}]
";

const SSE: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];

/// Sessions of a test: enough that chance does not send all to their endpoints.
const SESSIONS: usize = 16;

/// Two model servers, by the ports at which they show metrics, at all addresses of this machine.
struct Pods([u16; 2]);

impl Pods {
    fn start() -> Self {
        Self([(); 2].map(|()| {
            let listener = TcpListener::bind("0.0.0.0:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            std::thread::spawn(move || listener.incoming().for_each(|stream| show_metrics(stream.unwrap())));
            port
        }))
    }

    fn at(&self, ip: [u8; 4]) -> [SocketAddr; 2] {
        self.0.map(|port| (ip, port).into())
    }

    /// Endpoint of a session.
    fn of(&self, session: usize) -> String {
        self.at([127, 0, 0, 1])[session / 3 % 2].to_string()
    }

    async fn replica(&self, config: &str, redis: &Redis) -> Replica {
        self.replica_at([127, 0, 0, 1], config, redis).await
    }

    /// A replica that has read what the store has.
    async fn replica_at(&self, ip: [u8; 4], config: &str, redis: &Redis) -> Replica {
        let flags = [config, &redis.flag(), "--warm-up-timeout=60s", "--allow-experimental-plugins"];
        let replica = Replica::start_with(&self.at(ip), &flags).await;
        let said = "learned state";
        replica.usher.log().find(0, said, |line| line.contains(said).then_some(())).await;
        replica
    }
}

fn show_metrics(mut stream: std::net::TcpStream) {
    let mut request = [0; 4096];
    // Whoever connects and goes is none of ours.
    if stream.read(&mut request).is_ok_and(|read| read > 0) {
        let page = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n";
        let head = format!("content-type: text/plain\r\ncontent-length: {}\r\nconnection: close", page.len());
        let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{page}").as_bytes());
    }
}

impl Replica {
    /// A streamed response to a request of a session, which may be sent to one endpoint. Returns where it was.
    async fn respond(&self, session: usize, hint: Option<&str>) -> String {
        let mut stream = Connection::to(self.usher.address).await.stream().await;
        let session = format!("marmalade-{session}");
        let headers = headers(&[(":path", "/v1/completions"), ("x-session-id", &session)], false);
        stream.send(match hint {
            Some(pod) => with_subset(headers, string(pod)),
            None => headers,
        });
        stream.send(body(r#"{"model":"m","prompt":"hi","stream":true}"#, true));
        let destination = stream.request_headers().await.destination().to_owned();
        stream.request_body().await;
        stream.send(response_headers(&SSE, false));
        stream.response_headers().await;
        let event = r#"data: {"choices":[{"text":"a"}]}"#;
        stream.send(response_body(format!("{event}\n\n"), false));
        stream.response_body().await;
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":20}}"#;
        stream.send(response_body(format!("{usage}\n\ndata: [DONE]\n\n"), true));
        stream.response_body().await;
        destination
    }

    /// First tokens that its latencies were learned from.
    fn samples(&self) -> u64 {
        let page = Picker::get(self.admin, "/latency");
        let json: serde_json::Value = serde_json::from_str(page.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        json["groups"].as_array().unwrap().iter().map(|group| group["samples"].as_u64().unwrap()).sum()
    }

    fn sessions(&self) -> f64 {
        self.metric("usher_session_bindings{plugin_name=\"session-affinity-filter\"}")
    }

    fn imported(&self, plugin: &str) -> f64 {
        self.metric(&format!("usher_replicas_learned_imported_total{{plugin_name=\"{plugin}\"}}"))
    }

    fn left_out(&self, reason: &str) -> f64 {
        self.metric(&format!("usher_replicas_learned_entries_ignored_total{{reason=\"{reason}\"}}"))
    }

    /// Binds sessions to the endpoints of theirs, once latencies are learned.
    async fn bind(&self, sessions: std::ops::Range<usize>, pods: &Pods) {
        let learns = async || {
            self.respond(0, Some(&pods.of(0))).await;
            self.samples() > 0
        };
        eventually("metrics", learns).await;
        for session in sessions {
            assert_eq!(self.respond(session, Some(&pods.of(session))).await, pods.of(session));
        }
    }

    async fn keeps(&self, sessions: std::ops::Range<usize>, pods: &Pods) {
        for session in sessions {
            assert_eq!(self.respond(session, None).await, pods.of(session), "{session}");
        }
    }
}

#[tokio::test]
async fn sessions_and_latencies_are_known_to_others_and_after_a_kill() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let pods = Pods::start();
    let (mut a, mut b) = (pods.replica(CONFIG, &redis).await, pods.replica(CONFIG, &redis).await);
    a.bind(0..SESSIONS, &pods).await;
    eventually("all sessions", async || b.sessions() == SESSIONS as f64).await;
    a.usher.kill().await;
    b.keeps(0..SESSIONS, &pods).await;
    b.usher.kill().await;
    let c = pods.replica(CONFIG, &redis).await;
    // The first requests after the start already.
    assert!(c.samples() >= SESSIONS as u64, "{}", c.samples());
    assert!(c.imported("session-affinity-filter") >= SESSIONS as f64);
    // The pool's, its group's, two endpoints', and those of a model and flow.
    assert!(c.imported("latency-model") >= 5.0);
    c.keeps(0..SESSIONS, &pods).await;
    let stream = redis.ask_to_the_end(&[b"XRANGE", STREAM, b"-", b"+"]);
    assert!(stream.len() > 500);
    assert!(!stream.windows(9).any(|window| window == b"marmalade"), "the store has hashes alone");
}

#[tokio::test]
async fn replica_that_is_stopped_hands_on_its_last_session() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let pods = Pods::start();
    let mut a = pods.replica(CONFIG, &redis).await;
    a.bind(0..SESSIONS, &pods).await;
    let samples = a.samples();
    a.usher.terminate().await;
    let b = pods.replica(CONFIG, &redis).await;
    assert_eq!(b.samples(), samples);
    b.keeps(0..SESSIONS, &pods).await;
    drop(b);
    let other = pods.replica_at([127, 0, 0, 2], CONFIG, &redis).await;
    assert_eq!((other.sessions(), other.imported("session-affinity-filter")), (0.0, 0.0), "other pods");
    assert!(other.samples() >= samples, "endpoints like those have the times of their group");
}

#[tokio::test]
async fn damaged_and_foreign_snapshots_cost_nothing() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let pods = Pods::start();
    let mut a = pods.replica(CONFIG, &redis).await;
    a.bind(0..4, &pods).await;
    a.usher.terminate().await;
    for payload in [&b""[..], b"\x01", b"\x02nonsense", &[0xff; 100_000], &[1; 2 << 20]] {
        redis.ask(&[b"XADD", STREAM, b"*", b"l", payload]);
    }
    redis.ask(&[b"XADD", STREAM, b"*", b"x", b"1", b"y", b"2"]);
    let b = pods.replica(CONFIG, &redis).await;
    b.keeps(0..4, &pods).await;
    assert_eq!((b.left_out("malformed"), b.left_out("foreign")), (4.0, 2.0));
    let other_sessions =
        CONFIG.replace("session_id}", "session_id, sessionIdConfig: {sources: [{header: x-id}]}}");
    let c = pods.replica(&other_sessions, &redis).await;
    assert_eq!((c.sessions(), c.left_out("malformed")), (0.0, 4.0));
    assert!(c.left_out("foreign") >= 3.0 && c.samples() >= 4, "latencies are none of sessions");
    // Nor does a key that holds something else.
    redis.ask(&[b"DEL", STREAM]);
    redis.ask(&[b"SET", STREAM, b"text"]);
    let d = pods.replica(CONFIG, &redis).await;
    assert_eq!(d.usher.log().count("learned state is not handed on"), 1);
    d.bind(0..4, &pods).await;
    d.keeps(0..4, &pods).await;
}
