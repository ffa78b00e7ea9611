//! `queue-scorer`: the shorter the waiting queue, the better.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_core::endpoints::View;
use usher_plugin::{Build, BuildContext, Context, Kind, PluginParts, PluginType, Scorer, beta};

use super::smallest_first;

/// `queue-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("queue-scorer", &[Kind::Scorer],
    "The shorter an endpoint's waiting queue, the better: the shortest scores 1, the longest 0.",
    Build::Ignoring(build))
    .when("Always, unless requests hardly ever wait: it keeps them away from where others queue.");

fn build(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { scorer: Some(Arc::new(QueueScorer)), ..PluginParts::bare() })
}

/// Scores (max − waiting) / (max − min) over the candidates; all 1 when the
/// queues are equally long.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueScorer;

impl Scorer for QueueScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        smallest_first(cx, candidates, out, |load| (&load.waiting, load.unreported()));
    }
}
