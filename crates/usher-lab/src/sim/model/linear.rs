//! Steps whose time is linear in tokens and requests, the default:
//!
//! ```text
//! prefill_tokens / prefill_rate + decode_step * (1 + batch_factor * (decoding - 1)) if any decodes
//! ```
//!
//! A full engine answers a request in
//!
//! ```text
//! computed / prefill_rate + output * decode_step * (1 + batch_factor * (batch - 1)) / batch
//! ```
//!
//! seconds, where `batch` is the largest that `max_running` and the KV cache allow.

use super::work::{Mean, Room, Step};
use crate::sim::config::EngineConfig;

/// Seconds that a step takes.
pub(super) fn seconds(config: &EngineConfig, step: &Step) -> f64 {
    let mut seconds = 0.0;
    if config.prefill_tokens_per_second > 0.0 {
        seconds += f64::from(step.prefill_tokens) / config.prefill_tokens_per_second;
    }
    if step.decoding > 0 {
        let others = f64::from(step.decoding - 1);
        seconds += config.decode_step.as_secs_f64() * (1.0 + config.batch_factor * others);
    }
    seconds
}

/// Seconds that a full engine takes for a request.
pub(super) fn work(config: &EngineConfig, room: Room, mean: Mean) -> f64 {
    let batch = room.full_batch(mean.prompt + mean.output);
    let step = config.decode_step.as_secs_f64() * (1.0 + config.batch_factor * (batch - 1.0));
    let rate = config.prefill_tokens_per_second;
    let prefill = if rate > 0.0 { mean.computed / rate } else { 0.0 };
    prefill + mean.output * step / batch
}
