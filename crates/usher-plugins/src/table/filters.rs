//! Filters.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::Kind::{Filter, PreRequest, Response};
use usher_plugin::{Build, Built, DataType, LabelSelector, Parameter, PluginType, Site, beta, parameter};

use super::session;
use crate::{AffinityFamilies, PrefixCacheAffinityFilter, PrefixCacheAffinityFilterParams};
use crate::{
    ByLabelFilter, ByLabelParams, HeaderTestingFilter, LabelSelectorFilter, RoleFilter, UtilizationFilter,
    UtilizationFilterParams,
};
use crate::{EndpointAttributeFilter, EndpointAttributeFilterParams};
use crate::{SloHeadroomTierFilter, SloHeadroomTierParams};
use crate::{TopologyAffinityFilter, TopologyAffinityFilterParams};

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
const AFFINITY: &[Parameter] = &[
    parameter("affinityThreshold", "0.8", "", "Share of the prompt that an endpoint has to hold. 0 or less: keep every endpoint."),
    parameter("explorationProbability", "0", "", "Share of the requests that may go anywhere, so that others learn their prompts, too."),
    parameter("maxTTFTPenaltyMs", "18000", "ms", "By how much later the first token may come where the prompt is cached. 0: as much as it takes."),
    parameter("ttftSource", "prefillThroughput", "", "What the time to the first token is. prefillThroughput: tokens in flight by peakPrefillThroughput. latencyPredictor: as it is predicted."),
    parameter("peakPrefillThroughput", "15928", "tokens/s", "Prompt tokens that an endpoint computes per second at most. Measure it: it depends on model and hardware."),
    parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
    parameter("inFlightLoadProducerName", "inflight-load-producer", "", "The producer that counts tokens in flight."),
    parameter("latencyPredictionInfoProducerName", "predicted-latency-producer", "", "The producer of the predictions, with latencyPredictor."),
];

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("decode-filter", &[Filter],
        "Keeps the endpoints that generate tokens: by their role label, or without one.",
        &[], Build::Ignoring(decode_filter))
        .when("Disaggregated pools: the profile that generates tokens."),
    beta("prefill-filter", &[Filter],
        "Keeps the endpoints whose role label says that they compute prompts.",
        &[], Build::Ignoring(prefill_filter))
        .when("Disaggregated pools: the profile that computes prompts."),
    beta("encode-filter", &[Filter],
        "Keeps the endpoints whose role label says that they encode images, audio and video.",
        &[], Build::Ignoring(encode_filter))
        .when("Disaggregated pools: the profile that encodes images, audio and video."),
    beta("label-selector-filter", &[Filter],
        "Keeps the endpoints that a Kubernetes label selector matches.",
        SELECTOR, Build::Reading(label_selector_filter))
        .when("Several kinds of endpoints in one pool, a profile for each."),
    beta("by-label-selector", &[Filter],
        "The older name of label-selector-filter.",
        SELECTOR, Build::Reading(label_selector_filter)).instead("label-selector-filter")
        .when("Not in new configurations."),
    beta("by-label", &[Filter],
        "Keeps the endpoints whose label has one of some values.",
        &[
            parameter("label", "", "", "The label's key."),
            parameter("validValues", "[]", "", "The values; an empty one stands for a missing label, too."),
            parameter("allowsNoLabel", "false", "", "Keep endpoints without the label, too."),
        ],
        Build::Reading(by_label)).instead("label-selector-filter")
        .when("Not in new configurations."),
    beta("endpoint-attribute-filter", &[Filter],
        "Keeps the endpoints with a number on the right side of a threshold.",
        &[
            parameter("attribute", "", "", "The number: an attributeKey of the producer's customMetrics, or WaitingQueueSize, RunningRequestsSize or KVCacheUsagePercent of a core-metrics-extractor."),
            parameter("producer", "core-metrics-extractor", "", "The plugin that keeps the number up to date."),
            parameter("onMissing", "Pass", "", "Pass or Fail: what becomes of an endpoint that has not got the number, or not lately."),
            parameter("fallbackOnEmpty", "false", "", "Keep all endpoints when none would be left."),
            parameter("algorithm.type", "threshold", "", "Only threshold."),
            parameter("algorithm.threshold.operator", "", "", "LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, Equal or NotEqual: how the endpoint's number compares where it passes."),
            parameter("algorithm.threshold.value", "", "as the number", "What it is compared with."),
        ],
        Build::Reading(endpoint_attribute_filter)).alpha()
        .when("A number of yours says which endpoints are out of the question, such as a GPU's use."),
    beta("utilization-filter", &[Filter],
        "Keeps the endpoints whose numbers are all within their limits.",
        &[
            parameter("conditions", "", "", "The limits: metric (active-requests, running-requests, waiting-queue, kv-cache-utilization) and maxValue."),
            parameter("fallbackOnEmpty", "false", "", "Keep every endpoint when none is within the limits."),
            parameter("inFlightLoadProducerName", "inflight-load-producer", "", "The producer that counts active requests."),
        ],
        Build::Reading(utilization_filter)).alpha()
        .when("No request may go to an endpoint beyond its limits, however good it is otherwise."),
    beta("prefix-cache-affinity-filter", &[Filter],
        "Keeps the endpoints that have the prompt in their prefix cache, as long as they are not much busier than the others; all of them when none has it.",
        AFFINITY, Build::Reading(prefix_cache_affinity_filter))
        .when("Before a scorer of load: requests stay where their prompt is cached until that endpoint is saturated. A prefix-cache-scorer beside it would hold on to it even then."),
    beta("slo-headroom-tier-filter", &[Filter],
        "Keeps the endpoints that are predicted to keep a request's latency targets, or now and then the others; all of them where none does.",
        &[
            parameter("epsilonExploreNeg", "0.01", "", "Share of the requests that go to the others, so that their recovery is noticed."),
            parameter("latencyPredictionInfoProducerName", "predicted-latency-producer", "", "The producer of the predictions."),
        ],
        Build::Reading(slo_headroom_tier_filter))
        .when("Configurations of the Go picker with predicted latencies. expected-latency-scorer weighs targets without it."),
    beta("session-affinity-filter", &[Filter, PreRequest, Response],
        "Keeps the endpoint that served a request's session before, where it is a candidate.",
        session::PARAMETERS, Build::Reading(session::session_affinity_filter)).alpha()
        .when("A conversation must stay at its endpoint as long as that is there."),
    beta("multicluster-session-affinity-filter", &[Filter, PreRequest, Response],
        "The same as session-affinity-filter, where every endpoint is a cluster.",
        session::PARAMETERS, Build::Reading(session::session_affinity_filter)).alpha()
        .when("A conversation must stay in its cluster as long as that is there."),
    beta("topology-affinity-filter", &[Filter],
        "Keeps the endpoints that are near enough to the one that another profile picked; all of them when there is no such one, or nobody is near it.",
        &[
            parameter("minAffinity", "host", "", "host, rack, zone or region: the widest place that has to be the same."),
            parameter("topologyProducerName", "topology-extractor", "", "The plugin that says where endpoints are."),
        ],
        Build::Reading(topology_affinity_filter)).alpha()
        .when("Disaggregated pools: prefill and decode in one rack or zone."),
    beta("header-based-testing-filter", &[Filter],
        "For conformance tests: keeps the endpoints that the header test-epp-endpoint-selection lists.",
        &[], Build::Reading(header_based_testing_filter))
        .when("Conformance tests only."),
];

fn endpoint_attribute_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = EndpointAttributeFilterParams::decode(site.parameters)?;
    let reading = site.reads_attribute(&params.attribute, &params.producer);
    let filter = Arc::new(EndpointAttributeFilter::new(reading, &params));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}

fn slo_headroom_tier_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = SloHeadroomTierParams::decode(site.parameters)?;
    let predictions = site.reads(&params.latency_prediction_info_producer_name);
    let filter = Arc::new(SloHeadroomTierFilter::new(&params, predictions));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}

fn topology_affinity_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TopologyAffinityFilterParams::decode(site.parameters)?;
    site.reads_live(DataType::Topology, &params.topology_producer_name);
    let filter = Arc::new(TopologyAffinityFilter::new(params.min_affinity));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}

fn prefix_cache_affinity_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PrefixCacheAffinityFilterParams::decode(site.parameters)?;
    let prefix = site.reads(&params.prefix_match_info_producer_name);
    let counters = match params.reads_in_flight() {
        true => Some(site.reads_in_flight(&params.in_flight_load_producer_name)),
        false => None,
    };
    let predictions =
        params.reads_predictions().then(|| site.reads(&params.latency_prediction_info_producer_name));
    let decisions = site.family(AffinityFamilies::register)?.of(site.name);
    let filter = PrefixCacheAffinityFilter::new(&params, prefix, counters, decisions);
    let filter = Arc::new(filter.predicted_by(predictions));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}

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
    let reads = params.reads_in_flight();
    let counters = reads.then(|| site.reads_in_flight(&params.in_flight_load_producer_name));
    let filter = Arc::new(UtilizationFilter::new(&params, counters));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}
