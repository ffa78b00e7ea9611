//! `endpoint-attribute-filter`: keeps the endpoints with a number on the right side of a
//! threshold.

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_core::endpoints::{Endpoint, Reading, Snapshot};
use usher_plugin::{Build, Built, Context, Filter, Kind, PluginType, Site, beta, parameter};

use super::{retain, retain_or_all};

/// `endpoint-attribute-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("endpoint-attribute-filter", &[Kind::Filter],
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
    Build::Reading(build)).alpha()
    .when("A number of yours says which endpoints are out of the question, such as a GPU's use.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = EndpointAttributeFilterParams::decode(site.parameters)?;
    let reading = site.reads_attribute(&params.attribute, &params.producer);
    let filter = Arc::new(EndpointAttributeFilter::new(reading, &params));
    Ok(Built { filter: Some(filter), ..Built::with(&params)? })
}

/// Parameters of `endpoint-attribute-filter`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAttributeFilterParams {
    /// The number to filter by.
    pub attribute: String,
    /// The plugin that keeps it up to date. Default `core-metrics-extractor`.
    pub producer: String,
    /// What becomes of an endpoint without the number. Default: it passes.
    pub on_missing: OnMissing,
    /// Keep all endpoints when none would be left. Default false.
    pub fallback_on_empty: bool,
    /// Which endpoints pass.
    pub algorithm: Algorithm,
}

/// What becomes of an endpoint whose number is missing, stale or not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnMissing {
    /// It is kept.
    #[default]
    Pass,
    /// It is removed.
    Fail,
}

/// How the filter decides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Algorithm {
    /// By comparing the number.
    Threshold {
        /// With what, and how.
        threshold: Threshold,
    },
}

/// A comparison; where it is true, the endpoint passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// How the endpoint's number, on the left, is compared.
    pub operator: Operator,
    /// What it is compared with. Finite.
    pub value: f64,
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Whether a number passes.
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

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    attribute: Option<Name>,
    producer: Option<String>,
    on_missing: OnMissing,
    fallback_on_empty: bool,
    algorithm: WrittenAlgorithm,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenAlgorithm {
    #[serde(rename = "type")]
    _only: Option<AlgorithmType>,
    threshold: Option<WrittenThreshold>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum AlgorithmType {
    Threshold,
}

#[derive(Deserialize)]
struct WrittenThreshold {
    operator: Operator,
    value: Positioned<f64>,
}

impl EndpointAttributeFilterParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and wrong types, no attribute, no threshold, or one that is no
    /// finite number, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: Written = node.decode()?;
        let missing = |what: &str| ConfigError::at(node.at, format!("'{what}' is missing"));
        let attribute = written.attribute.filter(|name| !name.value.is_empty());
        let attribute = attribute.ok_or_else(|| missing("attribute").hint("name the number to filter by"))?;
        let threshold = written.algorithm.threshold;
        let WrittenThreshold { operator, value } = threshold.ok_or_else(|| {
            missing("algorithm.threshold").hint("write for example {operator: LessThan, value: 0.9}")
        })?;
        if !value.value.is_finite() {
            return Err(ConfigError::at(value.at, format!("the threshold can't be {}", value.value)));
        }
        let producer = written.producer.filter(|name| !name.is_empty());
        Ok(Self {
            attribute: attribute.value,
            producer: producer.unwrap_or_else(|| "core-metrics-extractor".to_owned()),
            on_missing: written.on_missing,
            fallback_on_empty: written.fallback_on_empty,
            algorithm: Algorithm::Threshold { threshold: Threshold { operator, value: value.value } },
        })
    }
}

/// Keeps the endpoints whose number passes the threshold.
#[derive(Clone, Copy, Debug)]
pub struct EndpointAttributeFilter {
    reading: Reading,
    threshold: Threshold,
    on_missing: OnMissing,
    fallback_on_empty: bool,
}

impl EndpointAttributeFilter {
    /// A filter by this number.
    pub fn new(reading: Reading, params: &EndpointAttributeFilterParams) -> Self {
        let EndpointAttributeFilterParams { on_missing, fallback_on_empty, .. } = *params;
        let Algorithm::Threshold { threshold } = params.algorithm;
        Self { reading, threshold, on_missing, fallback_on_empty }
    }
}

impl Filter for EndpointAttributeFilter {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let passes = |endpoint: &Endpoint| {
            let fresh = endpoint.load().reading(self.reading).fresh(cx.now_ms, cx.max_age);
            match fresh.filter(|number| number.is_finite()) {
                Some(number) => self.threshold.passes(number),
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
