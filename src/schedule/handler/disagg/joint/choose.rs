//! The cheapest pair of the best endpoints of two profiles. Numbers in, positions out.

use smallvec::SmallVec;

/// More endpoints of a side than this are never looked at together.
pub const MOST: usize = 8;

/// Costs that differ by less than this, in seconds, are equal.
const EQUAL: f64 = 1e-4;

/// One side of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Side {
    /// Position in the snapshot.
    pub position: u32,
    /// Total score in its profile.
    pub score: f64,
}

/// Positions of a prefill and a decode endpoint in the snapshot.
pub type Pair = (u32, u32);

/// What a pair costs, in seconds. Everything is by position in the snapshot.
pub struct Costs<P, D, T> {
    /// Until the first token is computed.
    pub prefill: P,
    /// Until the decoding endpoint takes the request.
    pub decode: D,
    /// From the one to the other; `None` forbids the pair.
    pub transfer: T,
}

/// The cheapest pair of the `k` best of either side. If every pair of the best is
/// forbidden, all are looked at. Of pairs that cost the same, the one with the higher
/// scores; of equals, the first from `start` on, which should be random. `None` when
/// every pair is forbidden.
pub fn cheapest<P, D, T>(
    prefill: &(impl Iterator<Item = Side> + Clone),
    decode: &(impl Iterator<Item = Side> + Clone),
    k: usize,
    start: usize,
    costs: &Costs<P, D, T>,
) -> Option<Pair>
where
    P: Fn(u32) -> f64,
    D: Fn(u32) -> f64,
    T: Fn(u32, u32) -> Option<f64>,
{
    let k = k.clamp(1, MOST);
    let (few_prefill, few_decode) = (best(prefill, k, start), best(decode, k, start));
    let near = minimum(
        &costed(few_prefill.iter().copied(), &costs.prefill),
        &costed(few_decode.iter().copied(), &costs.decode),
        &costs.transfer,
    );
    if near.is_some() || (few_prefill.len() < k && few_decode.len() < k) {
        return near;
    }
    let (prefill, decode) = (costed(prefill.clone(), &costs.prefill), costed(decode.clone(), &costs.decode));
    minimum(&prefill, &decode, &costs.transfer)
}

/// The `k` with the highest scores, the best first; of equals those that come first
/// from `start` on.
fn best(sides: &(impl Iterator<Item = Side> + Clone), k: usize, start: usize) -> SmallVec<[Side; MOST]> {
    let mut best: SmallVec<[Side; MOST]> = SmallVec::new();
    let start = start % sides.clone().count().max(1);
    for side in sides.clone().skip(start).chain(sides.clone().take(start)) {
        let place = best.iter().position(|other| side.score > other.score).unwrap_or(best.len());
        if place < k {
            best.truncate(k - 1);
            best.insert(place, side);
        }
    }
    best
}

/// Each with what it costs.
fn costed(sides: impl Iterator<Item = Side>, cost: &impl Fn(u32) -> f64) -> SmallVec<[(Side, f64); MOST]> {
    sides.map(|side| (side, cost(side.position))).collect()
}

fn minimum(
    prefill: &[(Side, f64)],
    decode: &[(Side, f64)],
    transfer: &impl Fn(u32, u32) -> Option<f64>,
) -> Option<Pair> {
    let mut least: Option<(f64, f64, Pair)> = None;
    for (p, until_token) in prefill {
        for (d, until_slot) in decode {
            let Some(transfer) = transfer(p.position, d.position) else { continue };
            let cost = until_token + transfer + until_slot;
            let score = p.score + d.score;
            let is_less = !cost.is_nan()
                && least.is_none_or(|(least, highest, _)| {
                    cost < least - EQUAL || (cost < least + EQUAL && score > highest)
                });
            if is_less {
                least = Some((cost, score, (p.position, d.position)));
            }
        }
    }
    least.map(|(_, _, pair)| pair)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sides(scores: &[f64]) -> Vec<Side> {
        (0u32..).zip(scores).map(|(position, &score)| Side { position, score }).collect()
    }

    /// The choice where only the pair as a whole costs something.
    fn choose(
        prefill: &[f64],
        decode: &[f64],
        k: usize,
        start: usize,
        cost: impl Fn(u32, u32) -> Option<f64>,
    ) -> Option<Pair> {
        let (prefill, decode) = (sides(prefill), sides(decode));
        let costs = Costs { prefill: |_| 0.0, decode: |_| 0.0, transfer: cost };
        cheapest(&prefill.iter().copied(), &decode.iter().copied(), k, start, &costs)
    }

    #[test]
    fn only_the_best_of_either_side_are_looked_at() {
        let (prefill, decode) = ([0.1, 0.9, 0.8], [0.5, 0.4]);
        // The first is cheapest of all, but not among the best.
        let cost = |p: u32, d: u32| Some([0.0, 3.0, 1.0][p as usize] + f64::from(1 - d) * 10.0);
        assert_eq!(choose(&prefill, &decode, 1, 0, cost), Some((1, 0)));
        assert_eq!(choose(&prefill, &decode, 2, 0, cost), Some((2, 1)));
        assert_eq!(choose(&prefill, &decode, 3, 0, cost), Some((0, 1)));
    }

    #[test]
    fn every_part_counts() {
        let one = |position| [Side { position, score: 1.0 }, Side { position: position + 1, score: 1.0 }];
        let costs = Costs {
            prefill: |p: u32| [1.0, 5.0][p as usize],
            decode: |d: u32| [0.0, 0.0, 3.0, 2.0][d as usize],
            transfer: |p: u32, d: u32| Some(if (p, d) == (0, 2) { 0.5 } else { 2.0 }),
        };
        let pair = cheapest(&one(0).into_iter(), &one(2).into_iter(), 4, 0, &costs);
        assert_eq!(pair, Some((0, 2)), "1 + 0.5 + 3 is less than 1 + 2 + 2");
    }

    #[test]
    fn where_the_best_do_not_fit_together_others_may() {
        let (prefill, decode) = ([0.1, 0.9], [0.5, 0.4]);
        let cost = |p: u32, d: u32| (p == 0 && d == 1).then_some(1.0);
        assert_eq!(choose(&prefill, &decode, 1, 0, cost), Some((0, 1)));
        assert_eq!(choose(&prefill, &decode, 1, 0, |_, _| None), None);
        assert_eq!(choose(&[], &decode, 4, 3, cost), None);
        assert_eq!(choose(&prefill, &decode, 4, 3, |_, _| Some(f64::NAN)), None);
    }

    #[test]
    fn of_equals_scores_decide_and_then_the_start() {
        let (prefill, decode) = ([0.5, 0.5, 0.5], [0.1, 0.2]);
        let free = |_, _| Some(0.0);
        assert_eq!(choose(&prefill, &decode, 4, 0, free), Some((0, 1)));
        assert_eq!(choose(&prefill, &decode, 4, 1, free), Some((1, 1)));
        assert_eq!(choose(&prefill, &decode, 4, 5, free), Some((2, 1)));
    }

    proptest! {
        #[test]
        fn no_pair_is_cheaper(
            prefill in proptest::collection::vec(0.0..1.0f64, 1..8),
            decode in proptest::collection::vec(0.0..1.0f64, 1..8),
            costs in proptest::collection::vec(proptest::option::weighted(0.8, 0.0..10.0f64), 64),
            start in any::<usize>(),
        ) {
            let cost = |p: u32, d: u32| costs[p as usize * 8 + d as usize];
            let got = choose(&prefill, &decode, MOST, start, cost);
            let mut all = Vec::new();
            for p in 0..prefill.len() {
                for d in 0..decode.len() {
                    all.extend(costs[p * 8 + d]);
                }
            }
            let least = all.into_iter().reduce(f64::min);
            let got = got.map(|(p, d)| cost(p, d).unwrap());
            match (got, least) {
                // Each step may give up less than what counts as equal.
                (Some(got), Some(least)) => prop_assert!(got <= least + EQUAL * 64.0),
                (got, least) => prop_assert_eq!(got, least),
            }
        }

        #[test]
        fn the_best_are_those_of_a_sort(
            scores in proptest::collection::vec(0u8..20, 0..30),
            k in 1usize..=MOST,
            start in any::<usize>(),
        ) {
            let sides = sides(&scores.iter().map(|score| f64::from(*score)).collect::<Vec<_>>());
            let got: Vec<f64> = best(&sides.iter().copied(), k, start).iter().map(|side| side.score).collect();
            let mut sorted: Vec<f64> = sides.iter().map(|side| side.score).collect();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted.truncate(k);
            prop_assert_eq!(got, sorted);
        }
    }
}
