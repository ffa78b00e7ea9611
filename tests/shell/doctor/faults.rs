//! A sound configuration of Envoy with one fault each.

use crate::doctor::stack::{Back, ORIGINAL_DST};
use crate::support::envoy::{Edit, folder};

/// A configuration with a fault, and what is found.
struct Fault<'a> {
    name: &'static str,
    edits: Vec<Edit<'a>>,
    /// Codes of the findings that are required.
    finds: &'static [&'static str],
    /// Codes of findings that may follow from the fault, depending on how soon Envoy gives up.
    follows: &'static [&'static str],
}

/// A fault that has nothing else as a consequence.
fn alone<'a>(name: &'static str, edit: Edit<'a>, finds: &'static [&'static str]) -> Fault<'a> {
    Fault { name, edits: vec![edit], finds, follows: &[] }
}

/// Part of a text from the first `from`, included, to the next `to`, excluded.
fn part<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let start = text.find(from).unwrap();
    let length = text[start..].find(to).unwrap();
    &text[start..start + length]
}

const CLOSED: Edit<'static> = ("failure_mode_allow: true", "failure_mode_allow: false");
const BREAKERS: &str =
    "{ max_connections: 40000, max_pending_requests: 40000, max_requests: 40000, max_retries: 40000 }";
const LAST_ROUTE: &str = "              - match: { prefix: / }\n";
const PLAIN_ROUTE: &str = r#"              - match: { prefix: /plain }
                typed_per_filter_config:
                  envoy.filters.http.ext_proc:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                    disabled: true
                route: { cluster: model_servers, timeout: 86400s }
              - match: { prefix: / }
"#;
const SHORT_ROUTE: &str = r#"              - match: { prefix: /quick }
                typed_per_filter_config:
                  envoy.filters.http.ext_proc:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                    overrides: { failure_mode_allow: true }
                route: { cluster: model_servers, timeout: 86400s }
              - match: { prefix: / }
"#;
const ROUTER: &str = "          - name: envoy.filters.http.router\n";
const BUFFER: &str = r#"          - name: envoy.filters.http.buffer
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer
              max_request_bytes: 1000
          - name: envoy.filters.http.ext_proc
"#;
const TIMEOUT: &str = "              message_timeout: 1000s\n";
const FIRST_TIMEOUT: &str = "                  cluster: chosen_endpoint\n                  timeout: 86400s\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_of_a_configuration_is_found() {
    let back = Back::start(&[]).await;
    let text = std::fs::read_to_string(folder().join(ORIGINAL_DST)).unwrap();
    let filter = part(&text, "          - name: envoy.filters.http.ext_proc", ROUTER);
    let tls = part(&text, "    transport_socket:\n", "    load_assignment:\n");
    let early = part(&text, "          early_header_mutation_extensions:", "          http_filters:");
    let health = part(&text, "    health_checks:\n", "    # Until the health check");
    let second = part(&text, "              # Nobody chose", "  clusters:\n");
    let http2 =
        part(&text, "          http2_protocol_options:\n            # Small", "    # Usher serves TLS");
    let body = |direction: &'static str, mode: &'static str| -> (String, String) {
        let of = |mode: &str| format!("{direction}_body_mode: {mode}");
        (of("FULL_DUPLEX_STREAMED"), of(mode))
    };
    let modes = [
        body("request", "BUFFERED"),
        body("request", "NONE"),
        body("response", "STREAMED"),
        body("response", "NONE"),
    ];
    let [buffered, none, streamed, blind] = modes.each_ref().map(|(from, to)| (from.as_str(), to.as_str()));
    let to_filter = |line: &str| format!("{TIMEOUT}              {line}\n");
    let (observes, refuses, keeps) = (
        to_filter("observability_mode: true"),
        to_filter("mutation_rules: { disallow_all: { value: true } }"),
        to_filter("route_cache_action: RETAIN"),
    );
    let faults = [
        Fault { name: "none", edits: vec![CLOSED], finds: &[], follows: &[] },
        Fault {
            name: "no filter",
            edits: vec![(filter, "")],
            finds: &["ext-proc-missing", "picker-not-in-path"],
            follows: &[],
        },
        Fault {
            name: "request buffered",
            edits: vec![CLOSED, buffered],
            finds: &["request-body-mode", "bodies-not-read"],
            follows: &[],
        },
        Fault {
            name: "request not sent",
            edits: vec![CLOSED, none],
            finds: &["request-body-mode", "bodies-not-read"],
            follows: &[],
        },
        Fault {
            name: "response streamed",
            edits: vec![CLOSED, streamed],
            finds: &["response-body-mode"],
            follows: &[],
        },
        Fault {
            name: "response not sent",
            edits: vec![CLOSED, blind],
            finds: &["response-not-seen"],
            follows: &[],
        },
        Fault {
            name: "observes",
            edits: vec![CLOSED, (TIMEOUT, &observes)],
            finds: &["observability-mode", "picker-not-in-path"],
            follows: &[],
        },
        Fault {
            name: "mutations refused",
            edits: vec![CLOSED, (TIMEOUT, &refuses)],
            finds: &["mutations-refused"],
            follows: &[],
        },
        Fault {
            name: "route kept",
            edits: vec![CLOSED, (TIMEOUT, &keeps)],
            finds: &["route-cache-kept", "picker-choice-ignored"],
            follows: &[],
        },
        Fault {
            name: "default time",
            edits: vec![CLOSED, (TIMEOUT, "")],
            finds: &["message-timeout-short"],
            follows: &[],
        },
        Fault {
            name: "short time",
            edits: vec![CLOSED, ("message_timeout: 1000s", "message_timeout: 10s")],
            finds: &["message-timeout-low"],
            follows: &[],
        },
        Fault {
            name: "breakers of 1",
            edits: vec![
                CLOSED,
                (BREAKERS, "{ max_connections: 1, max_pending_requests: 1, max_requests: 1 }"),
            ],
            finds: &["breaker-trips"],
            follows: &[],
        },
        Fault {
            name: "default breakers",
            edits: vec![CLOSED, (BREAKERS, "{ track_remaining: true }")],
            finds: &["breaker-low"],
            follows: &[],
        },
        Fault {
            name: "plain text to TLS",
            edits: vec![CLOSED, (tls, "")],
            finds: &["gateway-fails", "picker-unhealthy", "tls-mismatch"],
            follows: &["streams-failed"],
        },
        Fault {
            name: "HTTP/1.1 to the picker",
            edits: vec![CLOSED, (http2, "          http_protocol_options: {}\n"), (health, "")],
            finds: &["gateway-fails", "picker-not-http2"],
            follows: &["streams-failed"],
        },
        alone("the client may choose", (early, ""), &["client-destination-trusted", "fails-open"]),
        alone("nowhere to go on", (second, ""), &["fails-open", "fails-open-nowhere"]),
        Fault {
            name: "responses are cut off",
            edits: vec![CLOSED, (FIRST_TIMEOUT, "                  cluster: chosen_endpoint\n")],
            finds: &["route-timeout-short"],
            follows: &[],
        },
        Fault {
            name: "off on a route",
            edits: vec![CLOSED, (LAST_ROUTE, PLAIN_ROUTE)],
            finds: &["ext-proc-disabled"],
            follows: &[],
        },
        Fault {
            name: "open on a route",
            edits: vec![CLOSED, (LAST_ROUTE, SHORT_ROUTE)],
            finds: &["fails-open"],
            follows: &[],
        },
        Fault {
            name: "a buffer",
            edits: vec![CLOSED, ("          - name: envoy.filters.http.ext_proc\n", BUFFER)],
            finds: &["buffer-before-picker"],
            follows: &[],
        },
        Fault {
            name: "retries",
            edits: vec![CLOSED, ("retry_on: connect-failure,", "retry_on: 5xx,connect-failure,")],
            finds: &["retries-repeat-work"],
            follows: &[],
        },
    ];
    let mut wrong = Vec::new();
    for Fault { name, edits, finds, follows } in faults {
        let envoy = back.envoy(ORIGINAL_DST, &edits).await;
        let mut found = back.examined(&envoy, &[]).await;
        // By chance a gateway that ignores the picker sends all probes where that would have: 1 of 64 times.
        for _ in 0..5 {
            if !finds.contains(&"picker-choice-ignored") || found.codes().contains(&"picker-choice-ignored") {
                break;
            }
            found = back.examined(&envoy, &[]).await;
        }
        let codes = found.codes();
        let unexpected = codes.iter().any(|code| !finds.contains(code) && !follows.contains(code));
        if unexpected || finds.iter().any(|code| !codes.contains(code)) {
            wrong.push(format!("{name}: {codes:?}, not {finds:?}, by {}", found.detail("path")));
            continue;
        }
        for code in finds {
            let finding = found.finding(code);
            for part in ["what", "why", "fix"] {
                assert!(finding[part].as_str().is_some_and(|text| !text.is_empty()), "{name}: {finding}");
            }
        }
        let is_wrong = codes.iter().any(|code| found.finding(code)["severity"] == "wrong");
        assert_eq!(found.code, i32::from(is_wrong), "{name}: {:#}", found.report);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
