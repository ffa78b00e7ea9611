//! What happens around a decision: header processors, screeners, admitters, and what
//! reads answers.

use super::super::types::Kind::{Admitter, RequestHeader, Response, Screener};
use super::super::types::{PluginType, later};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    later("latency-slo-admitter", &[Admitter]),
    later("probabilistic-admitter", &[Admitter]),
    later("disaggregatedset-rollout-screener", &[Screener, Response]).alpha(),
    later("request-attribute-reporter", &[Response]),
    later("agent-identity", &[RequestHeader]).alpha(),
    later("destination-endpoint-served-verifier", &[Response]),
];
