//! Configurations of Envoy, good ones and one fault each.

use crate::doctor::program::Examined;
use crate::doctor::stack::{Back, ORIGINAL_DST, OVERRIDE_HOST};
use crate::support::nobody;
use crate::support::usher::WITH_FALLBACK;

/// Code of the finding that the repository's configurations have on purpose.
const ON_PURPOSE: &str = "fails-open";

/// Findings besides those that a sound configuration has.
fn faults(examined: &Examined) -> Vec<&str> {
    examined.codes().into_iter().filter(|code| *code != ON_PURPOSE).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configurations_of_the_repository_are_sound() {
    for (configuration, flags) in
        [(ORIGINAL_DST, &[][..]), (OVERRIDE_HOST, &["--config-text", WITH_FALLBACK])]
    {
        let back = Back::start(flags).await;
        let envoy = back.envoy(configuration, &[]).await;
        let found = back.examined(&envoy, &[]).await;
        assert_eq!((found.code, found.codes()), (0, vec![ON_PURPOSE]), "{configuration}: {:#}", found.report);
        for check in [
            "path",
            "picker",
            "tls",
            "body-mode",
            "timeouts",
            "circuit-breakers",
            "destination",
            "picker-metrics",
            "pod-metrics",
            "endpoints",
            "versions",
        ] {
            assert_eq!(found.status(check), "ok", "{configuration} {check}: {:#}", found.report);
        }
        for check in ["crds", "rbac", "pool", "routes"] {
            assert_eq!(found.status(check), "skipped", "{configuration} {check}");
            assert!(found.detail(check).contains("--pool-name"), "{configuration} {check}");
        }
        let proof = found.detail("path");
        assert!(
            proof.contains("refused in a picker's words") && proof.contains("served where the picker chose"),
            "{proof}"
        );
        // A model that is served, and nothing known but the gateway.
        let asked = back.examined(&envoy, &["--model", "base"]).await;
        assert_eq!((asked.code, asked.codes()), (0, vec![ON_PURPOSE]), "{:#}", asked.report);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ignored_destination_is_found() {
    let back = Back::start(&[]).await;
    // Usher is asked, and all requests go to a server that it does not know.
    back.usher.set_endpoints(&back.servers.addresses[1..]).await;
    let cluster = format!(
        "  clusters:
  - name: elsewhere
    type: STATIC
    load_assignment:
      cluster_name: elsewhere
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}
",
        back.servers.addresses[0].port()
    );
    let edits = [("cluster: chosen_endpoint", "cluster: elsewhere"), ("  clusters:\n", cluster.as_str())];
    let envoy = back.envoy(ORIGINAL_DST, &edits).await;
    let found = back.examined(&envoy, &[]).await;
    assert_eq!(found.code, 1, "{:#}", found.report);
    found.finding("destination-ignored");
    let ignored = found.finding("picker-choice-ignored");
    assert!(ignored["what"].as_str().unwrap().contains("the picker chose server-"), "{ignored}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_picker_is_found_in_either_mode() {
    for (mode, path) in [("true", "picker-not-in-path"), ("false", "gateway-fails")] {
        let mut back = Back::start(&[]).await;
        let mode = format!("failure_mode_allow: {mode}");
        let envoy = back.envoy(ORIGINAL_DST, &[("failure_mode_allow: true", &mode)]).await;
        back.usher.kill().await;
        envoy.picker_is(false).await;
        let found = back.examined(&envoy, &[]).await;
        assert_eq!(found.code, 1);
        for code in [path, "picker-unreachable", "picker-unhealthy", "picker-metrics-unreachable"] {
            found.finding(code);
        }
        assert_eq!(found.status("tls"), "skipped", "{:#}", found.report);
        assert!(found.detail("tls").contains("picker"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_pool_and_dead_server_are_found() {
    let back = Back::start(&[]).await;
    let envoy = back.envoy(ORIGINAL_DST, &[]).await;
    back.usher.set_endpoints(&[]).await;
    let found = back.examined(&envoy, &[]).await;
    assert_eq!((found.code, faults(&found)), (1, vec!["no-endpoints"]), "{:#}", found.report);
    back.usher.set_endpoints(&[nobody()]).await;
    let found = back.examined(&envoy, &[]).await;
    assert_eq!(found.code, 1);
    found.finding("servers-fail");
    let metrics = found.finding("pod-metrics-unreachable");
    assert!(metrics["what"].as_str().unwrap().contains(&nobody().to_string()), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_endpoints_for_one_are_found() {
    let back = Back::start(&["--config-text", WITH_FALLBACK]).await;
    let envoy = back.envoy(ORIGINAL_DST, &[]).await;
    let found = back.examined(&envoy, &[]).await;
    assert_eq!(found.code, 1, "{:#}", found.report);
    found.finding("list-for-original-dst");
    found.finding("servers-fail");
}
