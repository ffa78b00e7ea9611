//! Headers and metadata of an exchange that Usher reads, sets or removes, with their meaning: the reference of operators.
//! A test compares the names with the code that uses them.

/// Use of a header or a metadata key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Read, as it comes.
    Read,
    /// Read, and set if it is missing, empty or no longer true.
    ReadAndSet,
    /// Set in place of what the client or the server sent.
    Set,
    /// Removed, and not set.
    Removed,
}

/// Headers or metadata keys of the same meaning.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Names, in the order in which they count; an older one is last.
    pub names: &'static [&'static str],
    /// Use.
    pub used: Use,
    /// Meaning, in Markdown; links are relative to the page of the reference.
    pub meaning: &'static str,
}

const fn read(names: &'static [&'static str], meaning: &'static str) -> Header {
    Header { names, used: Use::Read, meaning }
}

const fn set(names: &'static [&'static str], meaning: &'static str) -> Header {
    Header { names, used: Use::Set, meaning }
}

const fn removed(names: &'static [&'static str], meaning: &'static str) -> Header {
    Header { names, used: Use::Removed, meaning }
}

const fn read_and_set(names: &'static [&'static str], meaning: &'static str) -> Header {
    Header { names, used: Use::ReadAndSet, meaning }
}

/// Headers of requests. What is set is removed from what clients send.
pub const OF_REQUESTS: &[Header] = &[
    read(
        &[":path", "x-original-path", "x-forwarded-path"],
        "the path by which a parser is chosen: the first of these",
    ),
    read_and_set(
        &["content-length"],
        "413 at once if above `--max-request-body-bytes`, for a body that would be read; set if the body's length changes",
    ),
    read_and_set(
        &["x-request-id"],
        "set to a new UUID if missing or empty; `p2p-source-producer` draws by it",
    ),
    read_and_set(
        &["traceparent"],
        "trace that the request belongs to; set while requests are [traced](../guide/traces.md)",
    ),
    read(&["tracestate"], "what other vendors add to the trace"),
    read(
        &["x-llm-d-inference-objective", "x-gateway-inference-objective"],
        "InferenceObjective with the request's priority",
    ),
    read(
        &["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"],
        "flow for [fairness](../guide/flow-control.md) and metrics",
    ),
    read(
        &["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"],
        "model to ask for in place of the body's",
    ),
    read(
        &["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"],
        "[target](../guide/slo.md) for the first token, milliseconds",
    ),
    read(&["x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"], "target per token after it, milliseconds"),
    read(
        &["x-llm-d-video-fps", "x-llm-d-video-duration-seconds", "x-llm-d-video-resolution"],
        "what a video's tokens are estimated by",
    ),
    read(&["prefer"], "`if-available`: 412 unless the first choice has cached some of the prompt"),
    read(&["x-session-token"], "endpoint of a session, for `session-affinity-…` (default name)"),
    read(&["x-session-id"], "name of a session, for `session-affinity-…` (default name)"),
    read(&["cookie"], "name of a session, for `session-id-producer`"),
    read(
        &["x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"],
        "name of an agent's session, for `agent-identity`",
    ),
    read(&["epp-profile"], "profile, for `header-profile-handler` (default name)"),
    read(&["test-epp-endpoint-selection"], "endpoints, for `header-based-testing-filter`"),
    set(
        &["x-gateway-destination-endpoint"],
        "endpoints that should serve, the first choice first: `IP:PORT`, separated by commas",
    ),
    set(
        &["x-prefiller-host-port"],
        "endpoint that computes the prompt ([pairs](../guide/prefix-and-pairs.md))",
    ),
    set(&["x-encoder-hosts-ports"], "endpoints that encode images, videos and clips"),
    set(&["x-data-parallel-host-port"], "rank that should serve, for `data-parallel-profile-handler`"),
    set(&["x-kv-cache-source-host-port"], "endpoint to fetch cached blocks from, for `p2p-source-producer`"),
    removed(
        &["x-gateway-destination-endpoint-served", "x-llm-d-request-dropped-reason"],
        "what only gateways and Usher say",
    ),
    removed(
        &["accept-encoding", "grpc-accept-encoding"],
        "encodings that Usher can't read, where it reads the response",
    ),
];

/// Headers of responses.
pub const OF_RESPONSES: &[Header] = &[
    read(
        &[":status", "grpc-status"],
        "success or failure, also for [outlier ejection](../guide/outlier-ejection.md)",
    ),
    read(&["content-type"], "`text/event-stream`: read event by event"),
    read(&["content-encoding", "grpc-encoding"], "other than `identity`: the body is not read"),
    read(&["x-envoy-overloaded"], "Envoy's own limits refused the request: no failure of the endpoint"),
    set(&["x-went-into-resp-headers"], "`true`, when Usher has seen the headers of the response"),
    set(&["x-session-token"], "endpoint of the session, for `session-affinity-…` (default name)"),
    set(&["x-conformance-test-served-endpoint"], "who served, for `destination-endpoint-served-verifier`"),
    set(
        &["x-llm-d-request-dropped-reason"],
        "why Usher refused the request: a reason of [flow control](../guide/flow-control.md#what-a-client-sees), \
         `rejected-no-pair` or `rejected-context-cancelled`",
    ),
    set(&["retry-after"], "seconds after which a refused request may come again"),
];

/// Keys of Envoy's dynamic metadata; all but the first are in the namespace `envoy.lb`.
pub const METADATA: &[Header] = &[
    read(
        &["x-gateway-destination-endpoint-subset"],
        "endpoints to choose among; a list, or text with commas; in the namespace `envoy.lb.subset_hint`",
    ),
    read(&["x-gateway-destination-endpoint-served"], "endpoint that served"),
    set(&["x-gateway-destination-endpoint"], "the same as the header of this name"),
    set(&["x-gateway-destination-endpoint-scores"], "score of each endpoint, with `--emit-endpoint-scores`"),
];
