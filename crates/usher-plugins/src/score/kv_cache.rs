//! `kv-cache-utilization-scorer`: the emptier the KV cache, the better.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_core::endpoints::View;
use usher_plugin::{Build, BuildContext, Context, Kind, PluginParts, PluginType, Scorer, beta};

use super::readings;

/// `kv-cache-utilization-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("kv-cache-utilization-scorer", &[Kind::Scorer],
    "The emptier an endpoint's KV cache, the better: 1 minus the share in use.",
    Build::Ignoring(build))
    .when("Long prompts or long responses: an endpoint with a full cache preempts or makes requests wait.");

fn build(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { scorer: Some(Arc::new(KvCacheUtilizationScorer)), ..PluginParts::bare() })
}

/// Scores 1 − the share of the KV cache in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct KvCacheUtilizationScorer;

impl Scorer for KvCacheUtilizationScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        readings(cx, candidates, out, |load| (&load.kv_usage, 0));
        for score in out {
            *score = 1.0 - *score;
        }
    }
}
