//! The plugins of flow control: known, checked, and without effect in this version.

use std::collections::HashSet;

use crate::config::{ConfigError, EndpointPickerConfig, FlowControl, Name, Positioned, PriorityBand};

use super::instances::Instances;
use super::profiles::START;
use super::resolved::Use;
use super::types::Kind;

const DETECTOR: &str = "utilization-detector";
const DETECTOR_KEY: &str = "flowControl.saturationDetector";
const POLICIES: [&str; 3] =
    ["fcfs-ordering-policy", "global-strict-fairness-policy", "static-usage-limit-policy"];

/// Adds the policies that the peer always has.
pub(super) fn add_defaults(instances: &mut Instances<'_>) -> Result<(), ConfigError> {
    POLICIES.iter().try_for_each(|policy| instances.inject(policy, START))
}

/// Says which plugin is the saturation detector; only the default one may stand undeclared.
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

/// Checks what the flow control section refers to.
pub(super) fn check(
    config: &EndpointPickerConfig,
    instances: &Instances<'_>,
    notes: &mut Vec<String>,
) -> Result<(), ConfigError> {
    if !config.feature_gates.flow_control {
        if config.flow_control.as_ref().is_some_and(|flow| sets_anything(&flow.value)) {
            notes.push("flowControl has no effect without the feature gate flowControl".to_owned());
        }
        return Ok(());
    }
    notes.push("flow control is not in this version: requests are not queued".to_owned());
    let Some(Positioned { value: flow, .. }) = &config.flow_control else { return Ok(()) };
    check_priorities(flow)?;
    for band in bands(flow) {
        for (key, reference, kind) in [
            ("fairnessPolicyRef", &band.fairness_policy_ref, Kind::FairnessPolicy),
            ("orderingPolicyRef", &band.ordering_policy_ref, Kind::OrderingPolicy),
        ] {
            check_reference(key, reference.as_ref(), kind, instances)?;
        }
    }
    let policy = flow.usage_limit_policy_plugin_ref.as_ref();
    check_reference("usageLimitPolicyPluginRef", policy, Kind::UsageLimitPolicy, instances)
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

fn check_reference(
    key: &str,
    reference: Option<&Name>,
    kind: Kind,
    instances: &Instances<'_>,
) -> Result<(), ConfigError> {
    match reference.filter(|reference| !reference.value.is_empty()) {
        Some(reference) => instances.get_kind(key, reference, kind).map(|_| ()),
        None => Ok(()),
    }
}

fn bands(flow: &FlowControl) -> impl Iterator<Item = &PriorityBand> {
    let defaults = [&flow.default_priority_band, &flow.default_negative_priority_band];
    defaults.into_iter().flatten().chain(flow.priority_bands.iter().map(|band| &band.value))
}

/// Whether a key is set that counts only with the gate: all but the detector and eviction.
fn sets_anything(flow: &FlowControl) -> bool {
    flow.max_bytes.is_some()
        || flow.max_requests.is_some()
        || flow.default_request_ttl.is_some()
        || flow.no_endpoint_request_ttl.is_some()
        || flow.usage_limit_policy_plugin_ref.is_some()
        || bands(flow).next().is_some()
}
