//! What happens around a decision: header processors, screeners, admitters, and what
//! reads answers.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::Kind::{Admitter, RequestHeader, Response, Screener};
use usher_plugin::{Build, Built, Parameter, PluginId, PluginType, Site, beta, parameter};

use crate::{
    AgentIdentity, AgentIdentityParams, LatencySloAdmitter, LatencySloAdmitterParams, ProbabilisticAdmitter,
    ProbabilisticAdmitterParams, ReporterMetrics, ReporterParams, RequestAttributeReporter, RolloutMetrics,
    RolloutParams, RolloutScreener, ServedVerifier,
};

const ROLLOUT: &[Parameter] = &[
    parameter("scope.labelSelector", "", "", "The endpoints that are screened, as Kubernetes selects pods."),
    parameter(
        "headerSelectors",
        "[]",
        "",
        "Headers with which clients choose: {name, headerName, labelKey, mode}.",
    ),
    parameter(
        "headerSelectors[].mode",
        "strict",
        "",
        "Without a match, strict leaves no endpoint and prefer all.",
    ),
    parameter("revisionGating", "", "", "How one revision is chosen."),
    parameter(
        "revisionGating.mode",
        "sum",
        "",
        "What a revision weighs: sum, its endpoints; max-role, those of the largest role; disabled.",
    ),
    parameter(
        "revisionGating.requireRoles.values",
        "[]",
        "",
        "Roles without which a revision gets no requests.",
    ),
    parameter(
        "revisionGating.revisionLabelKey",
        "disaggregatedset.x-k8s.io/revision",
        "",
        "The label that has the revision.",
    ),
    parameter(
        "revisionGating.roleLabelKey",
        "disaggregatedset.x-k8s.io/role",
        "",
        "The label that has the role.",
    ),
];

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("latency-slo-admitter", &[Admitter],
        "Refuses requests of a priority below 0 with a latency target that no endpoint is predicted to keep, unless one of them is idle.",
        &[parameter("latencyPredictionInfoProducerName", "predicted-latency-producer", "", "The producer of the predictions.")],
        Build::Reading(latency_slo_admitter))
        .when("Requests that may be shed and are worth nothing when they are late."),
    beta("probabilistic-admitter", &[Admitter],
        "Refuses requests of a priority below 0, the more of them the busier the pool is.",
        &[
            parameter("queueDepthThreshold", "5", "requests", "Waiting requests at which an endpoint is full."),
            parameter("kvCacheUtilThreshold", "0.8", "share", "Share of the KV cache at which it is."),
            parameter("power", "5", "", "Power of the mean fullness in the probability."),
            parameter("k", "300", "", "What that is multiplied with."),
        ],
        Build::Reading(probabilistic_admitter))
        .when("Requests of low priority should be refused little by little, before the pool is full."),
    beta("disaggregatedset-rollout-screener", &[Screener, Response],
        "Sends all parts of a request to one revision of a disaggregated set.",
        ROLLOUT, Build::Reading(rollout_screener)).alpha()
        .when("A rollout of prefill and decode pods whose versions must not mix."),
    beta("request-attribute-reporter", &[Response],
        "Tells the gateway numbers that are computed from the tokens of a request.",
        &[
            parameter("attributes", "", "", "What is told: {key, expression, condition}, at least one."),
            parameter("attributes[].key.namespace", "envoy.lb", "", "Namespace of the dynamic metadata."),
            parameter("attributes[].key.name", "", "", "Key in the namespace."),
            parameter("attributes[].expression", "", "", "The number in CEL, over usage; 0 is not told."),
            parameter("attributes[].condition", "none", "", "When it is told, in CEL."),
        ],
        Build::Reading(request_attribute_reporter))
        .when("The gateway bills or limits by what a request cost."),
    beta("agent-identity", &[RequestHeader],
        "Takes the session that an agent names in a header for the flow of its requests.",
        &[parameter("additionalSessionHeaders", "[]", "", "Headers to look at before those of known agents.")],
        Build::Reading(agent_identity)).alpha()
        .when("Fairness between agents that name their session and no flow."),
    beta("destination-endpoint-served-verifier", &[Response],
        "For conformance tests: names in a header of the answer the endpoint that served.",
        &[], Build::Reading(served_verifier))
        .when("Conformance tests."),
];

fn agent_identity(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = AgentIdentityParams::decode(site.parameters)?;
    let plugin = Arc::new(AgentIdentity::new(&params));
    Ok(Built { header_processor: Some(plugin), ..Built::with(&params)? })
}

fn latency_slo_admitter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = LatencySloAdmitterParams::decode(site.parameters)?;
    let plugin = Arc::new(LatencySloAdmitter::new(site.reads(&params.latency_prediction_info_producer_name)));
    Ok(Built { admitter: Some(plugin), ..Built::with(&params)? })
}

fn probabilistic_admitter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ProbabilisticAdmitterParams::decode(site.parameters)?;
    let plugin = Arc::new(ProbabilisticAdmitter::new(params));
    Ok(Built { admitter: Some(plugin), ..Built::with(&params)? })
}

fn request_attribute_reporter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ReporterParams::decode(site.parameters)?;
    let metrics = site.family(ReporterMetrics::register)?;
    let plugin = Arc::new(RequestAttributeReporter::new(&params, site.name, &metrics));
    Ok(Built { pre_request: Some(plugin), ..Built::with(&params)? })
}

fn rollout_screener(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = RolloutParams::decode(site.parameters)?;
    let (built, metrics) = (Built::with(&params)?, site.family(RolloutMetrics::register)?);
    let id = PluginId::new("disaggregatedset-rollout-screener", site.name);
    Ok(Built { screener: Some(Arc::new(RolloutScreener::new(params, &id, &metrics))), ..built })
}

fn served_verifier(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built { pre_request: Some(Arc::new(ServedVerifier::default())), ..Built::bare() })
}
