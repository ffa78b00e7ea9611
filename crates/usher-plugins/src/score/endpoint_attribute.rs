//! `endpoint-attribute-scorer`: a number of the endpoints, the lower or the higher the
//! better.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_core::endpoints::{Reading, View};
use usher_plugin::{Build, Built, Context, Kind, PluginType, Scorer, Site, beta, parameter};

/// `endpoint-attribute-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("endpoint-attribute-scorer", &[Kind::Scorer],
    "Scores by a number of the endpoints that the configuration names. Who has not got it, or not lately, scores 0.",
    &[
        parameter("attributeKey", "", "", "The number: an attributeKey of the producer's customMetrics, or WaitingQueueSize, RunningRequestsSize or KVCacheUsagePercent of a core-metrics-extractor."),
        parameter("producer", "core-metrics-extractor", "", "The plugin that keeps the number up to date."),
        parameter("algorithm.type", "", "", "linear_lower_is_better or linear_higher_is_better."),
        parameter("algorithm.normalization.adaptiveRange", "{}", "", "Scores lie between the smallest and the largest number of the candidates; equals score 1. This is the default."),
        parameter("algorithm.normalization.fixedRange.min", "0", "as the number", "Scores lie between this number"),
        parameter("algorithm.normalization.fixedRange.max", "", "as the number", "and this one; what is outside counts as the nearer."),
    ],
    Build::Reading(build)).alpha()
    .when("A number of yours says how good an endpoint is, such as a GPU's use.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = EndpointAttributeScorerParams::decode(site.parameters)?;
    Ok(Built { scorer: Some(by_attribute(site, &params)), ..Built::with(&params)? })
}

pub(super) fn by_attribute(
    site: &mut Site<'_>,
    params: &EndpointAttributeScorerParams,
) -> Arc<EndpointAttributeScorer> {
    let reading = site.reads_attribute(&params.attribute_key, &params.producer);
    Arc::new(EndpointAttributeScorer::new(reading, params))
}

/// Parameters of `endpoint-attribute-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAttributeScorerParams {
    /// The number to score by.
    pub attribute_key: String,
    /// The plugin that keeps it up to date. Default `core-metrics-extractor`.
    pub producer: String,
    /// How a number becomes a score.
    pub algorithm: Linear,
}

/// A score that is linear in the number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Linear {
    /// Which end is good.
    #[serde(rename = "type")]
    pub better: Better,
    /// Which numbers are the ends.
    pub normalization: Normalization,
}

/// Which numbers are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Better {
    /// Small ones.
    #[serde(rename = "linear_lower_is_better")]
    Lower,
    /// Large ones.
    #[serde(rename = "linear_higher_is_better")]
    Higher,
}

/// Between which numbers scores lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Normalization {
    /// The smallest and the largest of the candidates.
    AdaptiveRange {},
    /// These; what is outside counts as the nearer of them.
    FixedRange {
        /// Scores 0 where higher is better, otherwise 1.
        min: f64,
        /// The other end; larger than `min`.
        max: f64,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    attribute_key: Option<Name>,
    producer: Option<String>,
    algorithm: Option<Algorithm>,
}

#[derive(Deserialize)]
struct Algorithm {
    #[serde(rename = "type")]
    better: Option<Better>,
    normalization: Option<Positioned<Ranges>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ranges {
    fixed_range: Option<Positioned<Fixed>>,
    adaptive_range: Option<Adaptive>,
}

#[derive(Deserialize)]
struct Fixed {
    min: Option<f64>,
    max: f64,
}

#[derive(Deserialize)]
struct Adaptive {}

impl EndpointAttributeScorerParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and wrong types, no attribute, no type, a range without numbers
    /// between its ends, and two ranges, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: Written = node.decode()?;
        let missing = |what: &str| ConfigError::at(node.at, format!("'{what}' is missing"));
        let key = written.attribute_key.filter(|key| !key.value.is_empty());
        let attribute_key = key.ok_or_else(|| missing("attributeKey").hint("name the number to score by"))?;
        let (better, ranges) =
            written.algorithm.map_or((None, None), |algorithm| (algorithm.better, algorithm.normalization));
        let better = better.ok_or_else(|| {
            missing("algorithm.type").hint("write linear_lower_is_better or linear_higher_is_better")
        })?;
        let producer = written.producer.filter(|name| !name.is_empty());
        Ok(Self {
            attribute_key: attribute_key.value,
            producer: producer.unwrap_or_else(|| "core-metrics-extractor".to_owned()),
            algorithm: Linear { better, normalization: normalization(ranges)? },
        })
    }
}

fn normalization(written: Option<Positioned<Ranges>>) -> Result<Normalization, ConfigError> {
    let Some(Positioned { at, value: Ranges { fixed_range, adaptive_range } }) = written else {
        return Ok(Normalization::AdaptiveRange {});
    };
    let Some(Positioned { at: range_at, value: Fixed { min, max } }) = fixed_range else {
        return Ok(Normalization::AdaptiveRange {});
    };
    if adaptive_range.is_some() {
        return Err(ConfigError::at(at, "a range can't be both fixed and adaptive").hint("keep one of them"));
    }
    let min = min.unwrap_or(0.0);
    if min.is_finite() && max.is_finite() && min < max {
        return Ok(Normalization::FixedRange { min, max });
    }
    let message = format!("fixedRange can't be from {min} to {max}");
    Err(ConfigError::at(range_at, message).hint("max has to be larger than min"))
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
        let (min, max) = match self.algorithm.normalization {
            Normalization::FixedRange { min, max } => (min, max),
            Normalization::AdaptiveRange {} => self
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
                Better::Higher => share as f32,
                Better::Lower => (1.0 - share) as f32,
            };
        }
    }
}
