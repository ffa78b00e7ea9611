//! Requests that fail, and runs that can't be made.

use serde_json::json;
use tokio::process::Command;
use tonic::Code;

use crate::load::fake::{Fake, Fault};
use crate::load::{assert_requests, load, refusal, report, spawn};
use crate::support::nobody;
use crate::support::servers::Servers;
use crate::support::usher::Usher;

#[tokio::test]
async fn server_faults_are_counted_by_kind() {
    let table = [
        (Fault::LosesRequestByte, "body-mismatch", "came back"),
        (Fault::LosesResponseByte, "response-mismatch", "came back"),
        (Fault::NoDestination, "no-destination", "names no endpoint"),
        (Fault::Ends(Code::Unavailable), "grpc-14", "not today"),
        (Fault::EndsEarly, "protocol", "before its end"),
        (Fault::Refuses(429), "http-429", "too much"),
    ];
    for (fault, kind, reason) in table {
        let fake = Fake::start(fault);
        let report = load(fake.address, &["--requests=5", "--concurrency=2"]).await;
        assert_requests(&report, 0, 5);
        assert_eq!(report["errors"], json!({ kind: 5 }), "{fault:?}");
        assert!(report["reasons"][kind].as_str().unwrap().contains(reason), "{report:#}");
        assert_eq!(report["latency_ms"].get("total"), None);
    }
}

#[tokio::test]
async fn an_empty_pool_refuses_with_its_reason() {
    let usher = Usher::start(&[], &[]).await;
    let report = load(usher.address, &["--requests=5"]).await;
    assert_eq!(report["errors"], json!({"http-503": 5}), "{report:#}");
    assert!(!report["reasons"]["http-503"].as_str().unwrap().is_empty(), "{report:#}");
}

#[tokio::test]
async fn killed_server_fails_running_and_later_requests() {
    let mut fake = Fake::start(Fault::Hangs(10));
    let child = spawn(&fake.address.to_string(), &["--requests=40", "--concurrency=10"]);
    // Ten are answered, and ten wait for it.
    fake.requests(20).await;
    fake.kill().await;
    let report = report(child).await;
    assert_requests(&report, 10, 30);
    // A request that came between the end of the server and its notice is lost, too.
    let count = |kind: &str| report["errors"][kind].as_u64().unwrap_or_default();
    let (lost, refused) = (count("connection-lost"), count("connection-refused"));
    assert!(lost >= 10 && refused > 0 && lost + refused == 30, "{report:#}");
}

async fn interrupt(child: &mut tokio::process::Child) {
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
}

#[tokio::test]
async fn ctrl_c_ends_a_run_with_its_report() {
    let mut fake = Fake::start(Fault::Hangs(5));
    let mut child = spawn(&fake.address.to_string(), &["--duration=1h"]);
    fake.requests(6).await;
    interrupt(&mut child).await;
    let report = report(child).await;
    assert_requests(&report, 5, 1);
    assert_eq!(report["errors"], json!({"interrupted": 1}));
    assert_eq!(report["endpoints"], json!({"10.0.0.1:8000": 5}));
}

#[tokio::test]
async fn invalid_target_is_a_one_line_error() {
    let servers = Servers::start().await;
    let fake = Fake::start(Fault::None);
    let table = [
        (nobody().to_string(), &[][..], "can't reach"),
        (nobody().to_string(), &["--tls=off"], "can't reach"),
        (format!("http://{}", nobody()), &[], "can't reach"),
        (servers.addresses[0].to_string(), &[], "is no ext_proc server"),
        (fake.address.to_string(), &["--tls=on"], "doesn't speak TLS"),
        (fake.address.to_string(), &["--pid=4194999"], "can't watch process 4194999"),
    ];
    for (target, arguments, part) in table {
        let (line, code) = refusal(&target, &[&["--requests=1"], arguments].concat()).await;
        assert!(line.contains(part) && code == 1, "{code}: {line}");
    }
    // With TLS, and not asked for it.
    let usher = Usher::start(&[], &[]).await;
    let (line, code) = refusal(usher.address, &["--tls=off"]).await;
    assert!(line.contains("is no ext_proc server") && line.contains("--tls") && code == 1, "{line}");
}
