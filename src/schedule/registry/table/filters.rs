//! Filters.

use super::super::site::Build;
use super::super::types::Kind::{Filter, PreRequest, Response};
use super::super::types::{PluginType, beta, later};
use super::session;

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    later("decode-filter", &[Filter]),
    later("prefill-filter", &[Filter]),
    later("encode-filter", &[Filter]),
    later("label-selector-filter", &[Filter]),
    later("by-label-selector", &[Filter]).instead("label-selector-filter"),
    later("by-label", &[Filter]).instead("label-selector-filter"),
    later("endpoint-attribute-filter", &[Filter]).alpha(),
    later("utilization-filter", &[Filter]).alpha(),
    later("prefix-cache-affinity-filter", &[Filter]),
    later("slo-headroom-tier-filter", &[Filter]),
    beta("session-affinity-filter", &[Filter, PreRequest, Response],
        "Keeps the endpoint that served a request's session before, where it is a candidate.",
        session::PARAMETERS, Build::Reading(session::session_affinity_filter)).alpha(),
    later("multicluster-session-affinity-filter", &[Filter, PreRequest, Response]).alpha(),
    later("topology-affinity-filter", &[Filter]).alpha(),
    later("header-based-testing-filter", &[Filter]),
];
