//! Filters.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{Filter, PreRequest, Response};
use super::super::types::{Parameter, PluginType, beta, later, parameter};
use crate::config::ConfigError;
use crate::schedule::{
    ByLabelFilter, ByLabelParams, HeaderTestingFilter, LabelSelector, LabelSelectorFilter, RoleFilter,
    UtilizationFilter, UtilizationFilterParams,
};

const SELECTOR: &[Parameter] = &[
    parameter("matchLabels", "{}", "", "Labels and the value that each has to have."),
    parameter(
        "matchExpressions",
        "[]",
        "",
        "More that has to hold: key, operator (In, NotIn, Exists, DoesNotExist) and values.",
    ),
];

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("decode-filter", &[Filter],
        "Keeps the endpoints that generate tokens: by their role label, or without one.",
        &[], Build::Ignoring(decode_filter)),
    beta("prefill-filter", &[Filter],
        "Keeps the endpoints whose role label says that they compute prompts.",
        &[], Build::Ignoring(prefill_filter)),
    beta("encode-filter", &[Filter],
        "Keeps the endpoints whose role label says that they encode images, audio and video.",
        &[], Build::Ignoring(encode_filter)),
    beta("label-selector-filter", &[Filter],
        "Keeps the endpoints that a Kubernetes label selector matches.",
        SELECTOR, Build::Reading(label_selector_filter)),
    beta("by-label-selector", &[Filter],
        "The older name of label-selector-filter.",
        SELECTOR, Build::Reading(label_selector_filter)).instead("label-selector-filter"),
    beta("by-label", &[Filter],
        "Keeps the endpoints whose label has one of some values.",
        &[
            parameter("label", "", "", "The label's key."),
            parameter("validValues", "[]", "", "The values; an empty one stands for a missing label, too."),
            parameter("allowsNoLabel", "false", "", "Keep endpoints without the label, too."),
        ],
        Build::Reading(by_label)).instead("label-selector-filter"),
    later("endpoint-attribute-filter", &[Filter]).alpha(),
    beta("utilization-filter", &[Filter],
        "Keeps the endpoints whose numbers are all within their limits.",
        &[
            parameter("conditions", "", "", "The limits: metric (active-requests, running-requests, waiting-queue, kv-cache-utilization) and maxValue."),
            parameter("fallbackOnEmpty", "false", "", "Keep every endpoint when none is within the limits."),
            parameter("inFlightLoadProducerName", "inflight-load-producer", "", "The producer that counts active requests."),
        ],
        Build::Reading(utilization_filter)).alpha(),
    later("prefix-cache-affinity-filter", &[Filter]),
    later("slo-headroom-tier-filter", &[Filter]),
    later("session-affinity-filter", &[Filter, PreRequest, Response]).alpha(),
    later("multicluster-session-affinity-filter", &[Filter, PreRequest, Response]).alpha(),
    later("topology-affinity-filter", &[Filter]).alpha(),
    beta("header-based-testing-filter", &[Filter],
        "For conformance tests: keeps the endpoints that the header test-epp-endpoint-selection lists.",
        &[], Build::Reading(header_based_testing_filter)),
];

fn decode_filter(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { filter: Some(Arc::new(RoleFilter::Decode)), ..Built::bare() })
}

fn prefill_filter(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { filter: Some(Arc::new(RoleFilter::Prefill)), ..Built::bare() })
}

fn encode_filter(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { filter: Some(Arc::new(RoleFilter::Encode)), ..Built::bare() })
}

fn label_selector_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let selector = LabelSelector::decode(site.parameters)?;
    let built = Built::with(&selector)?;
    Ok(Built { filter: Some(Arc::new(LabelSelectorFilter::new(selector))), ..built })
}

fn by_label(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ByLabelParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    Ok(Built { filter: Some(Arc::new(ByLabelFilter::new(params))), ..built })
}

fn header_based_testing_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built { filter: Some(Arc::new(HeaderTestingFilter)), ..Built::bare() })
}

fn utilization_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = UtilizationFilterParams::decode(site.parameters)?;
    let counters = match params.reads_in_flight() {
        true => Some(site.reads_in_flight(&params.in_flight_load_producer_name)?),
        false => None,
    };
    let filter = Arc::new(UtilizationFilter::new(&params, counters));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}
