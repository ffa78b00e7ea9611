//! Headers that are not the client's to send.

use std::collections::BTreeSet;
use std::path::Path;

use http::{HeaderName, Request};
use serde_json::Value;

use crate::support::client::{self, Protocol};
use crate::support::envoy::{Envoy, folder};
use crate::traffic::{ROUTING_HEADERS, chat, post_chat};
use crate::{ORIGINAL_DST, Stack};

/// Headers that Usher believes.
pub(crate) const TRUSTED_HEADERS: [&str; 10] = [
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
];

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Sends all of them, and looks at what arrives at the server.
pub(crate) async fn trusted_headers_of_clients_are_removed(envoy: &Envoy, stack: &Stack, but: &[&str]) {
    let mut request = post_chat(chat(50));
    for name in TRUSTED_HEADERS {
        request.headers_mut().insert(HeaderName::from_static(name), "forged".parse().unwrap());
    }
    let response = client::send(envoy.address, Protocol::Http1, request).await;
    assert_eq!(response.status, 200, "{response:?}");
    let headers = stack.servers.last_headers(response.server()).await;
    for name in TRUSTED_HEADERS {
        assert_eq!(headers[name] != Value::Null, but.contains(&name), "{name}");
    }
}

#[test]
fn every_shipped_gateway_removes_client_routing_headers() {
    let all: BTreeSet<&str> = ROUTING_HEADERS.into_iter().chain(TRUSTED_HEADERS).collect();
    for path in [
        "deploy/envoy/original-dst.yaml",
        "deploy/envoy/override-host.yaml",
        "deploy/envoy-gateway/gateway.yaml",
        "deploy/istio/client-headers.yaml",
        "deploy/kgateway/client-headers.yaml",
        "deploy/kustomize/overlays/standalone/resources.yaml",
    ] {
        let text = text(path);
        let name = |line: &'_ str| {
            let name = line.trim().strip_prefix("- ")?;
            let name = name.strip_prefix("remove: ").unwrap_or(name);
            all.get(name).copied()
        };
        let mut removed: BTreeSet<&str> = text.lines().filter_map(name).collect();
        if path.contains("kgateway") {
            removed.insert("x-llm-d-request-dropped-reason");
        }
        assert_eq!(removed, all, "{path}");
    }
    let security = text("SECURITY.md");
    for name in TRUSTED_HEADERS {
        assert!(security.contains(&format!("`{name}`")), "SECURITY.md doesn't name {name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_accepts_the_istio_patch() {
    let part = |text: &str| {
        let start = text.find("          early_header_mutation_extensions:\n").unwrap();
        let is_inside = |line: &&str| {
            line.starts_with("           ")
                || line.starts_with("          early")
                || line.starts_with("          -")
        };
        let lines: Vec<&str> = text[start..].lines().take_while(is_inside).collect();
        lines.join("\n") + "\n"
    };
    let plain = std::fs::read_to_string(folder().join(ORIGINAL_DST)).unwrap();
    let (plain, istio) = (part(&plain), part(&text("deploy/istio/client-headers.yaml")));
    assert!(istio.len() > 1000, "{istio}");
    let stack = Stack::start(ORIGINAL_DST, &[], &[(&plain, &istio)]).await;
    trusted_headers_of_clients_are_removed(&stack.envoy, &stack, &[]).await;
    let request = Request::get("/v1/models").header("x-prefiller-host-port", "192.0.2.1:666");
    let response =
        client::send(stack.envoy.address, Protocol::Http1, request.body(client::empty()).unwrap()).await;
    assert_eq!(stack.servers.last_headers(response.server()).await["x-prefiller-host-port"], Value::Null);
}
