//! Filters.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{Filter, PreRequest, Response};
use super::super::types::{PluginType, beta, later, parameter};
use crate::config::ConfigError;
use crate::schedule::{DataType, TopologyAffinityFilter, TopologyAffinityFilterParams};
use crate::schedule::{EndpointAttributeFilter, EndpointAttributeFilterParams};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    later("decode-filter", &[Filter]),
    later("prefill-filter", &[Filter]),
    later("encode-filter", &[Filter]),
    later("label-selector-filter", &[Filter]),
    later("by-label-selector", &[Filter]).instead("label-selector-filter"),
    later("by-label", &[Filter]).instead("label-selector-filter"),
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
        Build::Reading(endpoint_attribute_filter)).alpha(),
    later("utilization-filter", &[Filter]).alpha(),
    later("prefix-cache-affinity-filter", &[Filter]),
    later("slo-headroom-tier-filter", &[Filter]),
    later("session-affinity-filter", &[Filter, PreRequest, Response]).alpha(),
    later("multicluster-session-affinity-filter", &[Filter, PreRequest, Response]).alpha(),
    beta("topology-affinity-filter", &[Filter],
        "Keeps the endpoints that are near enough to the one that another profile picked; all of them when there is no such one, or nobody is near it.",
        &[
            parameter("minAffinity", "host", "", "host, rack, zone or region: the widest place that has to be the same."),
            parameter("topologyProducerName", "topology-extractor", "", "The plugin that says where endpoints are."),
        ],
        Build::Reading(topology_affinity_filter)).alpha(),
    later("header-based-testing-filter", &[Filter]),
];

fn endpoint_attribute_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = EndpointAttributeFilterParams::decode(site.parameters)?;
    let reading = site.reads_attribute(&params.attribute, &params.producer)?;
    let filter = Arc::new(EndpointAttributeFilter::new(reading, &params));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}

fn topology_affinity_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TopologyAffinityFilterParams::decode(site.parameters)?;
    site.reads_live(DataType::Topology, &params.topology_producer_name);
    let filter = Arc::new(TopologyAffinityFilter::new(params.min_affinity));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}
