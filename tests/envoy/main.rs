//! A real Envoy with the configurations of `deploy/envoy`, the `usher` program and
//! simulated model servers, from outside.
//!
//! Starting Envoy is what costs, so each configuration is started once and the steps of
//! its test follow each other, those that break something last.

#![allow(clippy::print_stdout, reason = "load tests say what they measured")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

#[path = "../support/mod.rs"]
mod support;

mod crash;
mod failures;
mod headers;
mod load;
mod mtls;
mod outliers;
mod pd;
mod pickers;
mod recording;
#[cfg(target_os = "linux")]
mod relay;
mod replicas;
mod restarts;
mod slow;
mod threads;
mod traffic;

use crate::support::envoy::{Edit, Envoy};
use crate::support::servers::Servers;
use crate::support::usher::{Usher, WITH_FALLBACK};

/// One endpoint per request, in a header.
const ORIGINAL_DST: &str = "original-dst.yaml";
/// A list of endpoints, followed by Envoy.
const OVERRIDE_HOST: &str = "override-host.yaml";

/// The largest request body that Usher lets pass here: above 5 MB, below what is refused.
const BODY_LIMIT: usize = 6 << 20;

/// Model servers, Usher and Envoy, of which each knows the next.
struct Stack {
    servers: Servers,
    usher: Usher,
    envoy: Envoy,
}

impl Stack {
    async fn start(configuration: &str, flags: &[&str], edits: &[Edit<'_>]) -> Self {
        let servers = Servers::start().await;
        let limit = format!("--max-request-body-bytes={BODY_LIMIT}");
        // What these tests break is to stay in use.
        let flags = [flags, &[&limit, "--v=3", "--outlier-detection=false"]].concat();
        let usher = Usher::start(&servers.addresses, &flags).await;
        let envoy = Envoy::start(configuration, usher.address, &servers.addresses, edits).await;
        Self { servers, usher, envoy }
    }

    async fn with_fallbacks() -> Self {
        // As its comment says: clients may choose a model.
        let edits = [("              - remove: x-llm-d-model-name-rewrite\n", "")];
        Self::start(OVERRIDE_HOST, &["--config-text", WITH_FALLBACK], &edits).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destination_by_header() {
    let mut stack = Stack::start(ORIGINAL_DST, &[], &[]).await;
    traffic::passes(&stack).await;
    headers::trusted_headers_of_clients_are_removed(&stack.envoy, &stack, &[]).await;
    failures::requests_that_are_refused(&stack).await;
    failures::a_server_that_is_down_responds_with_503(&mut stack).await;
    failures::without_usher_requests_go_on(stack).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destination_with_fallbacks() {
    let mut stack = Stack::with_fallbacks().await;
    traffic::passes(&stack).await;
    for protocol in traffic::BOTH {
        traffic::models_are_renamed_and_named_back(&stack, protocol).await;
    }
    headers::trusted_headers_of_clients_are_removed(&stack.envoy, &stack, &["x-llm-d-model-name-rewrite"])
        .await;
    failures::requests_that_are_refused(&stack).await;
    failures::the_next_endpoint_serves_for_one_that_is_down(&mut stack).await;
    failures::without_usher_requests_go_on(stack).await;
}

/// The part of a configuration that makes Envoy speak TLS with Usher.
fn transport_socket(configuration: &str) -> String {
    let text = std::fs::read_to_string(crate::support::envoy::folder().join(configuration)).unwrap();
    let start = text.find("    transport_socket:\n").unwrap();
    let length = text[start..].find("    load_assignment:\n").unwrap();
    text[start..start + length].to_owned()
}

/// The other choices that the comments of the configurations describe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_closed_and_plain_text() {
    for configuration in [ORIGINAL_DST, OVERRIDE_HOST] {
        let tls = transport_socket(configuration);
        let edits = [(&*tls, ""), ("failure_mode_allow: true", "failure_mode_allow: false")];
        let stack = Stack::start(configuration, &["--secure-serving=false"], &edits).await;
        failures::without_usher_requests_fail(stack).await;
    }
}
