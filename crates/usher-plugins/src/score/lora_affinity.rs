//! `lora-affinity-scorer`: endpoints that have the model's LoRA adapter first, then those
//! with room for it.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_core::endpoints::{Adapters, View};
use usher_plugin::{Build, BuildContext, Context, Kind, PluginParts, PluginType, Scorer, beta};

/// `lora-affinity-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("lora-affinity-scorer", &[Kind::Scorer],
    "Endpoints that have the model's LoRA adapter score 1, with room for it 0.8, waiting for it 0.6, others 0.",
    Build::Ignoring(build))
    .when("LoRA adapters, more of them than an endpoint holds at once.");

fn build(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { scorer: Some(Arc::new(LoraAffinityScorer)), ..PluginParts::bare() })
}

/// Scores 1 where the adapter is in use, 0.8 where there is room for another, 0.6 where
/// requests wait for it, else 0. An endpoint whose metrics are missing or stale scores as
/// the worst of the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoraAffinityScorer;

impl Scorer for LoraAffinityScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let model = cx.request.target_model.as_str();
        let mut worst = f32::INFINITY;
        for (score, endpoint) in out.iter_mut().zip(candidates.iter()) {
            let load = endpoint.load();
            let adapters = load.adapters.load();
            *score = match adapters.as_deref() {
                // A server without adapters reports none, and is no worse than one without this one.
                None if load.is_fresh(cx.now_ms, cx.max_age) => 0.0,
                Some(adapters) if load.adapters_read.fresh(cx.now_ms, cx.max_age).is_some() => {
                    affinity(model, adapters)
                }
                _ => f32::NAN,
            };
            worst = worst.min(*score);
        }
        let worst = if worst.is_finite() { worst } else { 0.0 };
        for score in out.iter_mut().filter(|score| score.is_nan()) {
            *score = worst;
        }
    }
}

fn affinity(model: &str, adapters: &Adapters) -> f32 {
    let is_in = |list: &[String]| list.iter().any(|adapter| adapter == model);
    let loaded = adapters.running.len() + adapters.waiting.len();
    if is_in(&adapters.running) {
        1.0
    } else if loaded < adapters.max as usize {
        0.8
    } else if is_in(&adapters.waiting) {
        0.6
    } else {
        0.0
    }
}
