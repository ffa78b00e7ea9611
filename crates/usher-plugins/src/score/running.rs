//! `running-requests-size-scorer`: the fewer requests a model server runs, the better.

use usher_core::endpoints::View;
use usher_plugin::{Context, Scorer};

use super::smallest_first;

/// Scores (max − running) / (max − min) over the candidates; all 1 when all run
/// equally many.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningRequestsScorer;

impl Scorer for RunningRequestsScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        smallest_first(cx, candidates, out, |load| (&load.running, load.unreported()));
    }
}
