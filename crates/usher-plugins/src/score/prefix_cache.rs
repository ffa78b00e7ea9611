//! `prefix-cache-scorer`: the more of a prompt an endpoint has in its prefix cache, the
//! better.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::View;
use usher_plugin::data::PrefixMatch;
use usher_plugin::params::{PREFIX_PRODUCER, in_range, or_default};
use usher_plugin::{Build, BuildContext, Context, Key, Kind, PluginParts, PluginType, Scorer, beta};

/// `prefix-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("prefix-cache-scorer", &[Kind::Scorer],
    "The more of a prompt an endpoint has in its prefix cache, the better: all of it scores 1.",
    Build::Reading(build)).takes::<PrefixCacheScorerParams>()
    .when("Prompts that begin alike: conversations, agents, one system prompt for many.");

/// `multicluster-prefix-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static MULTICLUSTER: PluginType = beta("multicluster-prefix-cache-scorer", &[Kind::Scorer],
    "The more of a prompt a cluster has been sent before, the better: prefix-cache-scorer for endpoints that are clusters.",
    Build::Reading(build)).takes::<PrefixCacheScorerParams>().alpha()
    .when("A picker that chooses among clusters.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = PrefixCacheScorerParams::decode(cx.parameters)?;
    let prefix = cx.reads(&params.prefix_match_info_producer_name);
    let scorer = Arc::new(PrefixCacheScorer::new(&params, prefix));
    Ok(PluginParts { scorer: Some(scorer), ..PluginParts::with(&params)?.with_summary(params.summary()) })
}

/// Parameters of `prefix-cache-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrefixCacheScorerParams {
    /// The producer that knows what is cached.
    pub prefix_match_info_producer_name: String,
    /// Weight of the length of what is cached, 0 to 1, beside its share of the prompt.
    pub match_length_weight: f64,
    /// Length that counts in full; above 0 where it counts. What is shorter counts by its square.
    #[schemars(extend("x-unit" = "tokens"))]
    pub match_length_scale_tokens: i64,
}

impl Default for PrefixCacheScorerParams {
    fn default() -> Self {
        Self {
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
            match_length_weight: 0.0,
            match_length_scale_tokens: 8192,
        }
    }
}

impl PrefixCacheScorerParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let share =
            "The more of a prompt an endpoint has in its prefix cache, the better: all of it scores 1.";
        if self.match_length_weight == 0.0 {
            return share.to_owned();
        }
        let (percent, full) = (100.0 * self.match_length_weight, self.match_length_scale_tokens);
        format!(
            "{share} {percent} % of the score is the length of the match instead, which is full at {full} tokens."
        )
    }
}

impl PrefixCacheScorerParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and numbers out of range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, _) = (node.decode()?, Self::default());
        let (weight, scale) = (params.match_length_weight, params.match_length_scale_tokens);
        let share = |weight| (0.0..=1.0).contains(&weight);
        in_range(node, "matchLengthWeight", weight, default.match_length_weight, share)?;
        // Without a weight nothing is divided by it.
        if scale <= 0 && weight != 0.0 {
            let key = "matchLengthScaleTokens";
            let message = format!("{key} can't be {scale} where matchLengthWeight is above 0");
            return Err(ConfigError::at(node.position_of(key), message)
                .hint(format!("the default is {} tokens", default.match_length_scale_tokens)));
        }
        or_default(&mut params.prefix_match_info_producer_name, PREFIX_PRODUCER);
        Ok(params)
    }
}

/// Scores w · L + (1 − w) · matched / total in blocks, where w is `matchLengthWeight` and
/// L = min(1, matched tokens / `matchLengthScaleTokens`)². Where nothing is known of the
/// prompt, or it has no blocks, all score 0.
#[derive(Clone, Copy, Debug)]
pub struct PrefixCacheScorer {
    weight: f64,
    scale: f64,
    prefix: Key<PrefixMatch>,
}

impl PrefixCacheScorer {
    /// A scorer by the match under `prefix`.
    pub fn new(params: &PrefixCacheScorerParams, prefix: Key<PrefixMatch>) -> Self {
        // At least 1, so that a scale that doesn't count can't make a score undefined.
        let scale = params.match_length_scale_tokens.max(1) as f64;
        Self { weight: params.match_length_weight, scale, prefix }
    }

    fn length(&self, tokens: f64) -> f64 {
        (tokens / self.scale).min(1.0).powi(2)
    }
}

impl Scorer for PrefixCacheScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let Some(known) = cx.facts.get(self.prefix).filter(|known| known.total > 0) else { return };
        let (total, block) = (f64::from(known.total), f64::from(known.block_size));
        for (score, position) in out.iter_mut().zip(candidates.indices()) {
            let matched = f64::from(known.blocks_at(*position));
            let length = self.weight * self.length(matched * block);
            *score = (length + (1.0 - self.weight) * matched / total) as f32;
        }
    }
}
