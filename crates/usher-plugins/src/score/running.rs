//! `running-requests-size-scorer`: the fewer requests a model server runs, the better.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_core::endpoints::View;
use usher_plugin::{Build, BuildContext, Context, Kind, PluginParts, PluginType, Scorer, beta};

use super::smallest_first;

/// `running-requests-size-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("running-requests-size-scorer", &[Kind::Scorer],
    "The fewer requests an endpoint runs, the better: the fewest score 1, the most 0.",
    Build::Ignoring(build))
    .when("Long responses: what runs, not only what waits, says how busy an endpoint is.");

fn build(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { scorer: Some(Arc::new(RunningRequestsScorer)), ..PluginParts::bare() })
}

/// Scores (max − running) / (max − min) over the candidates; all 1 when all run
/// equally many.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningRequestsScorer;

impl Scorer for RunningRequestsScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        smallest_first(cx, candidates, out, |load| (&load.running, load.unreported()));
    }
}
