//! Constants of the model linear.

use std::time::Duration;

use serde::Serialize;

use crate::replay::servers::Server;

/// Constants of the model linear, and the time that is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Constants {
    /// Prompt tokens that an engine computes per second.
    pub prefill_rate: f64,
    /// Milliseconds of a step that decodes for one request.
    pub decode_step_ms: f64,
    /// By how much of that each further request prolongs it.
    pub batch_factor: f64,
    /// Milliseconds that every request takes besides: network, gateway, tokenizer.
    pub delay_ms: f64,
}

/// Constants that are given, and aren't fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fixed {
    /// The rate.
    pub prefill_rate: bool,
    /// The step.
    pub decode_step: bool,
    /// The factor.
    pub batch_factor: bool,
    /// The delay.
    pub delay: bool,
}

/// Gives a server these constants.
pub(super) fn apply(server: &mut Server, constants: &Constants, slower: f64) {
    let step = Duration::try_from_secs_f64(constants.decode_step_ms / 1e3).unwrap_or(Duration::ZERO);
    server.engine.prefill_tokens_per_second = constants.prefill_rate.clamp(0.001, 1e12);
    server.engine.decode_step = step.min(Duration::from_secs(3600));
    server.engine.batch_factor = constants.batch_factor.clamp(0.0, 1000.0);
    if slower != 1.0 {
        server.slow_down(slower);
    }
}

/// Median; `None` of nothing.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
