//! `context-length-aware`: prompts go to the endpoints whose label says that they are for
//! prompts of that length. A scorer, and a filter where that is configured.

use std::sync::Arc;

use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Snapshot, View};
use usher_plugin::data::PromptTokens;
use usher_plugin::params::or_default;
use usher_plugin::{
    Build, BuildContext, Context, Filter, Key, Kind, PerSnapshot, PluginParts, PluginType, Scorer, beta,
};

/// `context-length-aware` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("context-length-aware", &[Kind::Filter, Kind::Scorer],
    "Sends prompts to the endpoints whose label says that they are for prompts of that length.",
    Build::Reading(build)).takes::<ContextLengthParams>()
    .when("Pools in which some endpoints are set up for long prompts.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = ContextLengthParams::decode(cx.parameters)?;
    let plugin = Arc::new(ContextLengthAware::new(&params, cx.reads("token-producer")));
    let filter = params.enable_filtering.then(|| Arc::clone(&plugin) as _);
    Ok(PluginParts {
        filter,
        scorer: Some(plugin),
        ..PluginParts::with(&params)?.with_summary(params.summary())
    })
}

/// Parameters of `context-length-aware`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContextLengthParams {
    /// The label; its value is MIN-MAX in tokens.
    pub label: String,
    /// Remove endpoints that are for other lengths, too.
    pub enable_filtering: bool,
}

const DEFAULT_LABEL: &str = "llm-d.ai/context-length-range";

impl Default for ContextLengthParams {
    fn default() -> Self {
        Self { label: DEFAULT_LABEL.to_owned(), enable_filtering: false }
    }
}

impl ContextLengthParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let label = &self.label;
        let others = if self.enable_filtering { "Others are left out." } else { "Others score lower." };
        format!(
            "Sends prompts to the endpoints whose label {label} says that they are for prompts of that length. {others}"
        )
    }
}

impl ContextLengthParams {
    /// Reads the parameters. An empty label means the default.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        or_default(&mut params.label, DEFAULT_LABEL);
        Ok(params)
    }
}

/// Scores in 0.3..=1 where the prompt's length is in the range of the label, the narrower
/// the range and the more of it is left the better; below 0.3 where it is outside, the
/// farther the less; 0.5 without the label, and 0 with one that is no range. As a filter
/// it keeps endpoints whose range holds the length and those without a label.
///
/// Without a parsed prompt its length is unknown: all score 0.5, and all are kept.
#[derive(Debug)]
pub struct ContextLengthAware {
    label: String,
    tokens: Key<PromptTokens>,
    /// Ranges in the labels, by position in the snapshot.
    ranges: PerSnapshot<Box<[Range]>>,
}

impl ContextLengthAware {
    /// A scorer and filter by the lengths under `tokens`.
    pub fn new(params: &ContextLengthParams, tokens: Key<PromptTokens>) -> Self {
        Self { label: params.label.clone(), tokens, ranges: PerSnapshot::new() }
    }

    fn length(&self, cx: &Context<'_>) -> Option<u64> {
        cx.facts.get(self.tokens).map(|tokens| tokens.count)
    }

    fn with_ranges(&self, snapshot: &Snapshot, read: impl FnOnce(&[Range])) {
        let range = |label: Option<&str>| label.map_or(Range::None, Range::of);
        self.ranges.read(
            snapshot,
            |endpoints| endpoints.iter().map(|endpoint| range(endpoint.label(&self.label))).collect(),
            |ranges| read(ranges),
        );
    }
}

impl Scorer for ContextLengthAware {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let Some(length) = self.length(cx) else { return out.fill(UNKNOWN as f32) };
        self.with_ranges(candidates.snapshot(), |ranges| {
            for (score, position) in out.iter_mut().zip(candidates.indices()) {
                let range = ranges.get(*position as usize).copied().unwrap_or(Range::None);
                *score = range.score(length) as f32;
            }
        });
    }
}

impl Filter for ContextLengthAware {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let Some(length) = self.length(cx) else { return };
        self.with_ranges(snapshot, |ranges| {
            kept.retain(|position| ranges.get(*position as usize).is_some_and(|range| range.takes(length)));
        });
    }
}

/// The score of an endpoint of which nothing is known.
const UNKNOWN: f64 = 0.5;
/// The least score of a prompt within the range, and the most of one outside.
const BORDER: f64 = 0.3;

/// Range in an endpoint's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    /// Label missing.
    None,
    /// Label that is not a range.
    Broken,
    /// From the first to the second number of tokens, both included.
    Tokens(u64, u64),
}

impl Range {
    fn of(label: &str) -> Self {
        let numbers = label.split_once('-').and_then(|(min, max)| {
            let number = |text: &str| text.trim().parse::<u64>().ok();
            Some((number(min)?, number(max)?))
        });
        match numbers {
            Some((min, max)) if min <= max => Self::Tokens(min, max),
            _ => Self::Broken,
        }
    }

    fn takes(self, length: u64) -> bool {
        match self {
            Self::None => true,
            Self::Broken => false,
            Self::Tokens(min, max) => (min..=max).contains(&length),
        }
    }

    fn score(self, length: u64) -> f64 {
        let (min, max) = match self {
            Self::None => return UNKNOWN,
            Self::Broken => return 0.0,
            Self::Tokens(min, max) => (min, max),
        };
        if !(min..=max).contains(&length) {
            let distance = if length < min { min - length } else { length - max };
            return BORDER / (1.0 + distance as f64 / 1000.0);
        }
        if min == max {
            return 1.0;
        }
        let (width, left) = ((max - min) as f64, (max - length) as f64);
        BORDER + 0.7 * (0.7 / (1.0 + width / 10_000.0) + 0.3 * left / width)
    }
}
