//! The chart's Envoy, as a real one runs it: with Usher's flags, rights and configuration as
//! rendered, and with Pods in the API server that simulated model servers stand for.

use http::{Request, StatusCode};
use serde_json::json;

use crate::chart::of_kind;
use crate::chart_rights::Release;
use crate::server::Server;
use crate::support::client::{self, Protocol};
use crate::support::envoy::Envoy;
use crate::support::listener;
use crate::support::servers::Servers;
use crate::tools::{Helm, envoy_accepts};

/// The configuration of Envoy among these objects.
fn configuration(objects: &[serde_json::Value]) -> Option<&str> {
    of_kind(objects, "ConfigMap").find_map(|map| map["data"]["envoy.yaml"].as_str())
}

/// `tests/envoy/crash.rs` shows that a crash of Usher cuts no response in this mode.
#[test]
fn response_bodies_bypass_usher_when_configured() {
    let Some(helm) = Helm::find() else { return };
    let rendered = |more: &str| {
        let values = format!("router.modelServers.matchLabels.app=m,router.proxy.enabled=true{more}");
        let objects = helm.template("models", &["--set", &values]).unwrap();
        configuration(&objects).expect("no configuration of Envoy").to_owned()
    };
    let whole = rendered("");
    let bypassed = whole
        .replacen("response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: NONE", 1)
        .replacen("response_trailer_mode: SEND", "response_trailer_mode: SKIP", 1);
    assert_ne!(whole, bypassed);
    assert_eq!(rendered(",router.proxy.responseBodies=false"), bypassed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_goes_through_the_sidecar() {
    let (Some(helm), Some(server)) = (Helm::find(), Server::shared().await) else { return };
    let servers = Servers::start_many(1).await;
    // Free a moment ago; Envoy has to know the port of its own admin interface.
    let free = || listener().local_addr().unwrap().port();
    let (admin, ready) = (free(), free());
    let values = format!(
        "router.modelServers.matchLabels.app=m,router.modelServers.targetPorts[0].number={},router.proxy.enabled=true,router.proxy.failOpen=false,router.proxy.clientHeaders={{x-llm-d-slo-ttft-ms}},router.proxy.readyPort={ready},router.epp.flags.secure-serving=false",
        servers.addresses[0].port()
    );
    let release = Release::apply(server, &helm, &values, None).await;
    release.space.pod("a", "127.0.0.1", "m").await;
    let picker = release.start(server).await;
    picker.turns(true).await;
    let mut text = configuration(&release.objects).expect("no configuration of Envoy").to_owned();
    for (from, to) in [("19000", admin), ("8081", 0), ("9002", picker.extproc.port())] {
        let from = format!("port_value: {from} ");
        assert!(text.contains(&from), "no {from:?} in {text}");
        text = text.replace(&from, &format!("port_value: {to} "));
    }
    let envoy = Envoy::run(1, &text.replace("0.0.0.0", "127.0.0.1")).await;
    let body = json!({"model": "base", "prompt": "Once upon a time", "max_tokens": 5}).to_string();
    let request = Request::post("/v1/completions")
        .header("content-type", "application/json")
        // Nobody listens there; the client's wish doesn't count.
        .header("x-gateway-destination-endpoint", "192.0.2.1:666")
        // Nor does its word for what Usher believes, but for one that the values allow.
        .header("x-llm-d-inference-objective", "forged")
        .header("x-gateway-inference-objective", "forged")
        .header("x-llm-d-inference-fairness-id", "forged")
        .header("x-gateway-inference-fairness-id", "forged")
        .header("x-llm-d-model-name-rewrite", "forged")
        .header("x-gateway-model-name-rewrite", "forged")
        .header("x-llm-d-slo-ttft-ms", "1")
        .header("x-slo-ttft-ms", "1")
        .header("x-llm-d-slo-tpot-ms", "1")
        .header("x-slo-tpot-ms", "1")
        .body(client::full(body))
        .unwrap();
    let response = client::send(envoy.address, Protocol::Http1, request).await;
    assert_eq!(response.status, StatusCode::OK);
    assert_eq!(response.json()["usage"]["completion_tokens"], 5);
    let headers = servers.last_headers(0).await;
    let headers = headers.as_object().unwrap().keys();
    let trusted = ["-inference-", "-rewrite", "slo-"];
    let passed: Vec<_> = headers.filter(|name| trusted.iter().any(|part| name.contains(part))).collect();
    assert_eq!(passed, ["x-llm-d-slo-ttft-ms"]);
    for (path, status) in [("/ready", 200), ("/stats/prometheus", 200), ("/quitquitquit", 404)] {
        let request = Request::get(path).body(client::empty()).unwrap();
        let response = client::send(([127, 0, 0, 1], ready).into(), Protocol::Http1, request).await;
        assert_eq!(response.status, status, "{path}");
    }
    // Without Usher, and with failOpen false.
    drop(picker);
    let request = Request::get("/v1/models").body(client::empty()).unwrap();
    let response = client::send(envoy.address, Protocol::Http1, request).await;
    assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
fn envoy_accepts_every_configuration_of_the_chart() {
    let Some(helm) = Helm::find() else { return };
    let mut checked = 0;
    for values in crate::tools::values_files() {
        let objects = helm.rendered(&values);
        let Some(text) = configuration(&objects) else { continue };
        let said = envoy_accepts(text).unwrap_or_else(|error| panic!("{values}: {error}"));
        assert!(!said.contains("eprecated"), "{values}: {said}");
        checked += 1;
    }
    assert!(checked >= 3, "{checked}");
}
