//! Names of headers and metadata.

/// Name of the picked endpoints, as a header and as metadata.
pub(super) const DESTINATION: &str = "x-gateway-destination-endpoint";
pub(super) const SCORES: &str = "x-gateway-destination-endpoint-scores";
pub(super) const SERVED: &str = "x-gateway-destination-endpoint-served";
pub(super) const LB_NAMESPACE: &str = "envoy.lb";
pub(super) const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
pub(super) const SUBSET_KEY: &str = "x-gateway-destination-endpoint-subset";
pub(super) const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";

/// Headers by which a request accepts a response that is encoded. They are removed where the
/// response is read.
pub const ENCODINGS: [&str; 2] = ["accept-encoding", "grpc-accept-encoding"];

/// Headers by which a client could steer a request past us. They are removed
/// from every request, also from one whose headers the gateway did not show us,
/// except for those that we set.
pub(super) const ROUTING_HEADERS: [&str; 7] = [
    DESTINATION,
    SERVED,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    DROPPED_REASON,
];
