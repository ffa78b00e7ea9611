//! Order of endpoints for a request with latency targets: targets first, cost second.

use crate::latency::EQUAL_CHANCE;

/// Highest cost at which endpoints are packed, as a multiple of the least cost. Packing a request where its prompt
/// isn't cached, or behind a queue, takes capacity from all classes.
const PACKING: f64 = 1.5;

/// Relative difference in time per token up to which two batches count as equally deep; one request makes more.
const EQUAL_DEPTH: f64 = 0.002;

/// An endpoint as the request sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    /// Requests that keep their targets: the chance of the request itself, less the others that are
    /// expected to miss theirs for it.
    pub(super) gain: f64,
    /// Tighter classes that came lately and that the endpoint is good for.
    pub(super) serves: usize,
    /// Seconds per token of the batch there.
    pub(super) depth: f64,
    /// Cost, in seconds.
    pub(super) cost: f64,
}

/// Scores the endpoints where most requests keep their targets 0.5 to 1, and others less than
/// that.
///
/// Endpoints of the first group that cost little more than the cheapest of them are ranked by how few
/// tighter classes they are good for, the fewest first: they are no loss to these, and the cost decides
/// among them. Where all are good for some, the deepest batch goes first, so that soon there is
/// one that isn't. Costs that differ by less than `equal` seconds are equal.
pub(super) fn rank(choices: &[Choice], equal: f64, out: &mut [f32]) {
    let best = choices.iter().map(|choice| choice.gain).fold(f64::NEG_INFINITY, f64::max);
    let enough = best - EQUAL_CHANCE;
    let fits = |choice: &Choice| choice.gain >= enough;
    let second = least_cost(choices, fits);
    let most = second * PACKING;
    let may_pack = |choice: &Choice| fits(choice) && choice.cost <= most;
    let (mut fewest, mut deepest) = (usize::MAX, 0.0);
    for choice in choices.iter().filter(|choice| may_pack(choice)) {
        if choice.serves < fewest {
            (fewest, deepest) = (choice.serves, 0.0);
        }
        if choice.serves == fewest {
            deepest = choice.depth.max(deepest);
        }
    }
    let deep = if fewest == 0 { f64::NEG_INFINITY } else { deepest * (1.0 - EQUAL_DEPTH) };
    let is_first = |choice: &Choice| may_pack(choice) && choice.serves == fewest && choice.depth >= deep;
    let first = least_cost(choices, is_first);
    for (cell, choice) in out.iter_mut().zip(choices) {
        let by_cost = |least: f64| ((least + equal) / choice.cost.max(f64::MIN_POSITIVE)).min(1.0);
        *cell = if is_first(choice) {
            0.75 + 0.25 * by_cost(first)
        } else if fits(choice) {
            0.5 + 0.25 * by_cost(second)
        } else {
            0.5 / (1.0 + best - choice.gain)
        } as f32;
    }
}

/// Least cost of the choices that fit; infinite without any.
fn least_cost(choices: &[Choice], fits: impl Fn(&Choice) -> bool) -> f64 {
    let cost = |choice: &Choice| if fits(choice) { choice.cost } else { f64::INFINITY };
    choices.iter().map(cost).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(chance: f64, harm: f64, cost: f64) -> Choice {
        Choice { gain: chance.min(0.95) - harm, serves: 0, depth: 0.015, cost }
    }

    /// Positions, the best first, and the best score.
    fn order(choices: &[Choice]) -> (Vec<usize>, f32) {
        let mut out = vec![0.0; choices.len()];
        rank(choices, 5e-4, &mut out);
        let mut order: Vec<usize> = (0..choices.len()).collect();
        order.sort_by(|a, b| out[*b].total_cmp(&out[*a]));
        (order, out.iter().copied().fold(0.0, f32::max))
    }

    #[test]
    fn probability_outranks_the_cost() {
        let all = [choice(0.2, 0.0, 1.0), choice(0.9, 0.0, 9.0), choice(0.5, 0.0, 2.0)];
        assert_eq!(order(&all), (vec![1, 2, 0], 1.0));
    }

    #[test]
    fn cost_decides_between_sufficient_probabilities() {
        let all = [choice(0.96, 0.0, 9.0), choice(1.0, 0.0, 8.0), choice(0.94, 0.0, 3.0)];
        assert_eq!(order(&all), (vec![2, 1, 0], 1.0));
        assert_eq!(order(&[choice(0.001, 0.0, 9.0), choice(0.0, 0.0, 3.0)]), (vec![1, 0], 1.0));
    }

    #[test]
    fn request_avoids_endpoints_where_others_would_miss_targets() {
        let all = [choice(1.0, 0.3, 1.0), choice(1.0, 0.0, 5.0), choice(0.4, 2.0, 1.0)];
        assert_eq!(order(&all), (vec![1, 0, 2], 1.0));
    }

    #[test]
    fn endpoints_useless_to_tighter_classes_go_first_by_cost() {
        let serving = |serves, choice| Choice { serves, ..choice };
        let all = [
            serving(1, choice(1.0, 0.0, 1.0)),
            serving(0, choice(0.97, 0.0, 1.3)),
            serving(0, choice(0.99, 0.0, 1.2)),
            serving(0, choice(0.3, 0.0, 1.0)),
            serving(2, choice(0.99, 0.0, 0.9)),
        ];
        assert_eq!(order(&all), (vec![2, 1, 4, 0, 3], 1.0));
        let dear = [serving(1, choice(1.0, 0.0, 1.0)), serving(0, choice(1.0, 0.0, 1.6))];
        assert_eq!(order(&dear).0, [0, 1], "packing has a price");
    }

    #[test]
    fn deepest_batch_is_packed_if_all_serve_tighter_classes() {
        let deep = |ms: f64, cost| Choice { serves: 1, depth: ms / 1000.0, ..choice(1.0, 0.0, cost) };
        assert_eq!(order(&[deep(15.0, 1.0), deep(15.6, 1.4), deep(15.3, 1.2)]).0[0], 1);
        assert_eq!(order(&[deep(15.0, 1.0), deep(15.6, 9.0), deep(15.3, 1.2)]).0[0], 2);
        assert_eq!(order(&[deep(15.6, 1.4), deep(15.58, 1.0)]).0[0], 1, "equally deep");
    }

    /// The same order, worked out for one endpoint after the other as it is described.
    fn plainly(choices: &[Choice], equal: f64) -> Vec<f32> {
        let best = choices.iter().map(|c| c.gain).fold(f64::NEG_INFINITY, f64::max);
        let least = |of: &[Choice]| of.iter().map(|c| c.cost).fold(f64::INFINITY, f64::min);
        let fit: Vec<_> = choices.iter().copied().filter(|c| c.gain >= best - EQUAL_CHANCE).collect();
        let second = least(&fit);
        let mut first = fit.clone();
        first.retain(|c| c.cost <= second * PACKING);
        let fewest = first.iter().map(|c| c.serves).min().unwrap_or(0);
        first.retain(|c| c.serves == fewest);
        let deepest = first.iter().map(|c| c.depth).fold(0.0, f64::max);
        first.retain(|c| fewest == 0 || c.depth >= deepest * (1.0 - EQUAL_DEPTH));
        let score = |choice: &Choice| {
            let by_cost = |of: &[Choice]| ((least(of) + equal) / choice.cost).min(1.0);
            if first.contains(choice) {
                0.75 + 0.25 * by_cost(&first)
            } else if fit.contains(choice) {
                0.5 + 0.25 * by_cost(&fit)
            } else {
                0.5 / (1.0 + best - choice.gain)
            }
        };
        choices.iter().map(|choice| score(choice) as f32).collect()
    }

    #[test]
    fn scores_match_the_reference_order() {
        let draw = |n: u64, most: u64| (usher_core::random::mix(n) % most) as f64;
        for round in 0..2000u64 {
            let choice = |n: u64| {
                let n = (round << 32) + 8 * n;
                Choice {
                    gain: draw(n, 200) / 200.0 - 0.2 * draw(n + 1, 2),
                    serves: draw(n + 2, 3) as usize + round as usize % 2,
                    depth: 0.015 + draw(n + 3, 40) * 1e-5,
                    cost: 1.0 + draw(n + 4, 100) / 100.0,
                }
            };
            let choices: Vec<Choice> = (0..1 + round % 12).map(choice).collect();
            let mut out = vec![0.0; choices.len()];
            rank(&choices, 5e-4, &mut out);
            assert_eq!(out, plainly(&choices, 5e-4), "{choices:?}");
        }
    }

    #[test]
    fn odd_numbers_have_a_score() {
        let mut out = [0.0; 2];
        rank(&[choice(0.0, 0.0, 0.0), choice(1.0, 1e9, f64::MAX)], 5e-4, &mut out);
        assert!(out.iter().all(|score| (0.0..=1.0).contains(score)), "{out:?}");
        rank(&[], 5e-4, &mut []);
    }
}
