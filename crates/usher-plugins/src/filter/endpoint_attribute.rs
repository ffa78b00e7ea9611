//! `endpoint-attribute-filter`: keeps the endpoints with a number on the right side of a
//! threshold.

use std::sync::Arc;

use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Endpoint, Reading, Snapshot};
use usher_plugin::params::or_default;
use usher_plugin::{Build, BuildContext, Context, Filter, Kind, PluginParts, PluginType, beta};

use super::{retain, retain_or_all};

/// `endpoint-attribute-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("endpoint-attribute-filter", &[Kind::Filter],
    "Keeps the endpoints with a number on the right side of a threshold.",
    Build::Reading(build)).takes::<EndpointAttributeFilterParams>().alpha()
    .when("A number of yours says which endpoints are out of the question, such as a GPU's use.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = EndpointAttributeFilterParams::decode(cx.parameters)?;
    let reading = cx.reads_attribute(&params.attribute, &params.producer);
    let filter = Arc::new(EndpointAttributeFilter::new(reading, &params));
    Ok(PluginParts { filter: Some(filter), ..PluginParts::with(&params)? })
}

/// Parameters of `endpoint-attribute-filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAttributeFilterParams {
    /// The number: an attributeKey of the producer's customMetrics, or WaitingQueueSize,
    /// RunningRequestsSize or KVCacheUsagePercent of a core-metrics-extractor.
    #[schemars(extend("x-required" = true))]
    pub attribute: String,
    /// The plugin that keeps the number up to date.
    pub producer: String,
    /// Pass or Fail: what becomes of an endpoint that has not got the number, or not lately.
    pub on_missing: OnMissing,
    /// Keep all endpoints when none would be left.
    pub fallback_on_empty: bool,
    /// Endpoints that pass.
    pub algorithm: Algorithm,
}

/// Treatment of an endpoint whose number is missing, stale or not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnMissing {
    /// The endpoint is kept.
    #[default]
    Pass,
    /// The endpoint is removed.
    Fail,
}

/// Rule by which the filter decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Algorithm {
    /// Only threshold.
    #[serde(rename = "type")]
    pub kind: AlgorithmType,
    /// A comparison; where it is true, the endpoint passes. Has to be there.
    pub threshold: Option<Threshold>,
}

/// Ways to decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AlgorithmType {
    /// By comparing the number.
    #[default]
    Threshold,
}

/// A comparison; where it is true, the endpoint passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Threshold {
    /// LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, Equal or NotEqual: how the
    /// endpoint's number compares where it passes.
    pub operator: Operator,
    /// Threshold with which the endpoint's number is compared.
    ///
    /// Finite.
    #[schemars(extend("x-unit" = "as the number"))]
    pub value: f64,
}

/// Comparison of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Operator {
    LessThan,
    LessThanOrEqual,
    GreaterThan,
    GreaterThanOrEqual,
    Equal,
    NotEqual,
}

impl Threshold {
    /// Returns `true` if a number passes.
    pub fn passes(&self, number: f64) -> bool {
        match self.operator {
            Operator::LessThan => number < self.value,
            Operator::LessThanOrEqual => number <= self.value,
            Operator::GreaterThan => number > self.value,
            Operator::GreaterThanOrEqual => number >= self.value,
            Operator::Equal => number == self.value,
            Operator::NotEqual => number != self.value,
        }
    }
}

const PRODUCER: &str = "core-metrics-extractor";

impl Default for EndpointAttributeFilterParams {
    fn default() -> Self {
        Self {
            attribute: String::new(),
            producer: PRODUCER.to_owned(),
            on_missing: OnMissing::Pass,
            fallback_on_empty: false,
            algorithm: Algorithm::default(),
        }
    }
}

impl EndpointAttributeFilterParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types, no attribute, no threshold, or
    /// one that is no finite number.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        let missing = |what: &str| ConfigError::at(node.at, format!("'{what}' is missing"));
        if params.attribute.is_empty() {
            return Err(missing("attribute").hint("name the number to filter by"));
        }
        let Some(Threshold { value, .. }) = params.algorithm.threshold else {
            return Err(
                missing("algorithm.threshold").hint("write for example {operator: LessThan, value: 0.9}")
            );
        };
        if !value.is_finite() {
            let at = node.position_of("algorithm.threshold.value");
            return Err(ConfigError::at(at, format!("the threshold can't be {value}")));
        }
        or_default(&mut params.producer, PRODUCER);
        Ok(params)
    }
}

/// Keeps the endpoints whose number passes the threshold.
#[derive(Clone, Copy, Debug)]
pub struct EndpointAttributeFilter {
    reading: Reading,
    threshold: Option<Threshold>,
    on_missing: OnMissing,
    fallback_on_empty: bool,
}

impl EndpointAttributeFilter {
    /// A filter by this number.
    pub fn new(reading: Reading, params: &EndpointAttributeFilterParams) -> Self {
        let EndpointAttributeFilterParams { on_missing, fallback_on_empty, .. } = *params;
        Self { reading, threshold: params.algorithm.threshold, on_missing, fallback_on_empty }
    }
}

impl Filter for EndpointAttributeFilter {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let passes = |endpoint: &Endpoint| {
            let fresh = endpoint.load().reading(self.reading).fresh(cx.now_ms, cx.max_age);
            match fresh.filter(|number| number.is_finite()) {
                Some(number) => self.threshold.is_none_or(|threshold| threshold.passes(number)),
                None => self.on_missing == OnMissing::Pass,
            }
        };
        if self.fallback_on_empty {
            retain_or_all(snapshot, kept, passes);
        } else {
            retain(snapshot, kept, passes);
        }
    }
}
