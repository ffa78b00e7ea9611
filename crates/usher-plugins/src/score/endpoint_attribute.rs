//! `endpoint-attribute-scorer`: a number of the endpoints, the lower or the higher the
//! better.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Reading, View};
use usher_plugin::params::or_default;
use usher_plugin::{Build, BuildContext, Context, Kind, PluginParts, PluginType, Scorer, beta};

/// `endpoint-attribute-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("endpoint-attribute-scorer", &[Kind::Scorer],
    "Scores by an endpoint attribute that the configuration names. Endpoints without a recent value score 0.",
    Build::Reading(build)).takes::<EndpointAttributeScorerParams>().alpha()
    .when("A number of yours says how good an endpoint is, such as a GPU's use.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = EndpointAttributeScorerParams::decode(cx.parameters)?;
    Ok(PluginParts { scorer: Some(by_attribute(cx, &params)), ..PluginParts::with(&params)? })
}

pub(super) fn by_attribute(
    cx: &mut BuildContext<'_>,
    params: &EndpointAttributeScorerParams,
) -> Arc<EndpointAttributeScorer> {
    let reading = cx.reads_attribute(&params.attribute_key, &params.producer);
    Arc::new(EndpointAttributeScorer::new(reading, params))
}

/// Parameters of `endpoint-attribute-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAttributeScorerParams {
    /// The number: an attributeKey of the producer's customMetrics, or WaitingQueueSize,
    /// RunningRequestsSize or KVCacheUsagePercent of a core-metrics-extractor.
    #[schemars(extend("x-required" = true))]
    pub attribute_key: String,
    /// The plugin that keeps the number up to date.
    pub producer: String,
    /// Score of a number.
    pub algorithm: Linear,
}

/// A score that is linear in the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Linear {
    /// linear_lower_is_better or linear_higher_is_better.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true))]
    pub better: Option<Better>,
    /// Numbers at the ends.
    pub normalization: Normalization,
}

/// Direction of good numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Better {
    /// Small ones.
    #[serde(rename = "linear_lower_is_better")]
    Lower,
    /// Large ones.
    #[serde(rename = "linear_higher_is_better")]
    Higher,
}

/// Between which numbers scores lie: one of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Normalization {
    /// Numbers that are the ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_range: Option<FixedRange>,
    /// Scores lie between the smallest and the largest number of the candidates; equals score 1. This
    /// is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "{}"))]
    pub adaptive_range: Option<AdaptiveRange>,
}

/// Numbers that scores lie between.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FixedRange {
    /// Scores lie between this number
    #[serde(default)]
    #[schemars(extend("x-unit" = "as the number"))]
    pub min: f64,
    /// and this one; what is outside counts as the nearer.
    #[schemars(extend("x-unit" = "as the number"))]
    pub max: f64,
}

/// The smallest and the largest number of the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdaptiveRange {}

const PRODUCER: &str = "core-metrics-extractor";

impl Default for EndpointAttributeScorerParams {
    fn default() -> Self {
        let (attribute_key, producer) = (String::new(), PRODUCER.to_owned());
        Self { attribute_key, producer, algorithm: Linear::default() }
    }
}

impl EndpointAttributeScorerParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types, no attribute, no type, a range
    /// without numbers between its ends, and two ranges.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        let missing = |what: &str| ConfigError::at(node.at, format!("'{what}' is missing"));
        if params.attribute_key.is_empty() {
            return Err(missing("attributeKey").hint("name the number to score by"));
        }
        if params.algorithm.better.is_none() {
            return Err(
                missing("algorithm.type").hint("write linear_lower_is_better or linear_higher_is_better")
            );
        }
        or_default(&mut params.producer, PRODUCER);
        params.algorithm.normalization.check(node)?;
        Ok(params)
    }
}

impl Normalization {
    /// Checks what the parameters say, and makes the default explicit.
    fn check(&mut self, parameters: &Node) -> Result<(), ConfigError> {
        let Some(FixedRange { min, max }) = self.fixed_range else {
            self.adaptive_range = Some(AdaptiveRange {});
            return Ok(());
        };
        if self.adaptive_range.is_some() {
            let at = parameters.position_of("algorithm.normalization");
            let message = "a range can't be both fixed and adaptive";
            return Err(ConfigError::at(at, message).hint("keep one of them"));
        }
        if min.is_finite() && max.is_finite() && min < max {
            return Ok(());
        }
        let at = parameters.position_of("algorithm.normalization.fixedRange");
        let message = format!("fixedRange can't be from {min} to {max}");
        Err(ConfigError::at(at, message).hint("max has to be larger than min"))
    }
}

/// Scores (v − min) / (max − min), within 0..=1, or 1 minus that where lower is better.
/// With the range of the candidates, all that have the number score 1 when it is the same
/// everywhere. A candidate whose number is missing, stale or not finite scores 0.
#[derive(Clone, Copy, Debug)]
pub struct EndpointAttributeScorer {
    reading: Reading,
    algorithm: Linear,
}

impl EndpointAttributeScorer {
    /// A scorer by this number.
    pub fn new(reading: Reading, params: &EndpointAttributeScorerParams) -> Self {
        Self { reading, algorithm: params.algorithm }
    }

    fn values<'a>(
        &self,
        cx: &Context<'a>,
        candidates: View<'a>,
    ) -> impl Iterator<Item = Option<f64>> + use<'a> {
        let (reading, now_ms, max_age) = (self.reading, cx.now_ms, cx.max_age);
        let fresh = move |load: &usher_core::endpoints::Load| load.reading(reading).fresh(now_ms, max_age);
        candidates.iter().map(move |endpoint| fresh(endpoint.load()).filter(|value| value.is_finite()))
    }
}

impl Scorer for EndpointAttributeScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let (min, max) = match self.algorithm.normalization.fixed_range {
            Some(FixedRange { min, max }) => (min, max),
            None => self
                .values(cx, candidates)
                .flatten()
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| {
                    (min.min(value), max.max(value))
                }),
        };
        // Of halves, so that no difference is too large.
        let span = max / 2.0 - min / 2.0;
        for (score, value) in out.iter_mut().zip(self.values(cx, candidates)) {
            let Some(value) = value else { continue };
            let share = ((value / 2.0 - min / 2.0) / span).clamp(0.0, 1.0);
            *score = match self.algorithm.better {
                _ if span <= 0.0 => 1.0,
                Some(Better::Higher) => share as f32,
                Some(Better::Lower) | None => (1.0 - share) as f32,
            };
        }
    }
}
