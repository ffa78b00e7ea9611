//! `load-aware-scorer`: the shorter the waiting queue, the better, by a fixed scale
//! instead of in comparison with the other candidates.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::View;
use usher_plugin::{Build, BuildContext, Context, Kind, PluginParts, PluginType, Scorer, beta};

use super::readings;

/// `load-aware-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("load-aware-scorer", &[Kind::Scorer],
    "The shorter an endpoint's waiting queue, the better: an empty one scores 0.5, a full one 0.",
    Build::Reading(build)).takes::<LoadAwareParams>()
    .when("Beside affinity scorers: it takes from endpoints with a queue, and makes no difference among those without.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = LoadAwareParams::decode(cx.parameters)?;
    let scorer = Arc::new(LoadAwareScorer::new(&params));
    Ok(PluginParts { scorer: Some(scorer), ..PluginParts::with(&params)?.with_summary(params.summary()) })
}

/// Parameters of `load-aware-scorer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LoadAwareParams {
    /// Waiting requests at which an endpoint scores 0. Below 1 means the default.
    #[schemars(extend("x-unit" = "requests"))]
    pub threshold: i64,
}

impl Default for LoadAwareParams {
    fn default() -> Self {
        Self { threshold: 128 }
    }
}

impl LoadAwareParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let full = self.threshold;
        format!(
            "The shorter an endpoint's waiting queue, the better: an empty one scores 0.5, one of {full} requests or more 0."
        )
    }
}

impl LoadAwareParams {
    /// Reads the parameters. As in llm-d-router, a threshold below 1 means the default.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        Ok(if params.threshold > 0 { params } else { Self::default() })
    }
}

/// Scores 0.5 · (1 − min(waiting, threshold) / threshold): an empty queue is worth half
/// of what a perfect match of another scorer is.
#[derive(Clone, Copy, Debug)]
pub struct LoadAwareScorer {
    threshold: f32,
}

impl LoadAwareScorer {
    /// A scorer with these parameters.
    pub fn new(params: &LoadAwareParams) -> Self {
        Self { threshold: params.threshold as f32 }
    }
}

impl Scorer for LoadAwareScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        readings(cx, candidates, out, |load| (&load.waiting, load.unreported()));
        for score in out {
            *score = 0.5 * (1.0 - score.min(self.threshold) / self.threshold);
        }
    }
}
