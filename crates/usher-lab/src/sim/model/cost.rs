//! Duration of a step, and capacity of a full engine, by its model.

use std::time::Duration;

use super::linear;
use super::models::EngineModel;
use super::work::{Mean, Room, Step};
use crate::sim::config::EngineConfig;

/// Longest step, so that times fit their type.
const LONGEST_STEP: f64 = 365.0 * 24.0 * 3600.0;

impl EngineConfig {
    /// Lets every step take `times` as long; above 0.
    pub fn slow_down(&mut self, times: f64) {
        if self.model == EngineModel::Linear {
            self.prefill_tokens_per_second /= times;
            let step = Duration::try_from_secs_f64(self.decode_step.as_secs_f64() * times);
            self.decode_step = step.unwrap_or(Duration::MAX);
        }
        self.model.seconds_mut().into_iter().for_each(|seconds| *seconds *= times);
    }

    /// Seconds that a full engine takes for a request of mean lengths: of
    /// `context_tokens` of prompt it computes `computed_prompt_tokens`, the others are
    /// cached; then it generates `output_tokens`. Within 5 % while lengths vary little
    /// and requests are admitted without preemptions.
    pub fn work(&self, computed_prompt_tokens: f64, context_tokens: f64, output_tokens: f64) -> f64 {
        let mean = Mean {
            computed: computed_prompt_tokens.clamp(0.0, context_tokens.max(0.0)),
            prompt: context_tokens,
            output: output_tokens,
        };
        let room = self.room();
        match &self.model {
            EngineModel::Linear => linear::work(self, room, mean),
            EngineModel::ChunkedPrefill(model) => model.work(room, mean),
            EngineModel::PrefillFirst(model) => model.work(room, mean),
        }
    }

    fn room(&self) -> Room {
        Room {
            kv_tokens: f64::from(self.num_blocks) * f64::from(self.block_size),
            max_running: self.max_running as f64,
            step_tokens: f64::from(self.max_batched_tokens),
        }
    }

    /// Seconds that a step takes, without jitter.
    pub(super) fn step_seconds(&self, step: &Step) -> f64 {
        match &self.model {
            EngineModel::Linear => linear::seconds(self, step),
            EngineModel::ChunkedPrefill(model) => model.seconds(step).min(LONGEST_STEP),
            EngineModel::PrefillFirst(model) => model.seconds(step).min(LONGEST_STEP),
        }
    }
}
