//! Scores by distance from the targets.

use super::params::{LatencyScorerParams, Strategy};

/// Differences up to this count as none, in seconds.
const EQUAL: f64 = 1e-12;

/// Scores places of `out` by the distance of the time to the first token and of the time per
/// output token from their targets, in seconds: in steps of 0.01, from 0.01 on.
pub(super) fn score(
    params: &LatencyScorerParams,
    strategy: Strategy,
    distances: &[(usize, [f64; 2])],
    out: &mut [f32],
) {
    let range = |dimension: usize| {
        let values = || distances.iter().map(|(_, pair)| pair[dimension]);
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
    };
    let ranges = [range(0), range(1)];
    let varies = ranges.map(|(least, most)| most - least > EQUAL);
    let weights = match varies {
        [true, false] => [1.0, 0.0],
        [false, true] => [0.0, 1.0],
        _ => normalised([params.ttft_weight, params.tpot_weight]),
    };
    let share = |dimension: usize, value: f64| {
        let (least, most) = ranges[dimension];
        if varies[dimension] { (value - least) / (most - least) } else { 0.5 }
    };
    for &(place, [first, token]) in distances {
        let combined = weights[0] * share(0, first) + weights[1] * share(1, token);
        let combined = match strategy {
            Strategy::Least => 1.0 - combined,
            Strategy::Most => combined,
        };
        // Not below the step that it is but for rounding.
        let step = (combined * 100.0 + 1e-9).floor() + 1.0;
        if let Some(cell) = out.get_mut(place) {
            *cell = (step / 100.0) as f32;
        }
    }
}

/// Weights of which the sum is 1; the first alone unless their sum is above 0.
fn normalised(weights: [f64; 2]) -> [f64; 2] {
    let sum: f64 = weights.iter().sum();
    if sum > 0.0 { weights.map(|weight| weight / sum) } else { [1.0, 0.0] }
}
