//! Scorers by what prefix caches hold, against their formulas.

use std::sync::Arc;

use proptest::prelude::*;
use usher::config::Node;
use usher::endpoints::Candidates;
use usher::schedule::data::PrefixMatch;
use usher::schedule::{
    ColdOrder, Facts, Key, NoHitLruParams, NoHitLruScorer, PrefixCacheScorer, PrefixCacheScorerParams,
};

use crate::support::{column, pool, request};

const PREFIX: u32 = 4;

fn key() -> Key<PrefixMatch> {
    Key::new(PREFIX)
}

/// Facts about a prompt of `total` blocks, of which `matched` are cached at each endpoint.
pub(crate) fn facts(total: u32, block_size: u32, matched: &[u32]) -> Facts {
    let mut facts = Facts::default();
    facts.set(key(), PrefixMatch { total, block_size, matched: matched.to_vec() });
    facts
}

fn scorer(parameters: &str) -> PrefixCacheScorer {
    let params = PrefixCacheScorerParams::decode(&Node::parse(parameters).unwrap()).unwrap();
    PrefixCacheScorer::new(&params, key())
}

#[test]
fn the_prefix_scorer_follows_its_formula() {
    let half = "{matchLengthWeight: 0.5, matchLengthScaleTokens: 1024}";
    let whole = "{matchLengthWeight: 1, matchLengthScaleTokens: 256}";
    // parameters, blocks, tokens per block, blocks at each endpoint, scores
    let table: [(&str, u32, u32, &[u32], &[f32]); 7] = [
        ("{}", 8, 64, &[0, 2, 8], &[0.0, 0.25, 1.0]),
        ("{matchLengthScaleTokens: 0}", 8, 64, &[4], &[0.5]),
        // (512 / 1024)² = 0.25; (1024 / 1024)² = 1; 32 blocks are 2048 tokens, and count as 1.
        (half, 32, 64, &[0, 8, 16, 32], &[0.0, 0.25, 0.75, 1.0]),
        (whole, 100, 64, &[1, 2, 4, 50], &[0.0625, 0.25, 1.0, 1.0]),
        ("{matchLengthWeight: 0.25}", 1, 128, &[1], &[0.75 + 0.25 * 0.000_244_140_63]),
        ("{}", 0, 64, &[0, 0], &[0.0, 0.0]),
        // Endpoints that nothing is said of have nothing.
        ("{}", 4, 64, &[], &[0.0, 0.0]),
    ];
    for (parameters, total, block, matched, expected) in table {
        let candidates = pool(expected.len(), |_, _| {});
        let scores = column(&scorer(parameters), &request(), &facts(total, block, matched), &candidates);
        assert_eq!(scores, expected, "{parameters} {matched:?} of {total}");
    }
    let all = pool(2, |_, _| {});
    assert_eq!(column(&scorer("{}"), &request(), Facts::NONE, &all), [0.0; 2], "nobody said anything");
}

#[test]
fn matches_are_by_the_place_in_the_snapshot() {
    let all = pool(4, |_, _| {});
    let facts = facts(4, 64, &[1, 2, 3, 4]);
    let some = all.narrowed(&[1, 3]);
    assert_eq!(column(&scorer("{}"), &request(), &facts, &some), [0.5, 1.0]);
}

proptest! {
    #[test]
    fn the_prefix_scorer_scores_as_a_plain_loop_does(
        matched in prop::collection::vec(0u32..=40, 1..8),
        total in 0u32..=40,
        block in 1u32..200,
        weight in 0.0f64..=1.0,
        scale in 1u32..10_000,
    ) {
        let candidates = pool(matched.len(), |_, _| {});
        let parameters = format!("{{matchLengthWeight: {weight}, matchLengthScaleTokens: {scale}}}");
        let scores = column(&scorer(&parameters), &request(), &facts(total, block, &matched), &candidates);
        for (score, matched) in scores.iter().zip(&matched) {
            let mut expected = 0.0;
            if total > 0 {
                let matched = f64::from((*matched).min(total));
                let mut length = matched * f64::from(block) / f64::from(scale);
                if length > 1.0 {
                    length = 1.0;
                }
                expected = weight * length * length + (1.0 - weight) * (matched / f64::from(total));
            }
            prop_assert!((f64::from(*score) - expected).abs() < 1e-6, "{score} and {expected}");
        }
    }
}

fn no_hit(facts: &Facts, candidates: &Candidates) -> Vec<f32> {
    let params = NoHitLruParams::decode(&Node::parse("{}").unwrap()).unwrap();
    let scorer = NoHitLruScorer::new(&params, key(), Arc::new(ColdOrder::default()));
    column(&scorer, &request(), facts, candidates)
}

#[test]
fn no_hit_scorer_ignores_warm_prompts() {
    let all = pool(5, |_, _| {});
    let never_used = [1.0, 0.75, 0.5, 0.25, 0.0];
    let warm = facts(4, 64, &[0, 0, 1]);
    assert_eq!(no_hit(&warm, &all), [0.5; 5]);
    assert_eq!(no_hit(&facts(4, 64, &[0; 5]), &all), never_used);
    assert_eq!(no_hit(&facts(0, 64, &[]), &all), never_used);
    assert_eq!(no_hit(Facts::NONE, &all), never_used, "what nobody knows is in no cache");
    // It counts what is left of the candidates.
    assert_eq!(no_hit(&warm, &all.narrowed(&[0, 1, 3])), [1.0, 0.5, 0.0]);
    assert_eq!(no_hit(&warm, &all.narrowed(&[3])), [1.0]);
    assert_eq!(no_hit(&warm, &all.narrowed(&[2])), [0.5]);
    assert_eq!(no_hit(&warm, &all.narrowed(&[])), [0.0; 0]);
}
