//! Envoy's messages and ours: the only place that knows how they are encoded. Incoming
//! messages become [`Message`](super::event::Message)s, [`Reply`](super::reply::Reply)s
//! become outgoing ones.
//!
//! Messages are read where they lie and written where they are sent from, without
//! structures in between: of what a gateway sends we need little, and its bodies pass
//! through. The numbers of fields are those of `envoy/service/ext_proc/v3/external_processor.proto`
//! and of the files that it imports.

mod read;
mod write;

pub use read::read;
pub use write::write;

/// Where the picked endpoints are named, as a header and as metadata.
const DESTINATION: &str = "x-gateway-destination-endpoint";
const SCORES: &str = "x-gateway-destination-endpoint-scores";
const SERVED: &str = "x-gateway-destination-endpoint-served";
const LB_NAMESPACE: &str = "envoy.lb";
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET_KEY: &str = "x-gateway-destination-endpoint-subset";
const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";

/// Headers by which a request accepts an answer that is encoded. They are removed where the
/// answer is read.
pub(super) const ENCODINGS: [&str; 2] = ["accept-encoding", "grpc-accept-encoding"];

/// Headers by which a client could steer a request past us. They are removed
/// from every request, also from one whose headers the gateway did not show us,
/// except for those that we set.
const ROUTING_HEADERS: [&str; 7] = [
    DESTINATION,
    SERVED,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    DROPPED_REASON,
];
