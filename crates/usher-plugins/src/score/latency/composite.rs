//! Scores without predictions.

use usher_core::endpoints::View;
use usher_plugin::Context;
use usher_plugin::data::PrefixMatch;

use super::super::readings;
use super::params::LatencyScorerParams;

/// Scores the weighted mean of what is free of the KV cache, of how short the queue is and of
/// how much of the prompt is cached, rounded to 0.01. An endpoint that doesn't say its queue
/// has the longest of the others; one that doesn't say the use of its cache has none free.
pub(super) fn score(
    params: &LatencyScorerParams,
    cx: &Context<'_>,
    candidates: View<'_>,
    prefix: Option<&PrefixMatch>,
    out: &mut [f32],
) {
    let weights = [params.composite_kv_weight, params.composite_queue_weight, params.composite_prefix_weight];
    let sum: f64 = weights.iter().sum();
    let [kv, queue, cached] = if sum > 0.0 { weights.map(|weight| weight / sum) } else { [1.0, 0.0, 0.0] };
    let longest = f64::from(readings(cx, candidates, out, |load| (&load.waiting, load.unreported())).max);
    for ((cell, endpoint), position) in out.iter_mut().zip(candidates.iter()).zip(candidates.indices()) {
        let usage = endpoint.load().kv_usage.fresh(cx.now_ms, cx.max_age).filter(|value| value.is_finite());
        let free = 1.0 - usage.unwrap_or(1.0).clamp(0.0, 1.0);
        let short = if longest > 0.0 { (longest - f64::from(*cell)) / longest } else { 1.0 };
        let known = prefix.filter(|prefix| prefix.total > 0);
        let share = known.map_or(0.0, |known| f64::from(known.blocks_at(*position)) / f64::from(known.total));
        *cell = ((100.0 * (kv * free + queue * short + cached * share)).round() / 100.0) as f32;
    }
}
