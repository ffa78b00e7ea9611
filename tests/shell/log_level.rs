//! The log of a running picker: its level, and the ids in it.

use http::Request;
use serde_json::Value;

use crate::collector::{Collector, attributes, text};
use crate::doctor::program::doctor;
use crate::support::client::{self, HttpResponse, Protocol};
use crate::support::servers::Servers;
use crate::support::usher::Usher;

const ADMIN: &str = "--admin-address=127.0.0.1:0";
const PLAIN: &str = "--secure-serving=false";

async fn log_level(usher: &Usher, method: &str, body: &str) -> HttpResponse {
    let request = Request::builder().method(method).uri("/log-level").body(client::full(body.to_owned()));
    client::send(usher.port("admin").await, Protocol::Http1, request.unwrap()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_level_changes_at_run_time() {
    let servers = Servers::start().await;
    let usher = Usher::start(&servers.addresses, &[PLAIN, ADMIN]).await;
    let decide = async || {
        let said = doctor(&["--picker", &usher.address.to_string()]).await;
        assert!(said.stdout.contains("chooses "), "{said:?}");
    };
    assert_eq!(log_level(&usher, "GET", "").await.text(), "info\n");
    decide().await;
    assert_eq!(log_level(&usher, "PUT", "debug\n").await.text(), "debug\n");
    assert!(!usher.log().mentions("request routed"));
    let start = usher.log().end();
    decide().await;
    usher.log().find(start, "a decision", |line| line.contains("request routed").then_some(())).await;

    let long = "x".repeat(1_000);
    for bad in ["loud", "", long.as_str()] {
        let refused = log_level(&usher, "PUT", bad).await;
        assert_eq!(refused.status, 400, "{refused:?}");
    }
    let refused = log_level(&usher, "POST", "trace").await;
    assert_eq!((refused.status.as_u16(), refused.header("allow")), (405, "GET, HEAD, PUT"));
    assert_eq!(log_level(&usher, "GET", "").await.text(), "debug\n");

    assert_eq!(log_level(&usher, "PUT", "ERROR").await.text(), "error\n");
    let change = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line["message"] == "log level changed" && line["current"] == "error").then_some(line)
    };
    // Said whatever the new level.
    let change = usher.log().find(start, "the change", change).await;
    assert_eq!(change["previous"], "debug");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_traced_decision_is_logged_with_the_ids_of_its_trace() {
    let (servers, collector) = (Servers::start().await, Collector::start().await);
    let endpoint = format!("http://{}", collector.address);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1"),
    ];
    let usher = Usher::start_in(&servers.addresses, &[PLAIN, "--v=3"], &variables).await;
    doctor(&["--picker", &usher.address.to_string()]).await;
    let routed = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line["message"] == "request routed").then_some(line)
    };
    let line = usher.log().find(0, "a decision", routed).await;
    let received = collector.requests(1).await;
    let of_it = received.named("gateway.request").into_iter().find(|span| {
        let trace: String = span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
        line["trace_id"] == trace
    });
    let attributes = attributes(&of_it.unwrap_or_else(|| panic!("{line}: {received:?}")).attributes);
    assert_eq!(attributes["gen_ai.request.id"], text(line["request_id"].as_str().unwrap()).unwrap());
}
