//! `kv-cache-utilization-scorer`: the emptier the KV cache, the better.

use super::readings;
use crate::endpoints::View;
use crate::schedule::{Context, Scorer};

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
