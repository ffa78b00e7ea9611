//! Flow control: its plugins, and the rules that it comes to.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;

use usher_plugin::Kind;

use crate::config::{ConfigError, EndpointPickerConfig, FlowControl, Name, PriorityBand, Quantity};
use crate::schedule::flow_control::{
    BandRules, Fairness, FlowControlRules, FlowControlSpec, Ordering, StaticUsageLimitParams, UsageLimit,
};

use super::instances::{Instances, START};
use super::resolved::{ResolvedBand, ResolvedFlow, Use};

const DETECTOR: &str = "utilization-detector";
const DETECTOR_KEY: &str = "flowControl.saturationDetector";
const ORDERING: &str = "fcfs-ordering-policy";
const FAIRNESS: &str = "global-strict-fairness-policy";
const USAGE_LIMIT: &str = "static-usage-limit-policy";

/// Adds the policies that llm-d-router always has.
pub(super) fn add_defaults(instances: &mut Instances<'_>) -> Result<(), ConfigError> {
    [ORDERING, FAIRNESS, USAGE_LIMIT].iter().try_for_each(|policy| instances.inject(policy, START))
}

/// Finds the saturation detector; only the default one may stand undeclared.
pub(super) fn add_detector(
    config: &EndpointPickerConfig,
    instances: &mut Instances<'_>,
) -> Result<Name, ConfigError> {
    let default = || Name { at: START, value: DETECTOR.to_owned() };
    let reference = config.saturation_detector.clone().unwrap_or_else(default);
    if reference.value == DETECTOR {
        instances.inject(DETECTOR, reference.at)?;
    }
    Ok(reference)
}

/// Refuses a detector that does not exist.
pub(super) fn check_detector(reference: &Name, instances: &Instances<'_>) -> Result<(), ConfigError> {
    instances.get_or_type(DETECTOR_KEY, reference, [DETECTOR]).map(|_| ())
}

/// The saturation detector.
pub(super) fn detector(
    reference: &Name,
    defaulted: bool,
    instances: &Instances<'_>,
) -> Result<Use, ConfigError> {
    let instance = instances.get_kind(DETECTOR_KEY, reference, Kind::SaturationDetector)?;
    Ok(Use::of(&instance.name, defaulted))
}

/// Flow control as the configuration asks for it; `None` without its gate. A section
/// that refers to nothing is then not looked at, as in llm-d-router.
pub(super) fn flow_control(
    config: &EndpointPickerConfig,
    detector: &Name,
    instances: &Instances<'_>,
    notes: &mut Vec<String>,
) -> Result<Option<(FlowControlSpec, ResolvedFlow)>, ConfigError> {
    if !config.feature_gates.flow_control {
        if config.flow_control.as_ref().is_some_and(|flow| sets_anything(&flow.value)) {
            notes.push("flowControl has no effect without the feature gate flowControl".to_owned());
        }
        return Ok(None);
    }
    let nothing = FlowControl::default();
    let flow = config.flow_control.as_ref().map_or(&nothing, |flow| &flow.value);
    check_priorities(flow)?;
    let limit = |quantity: Option<Quantity>| quantity.map(|quantity| quantity.0).filter(|limit| *limit > 0);
    let (max_requests, max_bytes) = (limit(flow.max_requests), limit(flow.max_bytes));
    let band = |written: Option<&PriorityBand>| band(written, instances);
    let default = band(flow.default_priority_band.as_ref())?;
    let negative = match &flow.default_negative_priority_band {
        Some(written) => band(Some(written))?,
        None => default.clone(),
    };
    let mut listed = flow
        .priority_bands
        .iter()
        .map(|written| Ok((written.value.priority, band(Some(&written.value))?)))
        .collect::<Result<Vec<_>, ConfigError>>()?;
    if listed.iter().all(|(priority, _)| *priority != 0) {
        listed.push((0, default.clone()));
    }
    listed.sort_by_key(|(priority, _)| Reverse(*priority));
    for (priority, (rules, _)) in &listed {
        let is_moot = |most: u64, all: Option<u64>| all.is_some_and(|all| most > all);
        let writes = |of: fn(&PriorityBand) -> Option<Quantity>| {
            let of_band = flow.priority_bands.iter().find(|band| band.value.priority == *priority);
            of_band.is_some_and(|band| limit(of(&band.value)).is_some())
        };
        for (key, is_moot) in [
            ("maxRequests", writes(|band| band.max_requests) && is_moot(rules.max_requests, max_requests)),
            ("maxBytes", writes(|band| band.max_bytes) && is_moot(rules.max_bytes, max_bytes)),
        ] {
            if is_moot {
                notes.push(format!(
                    "flowControl: {key} of priority {priority} is never reached, as that of all priorities is smaller"
                ));
            }
        }
    }
    let policy = reference(flow.usage_limit_policy_plugin_ref.as_ref(), USAGE_LIMIT);
    let instance = instances.get_kind("usageLimitPolicyPluginRef", &policy.0, Kind::UsageLimitPolicy)?;
    let usage_limit = instance.parts.extra::<UsageLimit>().cloned().unwrap_or_default();
    let of_pool = instances.get_kind(DETECTOR_KEY, detector, Kind::SaturationDetector)?;
    let detector = of_pool.parts.detector.clone();
    let detector = detector.ok_or_else(|| ConfigError::at(START, "there is no saturation detector"))?;
    let longest = |ttl: Option<Duration>| ttl.filter(|ttl| !ttl.is_zero());
    let ttl = longest(Some(flow.default_request_ttl.unwrap_or(FlowControlRules::DEFAULT_TTL)));
    let no_endpoint_ttl = match flow.no_endpoint_request_ttl {
        Some(written) => longest(Some(written)),
        None => ttl,
    };
    for (key, ttl) in [("defaultRequestTTL", ttl), ("noEndpointRequestTTL", no_endpoint_ttl)] {
        if ttl.is_none() {
            notes.push(format!("flowControl: {key} is 0: requests wait until their clients give up"));
        }
    }
    if usage_limit == UsageLimit::Static(StaticUsageLimitParams { threshold: 0.0 }) {
        notes.push(format!(
            "flowControl: '{}' has the threshold 0: no request that may wait is ever let through",
            instance.name
        ));
    }
    let mut bands: Vec<ResolvedBand> = listed
        .iter()
        .map(|(priority, (rules, policies))| ResolvedBand::of(priority.to_string(), rules, policies))
        .collect();
    bands.push(ResolvedBand::of("others".to_owned(), &default.0, &default.1));
    bands.push(ResolvedBand::of("others below 0".to_owned(), &negative.0, &negative.1));
    let resolved = ResolvedFlow {
        max_requests,
        max_bytes,
        default_request_ttl: ttl.map(|ttl| format!("{ttl:?}")),
        no_endpoint_request_ttl: no_endpoint_ttl.map(|ttl| format!("{ttl:?}")),
        bands,
        usage_limit_policy: Use::of(&instance.name, policy.1),
        enable_eviction: flow.enable_eviction,
    };
    let rules = FlowControlRules {
        max_requests,
        max_bytes,
        ttl,
        no_endpoint_ttl,
        bands: listed.into_iter().map(|(priority, (rules, _))| (priority, rules)).collect(),
        default_band: default.0,
        default_negative_band: negative.0,
        usage_limit,
        evicts: flow.enable_eviction,
    };
    Ok(Some((FlowControlSpec { rules, detector, detector_name: of_pool.name.clone() }, resolved)))
}

/// Fairness and ordering policy of a band.
type Policies = (Use, Use);

/// The rules of a band; of one that nothing says anything about, the defaults.
fn band(
    written: Option<&PriorityBand>,
    instances: &Instances<'_>,
) -> Result<(BandRules, Policies), ConfigError> {
    let default = BandRules::default();
    let limit = |quantity: Option<Quantity>, default: u64| {
        quantity.map(|quantity| quantity.0).filter(|limit| *limit > 0).unwrap_or(default)
    };
    let (fairness, is_default) =
        reference(written.and_then(|band| band.fairness_policy_ref.as_ref()), FAIRNESS);
    let fairness = instances.get_kind("fairnessPolicyRef", &fairness, Kind::FairnessPolicy)?;
    let of_fairness = Use::of(&fairness.name, is_default);
    let (ordering, is_default) =
        reference(written.and_then(|band| band.ordering_policy_ref.as_ref()), ORDERING);
    let ordering = instances.get_kind("orderingPolicyRef", &ordering, Kind::OrderingPolicy)?;
    let of_ordering = Use::of(&ordering.name, is_default);
    let rules = BandRules {
        max_requests: limit(written.and_then(|band| band.max_requests), default.max_requests),
        max_bytes: limit(written.and_then(|band| band.max_bytes), default.max_bytes),
        fairness: fairness.parts.extra::<Fairness>().cloned().unwrap_or(default.fairness),
        ordering: ordering.parts.extra::<Ordering>().copied().unwrap_or(default.ordering),
    };
    Ok((rules, (of_fairness, of_ordering)))
}

/// Name of the plugin that a key refers to, and whether that is the default.
fn reference(written: Option<&Name>, default: &str) -> (Name, bool) {
    match written.filter(|name| !name.value.is_empty()) {
        Some(name) => (name.clone(), false),
        None => (Name { at: START, value: default.to_owned() }, true),
    }
}

fn check_priorities(flow: &FlowControl) -> Result<(), ConfigError> {
    let mut priorities = HashSet::new();
    match flow.priority_bands.iter().find(|band| !priorities.insert(band.value.priority)) {
        Some(band) => {
            Err(ConfigError::at(band.at, format!("priority {} has two bands", band.value.priority))
                .hint("keep one of them"))
        }
        None => Ok(()),
    }
}

fn bands(flow: &FlowControl) -> impl Iterator<Item = &PriorityBand> {
    let defaults = [&flow.default_priority_band, &flow.default_negative_priority_band];
    defaults.into_iter().flatten().chain(flow.priority_bands.iter().map(|band| &band.value))
}

/// Returns `true` if a key is set that counts only with the gate: all but the detector and eviction.
fn sets_anything(flow: &FlowControl) -> bool {
    flow.max_bytes.is_some()
        || flow.max_requests.is_some()
        || flow.default_request_ttl.is_some()
        || flow.no_endpoint_request_ttl.is_some()
        || flow.usage_limit_policy_plugin_ref.is_some()
        || bands(flow).next().is_some()
}
