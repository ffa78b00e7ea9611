//! `prefix-cache-scorer`: the more of a prompt an endpoint has in its prefix cache, the
//! better.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node, Positioned};
use usher_core::endpoints::View;
use usher_plugin::data::PrefixMatch;
use usher_plugin::params::{PREFIX_PRODUCER, checked, named};
use usher_plugin::{
    Build, Built, Context, Key, Kind, Parameter, PluginType, Scorer, Site, beta, later, parameter,
};

#[rustfmt::skip]
const PARAMETERS: &[Parameter] = &[
    parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "The producer that knows what is cached."),
    parameter("matchLengthWeight", "0", "", "How much the length of what is cached counts, 0 to 1, beside its share of the prompt."),
    parameter("matchLengthScaleTokens", "8192", "tokens", "Length that counts in full; above 0 where it counts. What is shorter counts by its square."),
];

/// `prefix-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("prefix-cache-scorer", &[Kind::Scorer],
    "The more of a prompt an endpoint has in its prefix cache, the better: all of it scores 1.",
    PARAMETERS, Build::Reading(build))
    .when("Prompts that begin alike: conversations, agents, one system prompt for many.");

/// `precise-prefix-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static PRECISE: PluginType = later("precise-prefix-cache-scorer", &[Kind::Scorer, Kind::DataProducer]);

/// `multicluster-prefix-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static MULTICLUSTER: PluginType = beta("multicluster-prefix-cache-scorer", &[Kind::Scorer],
    "The more of a prompt a cluster has been sent before, the better: prefix-cache-scorer for endpoints that are clusters.",
    PARAMETERS, Build::Reading(build)).alpha()
    .when("A picker that chooses among clusters.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PrefixCacheScorerParams::decode(site.parameters)?;
    let prefix = site.reads(&params.prefix_match_info_producer_name);
    let scorer = Arc::new(PrefixCacheScorer::new(&params, prefix));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

/// Tokens at which the length of a match counts in full, unless the configuration says.
const DEFAULT_SCALE: i64 = 8192;

/// Parameters of `prefix-cache-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrefixCacheScorerParams {
    /// The producer that knows what is cached. Default `approx-prefix-cache-producer`.
    pub prefix_match_info_producer_name: String,
    /// How much the length of a match counts, 0..=1, beside its share of the prompt.
    /// Default 0.
    pub match_length_weight: f64,
    /// Tokens at which the length of a match counts in full; above 0 where it counts.
    /// Default 8192.
    pub match_length_scale_tokens: i64,
}

impl PrefixCacheScorerParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types, and numbers out of range, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            prefix_match_info_producer_name: Option<String>,
            match_length_weight: Option<Positioned<f64>>,
            match_length_scale_tokens: Option<Positioned<i64>>,
        }
        let written: Written = node.decode()?;
        let in_range = |weight| (0.0..=1.0).contains(&weight);
        let weight = checked("matchLengthWeight", written.match_length_weight, 0.0, in_range)?;
        let scale = match written.match_length_scale_tokens {
            None => DEFAULT_SCALE,
            // Without a weight nothing is divided by it.
            Some(Positioned { value, .. }) if value > 0 || weight == 0.0 => value,
            Some(Positioned { at, value }) => {
                let message =
                    format!("matchLengthScaleTokens can't be {value} where matchLengthWeight is above 0");
                return Err(
                    ConfigError::at(at, message).hint(format!("the default is {DEFAULT_SCALE} tokens"))
                );
            }
        };
        Ok(Self {
            prefix_match_info_producer_name: named(written.prefix_match_info_producer_name, PREFIX_PRODUCER),
            match_length_weight: weight,
            match_length_scale_tokens: scale,
        })
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
