//! What happens around a decision: header processors, screeners, admitters, and what
//! reads answers.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{Admitter, RequestHeader, Response, Screener};
use super::super::types::{PluginType, beta, later};
use crate::config::ConfigError;
use crate::schedule::ServedVerifier;

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    later("latency-slo-admitter", &[Admitter]),
    later("probabilistic-admitter", &[Admitter]),
    later("disaggregatedset-rollout-screener", &[Screener, Response]).alpha(),
    later("request-attribute-reporter", &[Response]),
    later("agent-identity", &[RequestHeader]).alpha(),
    beta("destination-endpoint-served-verifier", &[Response],
        "For conformance tests: names in a header of the answer the endpoint that served.",
        &[], Build::Reading(served_verifier))
        .when("Conformance tests."),
];

fn served_verifier(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built { pre_request: Some(Arc::new(ServedVerifier::default())), ..Built::bare() })
}
