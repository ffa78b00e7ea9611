//! The kinds of findings: for each why it matters and how to fix it.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Works, and may not under load or after a failure.
    Warning,
    /// Requests fail or are not routed as they should be.
    Wrong,
}

/// A kind of findings.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name, which stays the same.
    pub code: &'static str,
    /// Severity of its findings.
    pub severity: Severity,
    /// Consequence.
    pub why: &'static str,
    /// Remedy.
    pub fix: &'static str,
}

/// Defines each rule, and the list of all of them.
macro_rules! rules {
    ($($name:ident: $severity:ident $code:literal, $why:literal, $fix:literal;)*) => {
        $(
            #[doc = concat!("`", $code, "`: ", $why)]
            pub const $name: Rule =
                Rule { code: $code, severity: Severity::$severity, why: $why, fix: $fix };
        )*
        /// Every rule there is, in the order of the checks.
        pub const ALL: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    // The way of a request.
    GATEWAY_UNREACHABLE: Wrong "gateway-unreachable",
        "No client can be served, and nothing about the gateway can be proved.",
        "Start the gateway, or give its address with --gateway.";
    GATEWAY_NO_ROUTE: Wrong "gateway-no-route",
        "The gateway has no route for completions, so it never asks the picker.",
        "Add a route for /v1/, or give --gateway the path prefix and --header the host name that your route matches.";
    PICKER_NOT_IN_PATH: Wrong "picker-not-in-path",
        "Requests are spread without regard to load and caches. Nothing else shows it, as responses keep coming.",
        "Add the ext_proc filter to the listener and the route that clients use (deploy/envoy), or the InferencePool to the HTTPRoute's backendRefs; look at the picker's health if it fails open.";
    PICKER_PATH_UNPROVEN: Warning "picker-path-unproven",
        "Without a response that only the picker gives, a broken set-up looks like a working one.",
        "Give what the gateway asks for, for example --header 'authorization: Bearer …', and try again.";
    GATEWAY_FAILS: Wrong "gateway-fails",
        "The gateway responds itself: it asks a picker that it can't reach, or that breaks the exchange, and every request fails.",
        "See the checks picker, tls and body-mode; the gateway's log has the reason in its response flags.";
    BODIES_NOT_READ: Warning "bodies-not-read",
        "The picker is asked, but a broken body was not refused: it decides without the prompt and the model.",
        "Send bodies in FULL_DUPLEX_STREAMED mode; if the configuration of the picker has no parser for JSON on purpose, ignore this.";
    NO_ENDPOINTS: Wrong "no-endpoints",
        "The picker knows no endpoint that it may pick, so every request is answered with 503.",
        "See the checks pool and pod-metrics: the selector, the readiness of the pods, or the endpoints file.";
    POOL_SATURATED: Warning "pool-saturated",
        "The picker refuses requests as there is no room, so where it sends them could not be compared.",
        "Add model servers or wait, and run the doctor again.";
    SERVERS_FAIL: Warning "servers-fail",
        "The picker chose, and no model server responded as it should.",
        "See the check pod-metrics; look whether the gateway reaches the addresses and ports of the pods.";
    PICKER_CHOICE_IGNORED: Wrong "picker-choice-ignored",
        "The gateway asks the picker and sends the request elsewhere: everything that the picker books and remembers is wrong.",
        "Route to a cluster that follows x-gateway-destination-endpoint: ORIGINAL_DST with use_http_header, or override_host (deploy/envoy).";
    PICKER_COUNTERS_STILL: Warning "picker-counters-still",
        "The picker's counters did not move with the probes: they are another picker's, or the gateway asks another replica.",
        "Give --metrics the address of the picker that this gateway asks.";
    ENVOY_ADMIN_UNREACHABLE: Wrong "envoy-admin-unreachable",
        "The gateway's configuration and counters can't be looked at, so half of the checks are left out.",
        "Give --envoy-admin the address of Envoy's admin interface, for example through kubectl port-forward.";

    // The picker's port.
    PICKER_UNREACHABLE: Wrong "picker-unreachable",
        "The gateway's calls fail, so requests fail, or go on unrouted where it fails open.",
        "Start the picker, and let its Service, its port and NetworkPolicies admit the gateway.";
    PICKER_UNHEALTHY: Wrong "picker-unhealthy",
        "The gateway's own check finds no picker that is ready, so it does not ask any.",
        "Look at the picker's log for what it waits for; with leader election and without a state store only the leader is ready.";
    PICKER_NOT_EXT_PROC: Wrong "picker-not-ext-proc",
        "What listens there is no picker: no exchange with it can succeed.",
        "Name the gRPC port of the picker (9002), not that of health (9003) or metrics (9090).";
    TLS_MISMATCH: Wrong "tls-mismatch",
        "One side speaks TLS and the other plain text: every call fails, unnoticed where the gateway fails open.",
        "Give the cluster a transport_socket for TLS, or start the picker with --secure-serving=false.";
    TLS_CERTIFICATE: Wrong "tls-certificate",
        "A gateway that looks at the certificate refuses the connection.",
        "Renew the certificate in --cert-path (with --enable-cert-reload it is read again), or give the gateway the CA that signed it.";
    TLS_NO_ALPN: Warning "tls-no-alpn",
        "The picker did not agree on HTTP/2 in the handshake; gateways that insist on it refuse the connection.",
        "Let the TLS proxy in front of the picker offer h2.";
    PICKER_NOT_HTTP2: Wrong "picker-not-http2",
        "gRPC needs HTTP/2, and Envoy speaks HTTP/1.1 to a cluster unless told otherwise.",
        "Give the cluster of the picker explicit_http_config with http2_protocol_options.";

    // When the picker is away.
    FAILS_OPEN: Warning "fails-open",
        "A picker that is broken is not noticed: responses keep coming without balance, queues, shedding and model rewrites.",
        "Keep it if responses matter more, and watch the counter ext_proc.failure_mode_allowed; otherwise failure_mode_allow: false.";
    FAILS_OPEN_NOWHERE: Warning "fails-open-nowhere",
        "Requests that go on without the picker have no destination: the cluster knows addresses by the picker's header alone, so they fail with 503.",
        "Add a route without the header to a cluster that lists the model servers (deploy/envoy/original-dst.yaml).";
    FAILED_OPEN: Warning "failed-open",
        "Since the gateway started, requests went on without the picker.",
        "See the checks picker and message-timeout for the reason.";
    FAIL_MODE_DIFFERS: Wrong "fail-mode-differs",
        "The gateway does something else than the InferencePool asks for when the picker is away.",
        "Make both say the same: failureMode of the pool, failure_mode_allow of the gateway.";

    // How the gateway asks.
    EXT_PROC_MISSING: Wrong "ext-proc-missing",
        "The listener has no ext_proc filter, so no picker is asked.",
        "Add the filter before the router, as in deploy/envoy; in Kubernetes look at the status of the HTTPRoute and of the InferencePool.";
    EXT_PROC_DISABLED: Wrong "ext-proc-disabled",
        "The requests of these routes go past the picker.",
        "Remove the override, or the route's `disabled`, if its requests are for model servers.";
    OBSERVABILITY_MODE: Wrong "observability-mode",
        "Envoy tells the picker about requests and does not wait for what it says.",
        "Remove observability_mode.";
    HEADERS_NOT_SENT: Wrong "headers-not-sent",
        "Without the request's headers the exchange never begins.",
        "Set request_header_mode: SEND.";
    REQUEST_BODY_MODE: Wrong "request-body-mode",
        "The gateway waits for replies in another form than a picker gives: requests hang or are routed without their prompt and model, and long ones break on buffer limits.",
        "Set request_body_mode: FULL_DUPLEX_STREAMED.";
    RESPONSE_BODY_MODE: Wrong "response-body-mode",
        "Responses hang or are buffered whole, and the picker learns nothing of tokens and failures.",
        "Set response_body_mode: FULL_DUPLEX_STREAMED.";
    RESPONSE_NOT_SEEN: Warning "response-not-seen",
        "The picker does not see responses: no usage, no TTFT, no outlier ejection, and load is released too early.",
        "Set response_header_mode: SEND and response_body_mode: FULL_DUPLEX_STREAMED.";
    TRAILERS_NOT_SENT: Wrong "trailers-not-sent",
        "A body that ends in trailers never ends for the picker: gRPC requests and responses hang.",
        "Set request_trailer_mode and response_trailer_mode to SEND.";
    TWO_FULL_DUPLEX: Warning "two-full-duplex",
        "Two ext_proc filters in full duplex broke bodies of more than a few kilobytes in versions of Envoy (envoy#41654).",
        "Test long bodies, use an Envoy with the fix (envoy#43175), or take the body away from one of the filters.";
    BUFFER_BEFORE_PICKER: Warning "buffer-before-picker",
        "A buffer filter keeps whole bodies and responds with 413 above its limit; long prompts are longer than its usual limits.",
        "Remove the filter for these routes, or raise max_request_bytes.";
    MUTATIONS_REFUSED: Wrong "mutations-refused",
        "Envoy drops the headers that the picker sets, the destination among them.",
        "Remove disallow_all and disallow_expression from mutation_rules, or allow x-gateway-destination-endpoint.";
    MESSAGE_TIMEOUT_SHORT: Wrong "message-timeout-short",
        "Envoy gives up on the picker while a long prompt is uploaded or a request waits in a queue; Envoy's default is 200 ms.",
        "Set message_timeout: 1000s.";
    MESSAGE_TIMEOUT_LOW: Warning "message-timeout-low",
        "Requests that wait in the picker's queue for longer than this fail.",
        "Set message_timeout: 1000s.";
    MESSAGES_TIMED_OUT: Warning "messages-timed-out",
        "Since the gateway started, it gave up waiting for the picker.",
        "Raise message_timeout; if it is high, look at the picker's CPU and its queue.";
    STREAMS_FAILED: Warning "streams-failed",
        "Since the gateway started, calls to the picker failed; each cost a request or sent it on unrouted.",
        "See the checks picker and tls; restarts of the picker count here, too.";
    ROUTE_TIMEOUT_SHORT: Wrong "route-timeout-short",
        "A generation that takes longer is cut off with 504; Envoy's default is 15 s for the whole response.",
        "Set timeout: 86400s (or 0s for none) on the route, in Gateway API timeouts.request of the HTTPRoute.";

    // Limits.
    BREAKER_LOW: Warning "breaker-low",
        "A request takes a place for as long as it runs. Above the limit requests fail with 503 while servers have room; Envoy's default is 1,024.",
        "Set max_connections, max_pending_requests and max_requests of the cluster to 40000.";
    BREAKER_TRIPS: Wrong "breaker-trips",
        "The circuit breaker refuses requests that picker and servers have room for.",
        "Set max_connections, max_pending_requests and max_requests of the cluster to 40000.";

    // Where the gateway sends to.
    DESTINATION_IGNORED: Wrong "destination-ignored",
        "No cluster that the routes lead to follows the picker's choice.",
        "Use ORIGINAL_DST with use_http_header and http_header_name x-gateway-destination-endpoint, or the policy override_host.";
    METADATA_NOT_RECEIVED: Wrong "metadata-not-received",
        "The cluster looks for the destination in metadata that the filter does not take from the picker.",
        "Set metadata_options.receiving_namespaces.untyped: [envoy.lb] on the ext_proc filter, or add the header as a source.";
    ROUTE_CACHE_KEPT: Wrong "route-cache-kept",
        "The route that matches on the picker's header is never found, as the route is chosen before.",
        "Remove disable_clear_route_cache, and route_cache_action: RETAIN, from the filter.";
    LIST_FOR_ORIGINAL_DST: Wrong "list-for-original-dst",
        "The picker names several endpoints, and an ORIGINAL_DST cluster responds with 503 to a list.",
        "Set maxNumOfEndpoints of the picker plugin to 1, or use override_host (deploy/envoy/override-host.yaml).";
    CLIENT_DESTINATION_TRUSTED: Warning "client-destination-trusted",
        "When the picker is away, a client's own copy of the header decides where its request goes: to any address that the gateway reaches.",
        "Remove x-gateway-destination-endpoint in early_header_mutation_extensions, as deploy/envoy does.";
    RETRIES_REPEAT_WORK: Warning "retries-repeat-work",
        "A retry after a response generates the same tokens twice, and repeats requests that the picker refused to protect the pool.",
        "Retry only on connect-failure, refused-stream and reset-before-request.";

    // Numbers.
    PICKER_METRICS_UNREACHABLE: Wrong "picker-metrics-unreachable",
        "The picker isn't monitored, and autoscalers that read its metrics stand still.",
        "Give the right address with --metrics; with authentication give --metrics-header 'authorization: Bearer …'.";
    PICKER_METRICS_NAMES: Wrong "picker-metrics-names",
        "The page has none of a picker's metrics, so dashboards and alerts stay empty.",
        "Give --metrics the port of the picker's metrics (9090), not that of the gateway.";
    STATE_STORE_AWAY: Wrong "state-store-away",
        "The picker knows its own load only: replicas send requests to the same endpoints at the same time.",
        "See the picker's log: it names each cause once, and what to do.";
    STATE_STORE_PREFIXES: Wrong "state-store-prefixes",
        "The picker doesn't know prefixes that other replicas sent, and starts cold: engines compute prompts again that another of them holds.",
        "See the picker's log: it names each cause once, and what to do.";
    STATE_STORE_LEARNED: Wrong "state-store-learned",
        "The picker starts without sessions and learned latencies, and doesn't know the sessions of other replicas: their requests lose their endpoints.",
        "See the picker's log: it names each cause once, and what to do.";
    POD_METRICS_UNREACHABLE: Wrong "pod-metrics-unreachable",
        "The picker knows nothing of this server's load and guesses; others get its share, or it is sent too much.",
        "Let the server serve /metrics on the port that requests go to, or set port, path and scheme of metrics-data-source; look at NetworkPolicies.";
    POD_METRICS_NAMES: Wrong "pod-metrics-names",
        "Scorers that read these numbers see nothing of this server.",
        "Compare the engine and its version with docs/reference/plugins.md, and describe them in engineConfigs of core-metrics-extractor.";
    POD_METRICS_ENGINE: Wrong "pod-metrics-engine",
        "The metrics are another engine's, so none of them is read.",
        "Put the label llm-d.ai/engine-type on the pods, or set defaultEngine of core-metrics-extractor.";
    POD_METRICS_CACHE: Warning "pod-metrics-cache",
        "Without the size of the cache, the prefix index assumes one.",
        "Use a version of the engine that reports it, or set the parameters of approx-prefix-cache-producer.";
    ADMIN_UNREACHABLE: Wrong "admin-unreachable",
        "What Usher knows of its endpoints can't be looked at.",
        "Give --admin the address that Usher's --admin-address opens, for example through kubectl port-forward.";
    ENDPOINT_EJECTED: Warning "endpoint-ejected",
        "Usher has ejected this endpoint because it fails; it gets probes only.",
        "See its log; docs/guide/outlier-ejection.md says when the ejection ends.";
    KV_EVENTS_DISAGREE: Wrong "kv-events-disagree",
        "Requests are routed by blocks that the engine doesn't have, or past those that it has: the picker's tokens, or what it takes for one prompt, are not the engine's.",
        "Compare tokenizer, chat template, model name and adapters with the engine's; see docs/guide/precise-prefix.md.";
    KV_EVENTS_WITHOUT_TOKENS: Warning "kv-events-without-tokens",
        "The blocks of these prompts aren't known: they are routed by an approximate match, if there is one.",
        "See the picker's log, which says once a minute why a prompt was not tokenized, and docs/guide/precise-prefix.md.";

    // Kubernetes.
    API_SERVER_UNREACHABLE: Wrong "api-server-unreachable",
        "The picker can't learn of pods and rules that change.",
        "Check KUBECONFIG or the service account, and the network to the API server.";
    CRD_MISSING: Wrong "crd-missing",
        "The API server does not know InferencePool, so there is no pool to serve.",
        "Install the definitions of the Gateway API Inference Extension (v1).";
    CRD_OLD: Wrong "crd-old",
        "Only a version of InferencePool is served that pickers no longer read.",
        "Install inference.networking.k8s.io/v1, and write the pool anew in it.";
    RIGHT_MISSING: Wrong "right-missing",
        "The picker is not ready until it may read these objects.",
        "Add the rule to the picker's Role.";
    METRICS_RIGHT_MISSING: Warning "metrics-right-missing",
        "The picker may not ask who may read its metrics, so it refuses all readers: dashboards and autoscalers get no data.",
        "Add the rule to a ClusterRole of the picker, or give --metrics-endpoint-auth=false.";
    POOL_MISSING: Wrong "pool-missing",
        "Without its pool the picker has no endpoints and is not ready.",
        "Create the InferencePool, or correct --pool-name and --pool-namespace.";
    POOL_EMPTY: Wrong "pool-empty",
        "No pod is an endpoint, so every request is answered with 503.",
        "Compare the selector of the pool with the labels of the pods, and look why pods are not ready.";
    POOL_PORTS: Warning "pool-ports",
        "The containers declare ports, and not the one that requests are sent to.",
        "Compare targetPorts of the pool with the port that the model server listens on.";
    POOL_WITHOUT_PICKER: Wrong "pool-without-picker",
        "A pool without a picker is a Service: the gateway spreads its requests blindly or refuses the pool.",
        "Set spec.endpointPickerRef to the Service of the picker, with its port.";
    PICKER_SERVICE: Wrong "picker-service",
        "The gateway looks for the picker where it is not.",
        "Name an existing Service in spec.endpointPickerRef, with a port that it has.";
    PICKER_SERVICE_EMPTY: Wrong "picker-service-empty",
        "No replica of the picker is ready, so requests fail, or go on unrouted where the pool fails open.",
        "Look at the pods of the picker and at the selector of its Service.";
    POOL_NOT_ACCEPTED: Wrong "pool-not-accepted",
        "A gateway says that it can't use the pool.",
        "Do what the condition's message says.";
    ROUTE_NOT_ACCEPTED: Wrong "route-not-accepted",
        "A gateway says that it can't use the route to the pool.",
        "Do what the condition's message says.";
    NO_ROUTE: Warning "no-route",
        "No HTTPRoute of the namespace leads to the pool; requests may come by another way, or not at all.",
        "Name the pool in backendRefs of an HTTPRoute: group inference.networking.k8s.io, kind InferencePool.";
    POOLS_OVERLAP: Warning "pools-overlap",
        "Two pickers send to the same pods, and neither knows of the other's requests until they show in the metrics.",
        "Give each pool a selector of its own.";

    // Capacity policies.
    CAPACITY_POLICY_REFUSED: Wrong "capacity-policy-refused",
        "The version before it stays in force, or none is.",
        "Do what the condition Accepted says.";
    CAPACITY_RIGHT_MISSING: Wrong "capacity-right-missing",
        "The policy is read or carried out in part, or not at all.",
        "Add the rule to the picker's Role; the chart has router.epp.capacityPolicies.";
    CAPACITY_RIGHT_OPTIONAL: Warning "capacity-right-optional",
        "The policy is carried out without events, or without a look at where there is room or at owners of its targets.",
        "Add the rule to the picker's Role or ClusterRole.";
    CAPACITY_TARGET_MISSING: Wrong "capacity-target-missing",
        "There is nothing to scale: the policy's numbers go nowhere.",
        "Create the object, or correct scaleTargetRef.";
    CAPACITY_TARGET_SHARED: Wrong "capacity-target-shared",
        "Two writers of one number undo each other's work, so not all of them may act.",
        "Let one role of one policy scale each object.";
    CAPACITY_SELECTORS_OVERLAP: Warning "capacity-selectors-overlap",
        "A pod that two roles select is counted in one of them, or for two groups.",
        "Give each role labels that no other role's pods have, or its policy a poolRef.";
    GATE_ORPHANED: Wrong "gate-orphaned",
        "No policy removes the scheduling gate, so these pods are never scheduled.",
        "Write a policy with mode Apply whose role selects them and whose pool and target they are of, or take the gate usher.dev/rollout out of their template and run `usher capacity release`.";
    UPDATE_HELD: Wrong "update-held",
        "A policy that was deleted, or no longer has update settings, holds an update, and nothing resumes it.",
        "Run `usher capacity release`.";

    // Versions.
    ENVOY_OLD: Wrong "envoy-old",
        "This Envoy does not know FULL_DUPLEX_STREAMED, which pickers need.",
        "Use Envoy 1.33 or later; 1.40 is what the tests run.";
    ENVOY_DUPLICATES: Warning "envoy-duplicates",
        "These versions send the last part of a long body twice (envoy#46237). Usher takes the first; llm-d-router responds with 400.",
        "Use Envoy 1.38 or later.";
    VERSIONS_DIFFER: Warning "versions-differ",
        "The doctor of one version does not know what another does differently.",
        "Run the doctor of the picker's version: `usher doctor` in its image.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_words_and_differ() {
        for (at, rule) in ALL.iter().enumerate() {
            assert!(
                rule.code
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            );
            assert!(rule.why.ends_with('.') && rule.fix.ends_with('.'), "{}", rule.code);
            assert!(ALL[..at].iter().all(|other| other.code != rule.code), "{}", rule.code);
        }
        assert!(ALL.len() > 50);
    }
}
