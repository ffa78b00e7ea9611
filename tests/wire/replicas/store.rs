//! A store that is away, hangs, lies or refuses: requests go on.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::prefixes::config;
use super::redis::Redis;
use super::{LEAST_REQUESTS, PODS, Replica, eventually};
use crate::support::{Picker, Stream};

const AWAY: &str = "state store is away";

fn failures(replica: &Replica, reason: &str) -> f64 {
    replica.metric(&format!("usher_state_store_failures_total{{reason=\"{reason}\"}}"))
}

/// Waits for the line about a failure, and checks that it is the only one.
async fn assert_said_once(replica: &Replica, reason: &str, part: &str) {
    eventually(reason, async || failures(replica, reason) >= 3.0).await;
    let log = replica.usher.log();
    let said = format!("\"reason\":\"{reason}\"");
    let line = log.find(0, reason, |line| line.contains(&said).then(|| line.to_owned())).await;
    assert!(line.contains("WARN") && line.contains(part), "{line}");
    assert_eq!(log.count(&said), 1);
}

/// Two replicas, of which the first holds five requests at the first endpoint, and the second knows them.
async fn two_replicas(redis: &Redis) -> (Replica, Replica, Vec<Stream>) {
    let store = redis.flag();
    let flags = [LEAST_REQUESTS, &store];
    let (a, b) = (Replica::start(&flags).await, Replica::start(&flags).await);
    let held = a.hold(5, PODS[0]).await;
    b.knows([5, 0]).await;
    (a, b, held)
}

#[tokio::test]
async fn store_that_is_killed_and_comes_back_costs_no_request() {
    let Some(mut redis) = Redis::start(&[]).await else { return };
    let (a, b, mut held) = two_replicas(&redis).await;
    redis.kill();
    b.is_connected(false).await;
    b.knows([0, 0]).await;
    held.extend(a.hold(2, PODS[0]).await);
    b.pick().await;
    redis.restart().await;
    b.is_connected(true).await;
    b.knows([7, 0]).await;
    let log = b.usher.log();
    // The last line may be on its way.
    eventually("the line", async || log.count("state store connected") == 2).await;
    assert!((1..=2).contains(&log.count(AWAY)), "the end, and that there is none");
    drop(held);
    b.knows([0, 0]).await;
}

#[tokio::test]
async fn store_that_hangs_is_left_and_found_again() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let (_a, b, held) = two_replicas(&redis).await;
    redis.signal("STOP");
    b.knows([0, 0]).await;
    b.is_connected(false).await;
    b.pick().await;
    assert!(failures(&b, "timeout") > 0.0);
    redis.signal("CONT");
    b.knows([5, 0]).await;
    drop(held);
    b.knows([0, 0]).await;
}

#[tokio::test]
async fn replica_starts_and_serves_without_its_store() {
    let flags = [LEAST_REQUESTS, "--state-store=redis://127.0.0.1:1"];
    let replica = Replica::start(&flags).await;
    replica.pick().await;
    assert_said_once(&replica, "connect", "check that the store runs").await;
    assert_eq!(replica.metric("usher_state_store_connected"), 0.0);
}

#[tokio::test]
async fn wrong_password_is_one_line_until_its_file_has_the_right_one() {
    let Some(redis) = Redis::start(&["--requirepass", "right"]).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "hunter2\n").unwrap();
    let (store, password) = (redis.flag(), format!("--state-store-password-file={}", file.display()));
    let replica = Replica::start(&[&config(64), &store, &password]).await;
    // Of load and of prefixes.
    eventually("retries", async || failures(&replica, "password") >= 6.0).await;
    assert_said_once(&replica, "password", "wrong user or password").await;
    replica.pick().await;
    std::fs::write(&file, "right\n").unwrap();
    replica.is_connected(true).await;
    let log = replica.usher.log();
    for recovered in ["state store connected", "prefixes are shared"] {
        log.find(0, recovered, |line| line.contains(recovered).then_some(())).await;
    }
    assert!(!log.mentions("hunter2"));
    let none = Replica::start(&[LEAST_REQUESTS, &store]).await;
    assert_said_once(&none, "password", "a password is asked for").await;
}

#[tokio::test]
async fn log_names_the_rights_that_the_user_lacks() {
    let port = free_port();
    let Some(redis) = Redis::start(&["--bind", "127.0.0.1", "--port", &port.to_string()]).await else {
        return;
    };
    let set_user = |rights: &[&[u8]]| {
        let begin: [&[u8]; 3] = [b"ACL", b"SETUSER", b"usher"];
        let command = [&begin[..], rights].concat();
        assert_eq!(redis.ask(&command), "+OK\r\n");
    };
    set_user(&[b"on", b">p", b"resetchannels", b"-@all", b"+hello"]);
    let store = format!("--state-store=redis://usher:p@127.0.0.1:{port}");
    let replica = Replica::start(&[LEAST_REQUESTS, &store]).await;
    assert_said_once(&replica, "not_permitted", "the channels usher:*").await;
    replica.pick().await;
    set_user(&[b"+subscribe", b"+publish", b"&usher:*"]);
    replica.is_connected(true).await;
}

#[tokio::test]
async fn read_only_replica_of_the_store_is_refused() {
    let Some(redis) = Redis::start(&["--replicaof", "127.0.0.1", "1"]).await else { return };
    let replica = Replica::start(&[LEAST_REQUESTS, &redis.flag()]).await;
    assert_said_once(&replica, "read_only", "name the primary").await;
    replica.pick().await;
}

#[tokio::test]
async fn store_that_becomes_a_read_only_replica_is_left() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let replica = Replica::start(&[LEAST_REQUESTS, &redis.flag()]).await;
    replica.is_connected(true).await;
    assert_eq!(redis.ask(&[b"REPLICAOF", b"127.0.0.1", b"1"]), "+OK\r\n");
    eventually("another role", async || failures(&replica, "read_only") > 0.0).await;
}

#[tokio::test]
async fn invalid_messages_are_counted_and_ignored() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let (_a, b, _held) = two_replicas(&redis).await;
    let channel = b"usher:v1:{default/epp}:load";
    let long = vec![1; 900_000];
    for message in [&b""[..], b"\x01", b"\x02nonsense", &long, &[0xff; 64], b"\x01\x00"] {
        assert_eq!(redis.ask(&[b"PUBLISH", channel, message]), ":2\r\n");
    }
    let rejected = |result: &str| b.metric(&format!("usher_replicas_messages_total{{result=\"{result}\"}}"));
    eventually("rejections", async || rejected("length") + rejected("version") == 6.0).await;
    assert_eq!(b.others(), [5, 0]);
    // Larger than any message is: it is left out and counted, and what is behind it is read.
    redis.ask(&[b"PUBLISH", channel, &vec![1; 3 << 20]]);
    redis.ask(&[b"PUBLISH", channel, b""]);
    eventually("the next", async || rejected("length") + rejected("version") == 8.0).await;
    assert_eq!(failures(&b, "protocol"), 0.0);
    b.knows([5, 0]).await;
}

/// A port that was free a moment ago.
pub(super) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Writes an authority, and certificates for 127.0.0.1 and a client that it has signed.
fn certificates(folder: &Path) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    std::fs::write(folder.join("ca.pem"), pem).unwrap();
    for (file, name) in [("tls", "127.0.0.1"), ("client", "usher")] {
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // One that is called like its authority counts as signed by itself.
        leaf.distinguished_name.push(DnType::CommonName, name);
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        std::fs::write(folder.join(file).with_extension("crt"), leaf.pem()).unwrap();
        std::fs::write(folder.join(file).with_extension("key"), key.serialize_pem()).unwrap();
    }
}

/// A server with these certificates, the rest of its arguments, and its port.
async fn with_tls(folder: &Path, rest: &[&str]) -> Option<(Redis, u16)> {
    let path = |name: &str| folder.join(name).display().to_string();
    let (ca, cert, key, port) = (path("ca.pem"), path("tls.crt"), path("tls.key"), free_port());
    let port_text = port.to_string();
    let tls = ["--tls-port", &port_text, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let tls = [&tls[..], &["--tls-ca-cert-file", &ca], rest].concat();
    Redis::start(&tls).await.map(|redis| (redis, port))
}

#[tokio::test]
async fn state_is_shared_over_tls_with_an_authority_of_its_own() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(folder.path());
    certificates(other.path());
    let rest = ["--tls-auth-clients", "no", "--requirepass", "p@ss"];
    let Some((_redis, port)) = with_tls(folder.path(), &rest).await else { return };
    let store = format!("--state-store=rediss://:p%40ss@127.0.0.1:{port}/2");
    let trusts = format!("--state-store-ca-file={}", folder.path().join("ca.pem").display());
    let config = config(64);
    let flags = [config.as_str(), &store, &trusts];
    let (a, b) = (Replica::start(&flags).await, Replica::start(&flags).await);
    let _held = a.hold(5, PODS[0]).await;
    b.knows([5, 0]).await;
    b.shares_prefixes(true).await;
    a.warm(0..6).await;
    b.knows_as(&a).await;
    b.finds(0..6).await;
    assert!(!b.usher.log().mentions("p@ss") && !b.usher.log().mentions("p%40ss"));
    let trusts = format!("--state-store-ca-file={}", other.path().join("ca.pem").display());
    let stranger = Replica::start(&[LEAST_REQUESTS, &store, &trusts]).await;
    assert_said_once(&stranger, "tls", "--state-store-ca-file").await;
    let plain = store.replace("rediss://", "redis://");
    let plain = Replica::start(&[LEAST_REQUESTS, &plain]).await;
    eventually("no TLS", async || failures(&plain, "timeout") + failures(&plain, "closed") > 0.0).await;
    assert_eq!(Picker::metric_of(plain.metrics, "usher_state_store_connected"), Some(0.0));
}

#[tokio::test]
async fn store_that_asks_for_a_certificate_gets_the_one_that_is_there() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(folder.path());
    certificates(other.path());
    // Redis asks where nothing else is said.
    let Some((_redis, port)) = with_tls(folder.path(), &[]).await else { return };
    let store = format!("--state-store=rediss://127.0.0.1:{port}");
    let trusts = format!("--state-store-ca-file={}", folder.path().join("ca.pem").display());
    let shows = [("cert", "client.crt"), ("key", "client.key")].map(|(kind, file)| {
        format!("--state-store-client-{kind}-file={}", other.path().join(file).display())
    });
    let config = config(64);
    let none = Replica::start(&[&config, &store, &trusts]).await;
    let wrong = Replica::start(&[&config, &store, &trusts, &shows[0], &shows[1]]).await;
    for replica in [&none, &wrong] {
        eventually("a refusal", async || failures(replica, "tls") > 0.0).await;
        let said = |line: &str| line.contains("\"tls\"") && line.contains("--state-store-client-cert-file");
        replica.usher.log().find(0, "a refusal", |line| said(line).then_some(())).await;
        replica.pick().await;
    }
    for file in ["client.crt", "client.key"] {
        std::fs::copy(folder.path().join(file), other.path().join(file)).unwrap();
    }
    wrong.is_connected(true).await;
    wrong.shares_prefixes(true).await;
    wrong.warm(0..1).await;
    assert_eq!(none.metric("usher_state_store_connected"), 0.0);
}
