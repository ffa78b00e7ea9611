//! `kv-cache-utilization-scorer`: the emptier the KV cache, the better.

use usher_core::endpoints::View;
use usher_plugin::{Context, Scorer};

use super::readings;

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
