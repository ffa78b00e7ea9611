//! Configurations of Envoy, good ones and one fault each.

use crate::program::Examined;
use crate::stack::{Back, ORIGINAL_DST, OVERRIDE_HOST};
use crate::support::envoy::Edit;
use crate::support::nobody;
use crate::support::usher::WITH_FALLBACK;

/// What the configurations of the repository choose on purpose.
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

/// `text` without what stands from `from` on until `to`.
fn part<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let start = text.find(from).unwrap();
    let length = text[start..].find(to).unwrap();
    &text[start..start + length]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_the_gateway_are_found() {
    let back = Back::start(&[]).await;
    let text = std::fs::read_to_string(crate::support::envoy::folder().join(ORIGINAL_DST)).unwrap();
    let filter = part(
        &text,
        "          - name: envoy.filters.http.ext_proc",
        "          - name: envoy.filters.http.router",
    );
    let tls = part(&text, "    transport_socket:\n", "    load_assignment:\n");
    let early = part(&text, "          early_header_mutation_extensions:", "          http_filters:");
    let breakers =
        "{ max_connections: 40000, max_pending_requests: 40000, max_requests: 40000, max_retries: 40000 }";
    let second = part(&text, "              # Nobody chose", "  clusters:\n");
    let http2 =
        part(&text, "          http2_protocol_options:\n            # Small", "    # Usher serves TLS");
    // The fault, as edits; what is found; and whether something is wrong.
    let table: [(&str, &[Edit<'_>], &[&str], i32); 15] = [
        ("no filter", &[(filter, "")], &["ext-proc-missing", "picker-not-in-path"], 1),
        ("fails open", &[], &["fails-open"], 0),
        (
            "request body buffered",
            &[("request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: BUFFERED")],
            &["request-body-mode"],
            1,
        ),
        (
            "response body streamed",
            &[("response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: STREAMED")],
            &["response-body-mode"],
            1,
        ),
        (
            "no response",
            &[("response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: NONE")],
            &["response-not-seen"],
            0,
        ),
        ("default time", &[("              message_timeout: 1000s\n", "")], &["message-timeout-short"], 1),
        ("short time", &[("message_timeout: 1000s", "message_timeout: 10s")], &["message-timeout-low"], 0),
        (
            "breakers of 1",
            &[(breakers, "{ max_connections: 1, max_pending_requests: 1, max_requests: 1 }")],
            &["breaker-trips"],
            1,
        ),
        ("default breakers", &[(breakers, "{ track_remaining: true }")], &["breaker-low"], 0),
        ("plain text to TLS", &[(tls, "")], &["gateway-fails", "picker-unhealthy", "tls-mismatch"], 1),
        ("the client may choose", &[(early, "")], &["client-destination-trusted"], 0),
        ("nowhere to go on", &[(second, "")], &["fails-open-nowhere"], 0),
        (
            "short answers",
            &[(
                "                  cluster: chosen_endpoint\n                  timeout: 86400s\n",
                "                  cluster: chosen_endpoint\n",
            )],
            &["route-timeout-short"],
            1,
        ),
        (
            "off on a route",
            &[
                ("                  cluster: model_servers\n", "                  cluster: model_servers\n"),
                (
                    "              - match: { prefix: / }\n",
                    "              - match: { prefix: /plain }\n                typed_per_filter_config: { envoy.filters.http.ext_proc: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, disabled: true } }\n                route: { cluster: model_servers, timeout: 86400s }\n              - match: { prefix: / }\n",
                ),
            ],
            &["ext-proc-disabled"],
            1,
        ),
        (
            "HTTP/1.1 to the picker",
            &[(http2, "          http_protocol_options: {}\n")],
            &["gateway-fails", "picker-not-http2", "picker-unhealthy"],
            1,
        ),
    ];
    for (fault, edits, expected, code) in table {
        // Closed, unless that is the fault, so that a picker which can't be asked shows.
        let closes =
            !matches!(fault, "fails open" | "no filter" | "the client may choose" | "nowhere to go on");
        let mut edits = edits.to_vec();
        if closes {
            edits.push(("failure_mode_allow: true", "failure_mode_allow: false"));
        }
        let envoy = back.envoy(ORIGINAL_DST, &edits).await;
        let found = back.examined(&envoy, &[]).await;
        for each in expected {
            let finding = found.finding(each);
            for part in ["what", "why", "fix"] {
                assert!(finding[part].as_str().is_some_and(|text| !text.is_empty()), "{fault}: {finding}");
            }
        }
        assert_eq!(found.code, code, "{fault}: {:#}", found.report);
        // Some faults have others as a consequence, which depend on how soon Envoy sees them.
        let consequences = [
            "streams-failed",
            "failed-open",
            "picker-counters-still",
            "bodies-not-read",
            "servers-fail",
            "picker-choice-ignored",
            "messages-timed-out",
            "gateway-fails",
            "picker-unhealthy",
            "destination-ignored",
        ];
        let unexpected: Vec<_> = faults(&found)
            .into_iter()
            .filter(|code| !expected.contains(code) && !consequences.contains(code))
            .collect();
        assert_eq!(unexpected, Vec::<&str>::new(), "{fault}: {:#}", found.report);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_choice_that_is_ignored_is_found() {
    let back = Back::start(&[]).await;
    // Usher is asked, and all requests go to one server.
    let one = format!("cluster: elsewhere");
    let cluster = format!(
        "  clusters:\n  - name: elsewhere\n    type: STATIC\n    load_assignment:\n      cluster_name: elsewhere\n      endpoints:\n      - lb_endpoints:\n        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}\n",
        back.servers.addresses[0].port()
    );
    let edits = [("cluster: chosen_endpoint", one.as_str()), ("  clusters:\n", cluster.as_str())];
    let envoy = back.envoy(ORIGINAL_DST, &edits).await;
    let found = back.examined(&envoy, &[]).await;
    assert_eq!(found.code, 1, "{:#}", found.report);
    found.finding("destination-ignored");
    let ignored = found.finding("picker-choice-ignored");
    assert!(ignored["what"].as_str().unwrap().contains("the picker chose server-"), "{ignored}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picker_that_is_down_is_found_in_either_mode() {
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
async fn a_pool_that_is_empty_or_has_a_dead_server_is_found() {
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
