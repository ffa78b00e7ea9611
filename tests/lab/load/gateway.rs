//! A gateway as the target; simulated servers respond like one.

use serde_json::json;
use usher::sim::Fault;

use crate::load::{assert_requests, load};
use crate::support::servers::Servers;

#[tokio::test]
async fn responses_are_counted_with_their_tokens_and_servers() {
    let servers = Servers::start().await;
    let target = format!("http://{}/", servers.addresses[2]);
    for pace in [&["--concurrency=3"][..], &["--rate=300"]] {
        let shape = ["--requests=12", "--tokens=30", "--stream", "--output-tokens=4"];
        let report = load(&target, &[&shape, pace].concat()).await;
        assert_requests(&report, 12, 0);
        assert_eq!(report["protocol"], "http");
        assert_eq!(report["endpoints"], json!({"sim-2": 12}));
        assert_eq!(report["tokens"]["completion"], 48, "{report:#}");
        for latency in ["first_byte", "total"] {
            assert_eq!(report["latency_ms"][latency]["count"], 12, "{report:#}");
        }
        for absent in ["chunks", "peak_body_bytes_in_flight", "processes"] {
            assert_eq!(report.get(absent), None, "{report:#}");
        }
        assert_eq!(report.get("late").is_some(), pace[0].starts_with("--rate"));
    }
    assert_eq!(servers.state(2).await["last"]["headers"]["content-type"], json!(["application/json"]));
}

#[tokio::test]
async fn refusals_are_counted_by_status() {
    let servers = Servers::start().await;
    let target = format!("http://{}", servers.addresses[0]);
    let report = load(&target, &["--requests=4", "--header=x-sim-fault=status=503"]).await;
    assert_requests(&report, 0, 4);
    assert_eq!(report["errors"], json!({"http-503": 4}), "{report:#}");
    assert!(!report["reasons"]["http-503"].as_str().unwrap().is_empty(), "{report:#}");

    servers.set_fault(1, &Fault { drop_after: Some(1), ..Fault::default() }).await;
    let target = format!("http://{}", servers.addresses[1]);
    let report = load(&target, &["--requests=2", "--stream", "--output-tokens=9"]).await;
    assert_eq!(report["errors"], json!({"connection-lost": 2}), "{report:#}");
}
