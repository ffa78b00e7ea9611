//! `queue-scorer`: the shorter the waiting queue, the better.

use usher_core::endpoints::View;
use usher_plugin::{Context, Scorer};

use super::smallest_first;

/// Scores (max − waiting) / (max − min) over the candidates; all 1 when the
/// queues are equally long.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueScorer;

impl Scorer for QueueScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        smallest_first(cx, candidates, out, |load| (&load.waiting, load.unreported()));
    }
}
