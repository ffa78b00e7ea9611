//! Scorers by what endpoints are doing, against their formulas.

use proptest::prelude::*;
use usher::config::Node;
use usher::endpoints::{Candidates, InFlightId, Share};
use usher::schedule::data::UncachedTokens;
use usher::schedule::{
    Facts, Key, LoadAwareParams, LoadAwareScorer, RunningRequestsScorer, Scorer, TokenLoadParams,
    TokenLoadScorer,
};

use crate::support::{MAX_AGE, NOW, Reading, candidates, column, fresh, pool, request};

const STALE: Reading = Some((0.0, 2001));

fn running(readings: &[Reading]) -> Candidates {
    let candidates = pool(readings.len(), |_, _| {});
    for (endpoint, reading) in candidates.view().iter().zip(readings) {
        if let Some((value, age)) = reading {
            endpoint.load().running.set(*value, NOW - age);
        }
    }
    candidates
}

fn waiting(readings: &[Reading]) -> Candidates {
    candidates(&readings.iter().map(|reading| (*reading, None)).collect::<Vec<_>>())
}

fn load_aware(threshold: &str) -> LoadAwareScorer {
    let node = Node::parse(&format!("{{threshold: {threshold}}}")).unwrap();
    LoadAwareScorer::new(&LoadAwareParams::decode(&node).unwrap())
}

fn plain(scorer: &dyn Scorer, candidates: &Candidates) -> Vec<f32> {
    column(scorer, &request(), Facts::NONE, candidates)
}

#[test]
fn the_running_requests_scorer_follows_its_formula() {
    let table: [(&[Reading], &[f32]); 6] = [
        (&[fresh(0.0), fresh(5.0), fresh(20.0)], &[1.0, 0.75, 0.0]),
        (&[fresh(3.0), fresh(3.0)], &[1.0, 1.0]),
        (&[fresh(0.0), None, fresh(10.0)], &[1.0, 0.0, 0.0]),
        (&[fresh(4.0), STALE, fresh(8.0), fresh(6.0)], &[1.0, 0.0, 0.0, 0.5]),
        (&[None, STALE], &[1.0, 1.0]),
        (&[], &[]),
    ];
    for (readings, expected) in table {
        assert_eq!(plain(&RunningRequestsScorer, &running(readings)), expected, "{readings:?}");
    }
}

#[test]
fn the_load_aware_scorer_follows_its_formula() {
    let table: [(&str, &[Reading], &[f32]); 6] = [
        ("128", &[fresh(0.0), fresh(32.0), fresh(128.0), fresh(500.0)], &[0.5, 0.375, 0.0, 0.0]),
        ("4", &[fresh(1.0), fresh(2.0), fresh(4.0)], &[0.375, 0.25, 0.0]),
        // The scale is fixed: a single endpoint is not perfect.
        ("4", &[fresh(3.0)], &[0.125]),
        ("0", &[fresh(64.0), fresh(0.0)], &[0.25, 0.5]),
        ("4", &[fresh(1.0), None, STALE, fresh(3.0)], &[0.375, 0.125, 0.125, 0.125]),
        ("4", &[None, fresh(f64::NAN)], &[0.5, 0.5]),
    ];
    for (threshold, readings, expected) in table {
        assert_eq!(plain(&load_aware(threshold), &waiting(readings)), expected, "{threshold} {readings:?}");
    }
}

/// Tokens that an endpoint has under way, and tokens that the request would add there.
type Tokens = (u64, u64);

/// Scores of a token-load scorer, and the shares that have to stay while it scores.
fn token_load(threshold: i64, tokens: &[Tokens]) -> Vec<f32> {
    let candidates = pool(tokens.len(), |_, _| {});
    let counters = InFlightId::new(2).unwrap();
    let shares: Vec<Share> = candidates
        .view()
        .iter()
        .zip(tokens)
        .map(|(endpoint, (under_way, _))| Share::new(endpoint.load(), counters, *under_way))
        .collect();
    let key = Key::new(5);
    let mut facts = Facts::default();
    let at = tokens.iter().map(|(_, added)| *added).collect();
    facts.set(key, UncachedTokens { elsewhere: 0, at });
    let params = TokenLoadParams {
        queue_threshold_tokens: threshold,
        in_flight_load_producer_name: "inflight-load-producer".into(),
    };
    let scores = column(&TokenLoadScorer::new(&params, counters, key), &request(), &facts, &candidates);
    drop(shares);
    scores
}

#[test]
fn the_token_load_scorer_follows_its_formula() {
    let table: [(i64, &[Tokens], &[f32]); 5] = [
        (1000, &[(0, 0), (250, 0), (0, 250), (250, 250)], &[1.0, 0.75, 0.75, 0.5]),
        (1000, &[(1000, 0), (999, 1), (5000, 0), (0, u64::MAX)], &[0.0, 0.0, 0.0, 0.0]),
        (4 << 20, &[(1 << 20, 1 << 20)], &[0.5]),
        (1, &[(0, 0), (1, 0)], &[1.0, 0.0]),
        (1, &[], &[]),
    ];
    for (threshold, tokens, expected) in table {
        assert_eq!(token_load(threshold, tokens), expected, "{threshold} {tokens:?}");
    }
}

#[test]
fn a_token_load_scorer_reads_by_the_place_in_the_snapshot() {
    let all = pool(3, |_, _| {});
    let (counters, key) = (InFlightId::new(0).unwrap(), Key::new(0));
    let params = TokenLoadParams::decode(&Node::parse("{queueThresholdTokens: 100}").unwrap()).unwrap();
    let scorer = TokenLoadScorer::new(&params, counters, key);
    let mut facts = Facts::default();
    facts.set(key, UncachedTokens { elsewhere: 50, at: vec![10, 20] });
    assert_eq!(column(&scorer, &request(), &facts, &all.narrowed(&[1, 2])), [0.8, 0.5]);
    assert_eq!(column(&scorer, &request(), Facts::NONE, &all), [1.0; 3], "nobody said what it costs");
}

#[test]
fn parameters_have_their_defaults_and_are_strict() {
    let read = |text: &str| Node::parse(text).unwrap();
    let threshold = |text: &str| LoadAwareParams::decode(&read(text)).unwrap().threshold;
    assert_eq!(
        ["{}", "{threshold: 0}", "{threshold: -3}", "{threshold: 1}"].map(threshold),
        [128, 128, 128, 1]
    );
    let params = TokenLoadParams::decode(&read("{queueThresholdTokens: -1, inFlightLoadProducerName: ''}"));
    let params = params.unwrap();
    assert_eq!(params, TokenLoadParams::decode(&read("{}")).unwrap());
    assert_eq!(params.queue_threshold_tokens, 4_194_304);
    assert_eq!(params.in_flight_load_producer_name, "inflight-load-producer");
    for text in ["{threshold: 1.5}", "{threshold: many}", "{treshold: 1}"] {
        assert!(LoadAwareParams::decode(&read(text)).is_err(), "{text}");
    }
    for text in ["{queueThresholdTokens: x}", "{threshold: 1}"] {
        assert!(TokenLoadParams::decode(&read(text)).is_err(), "{text}");
    }
}

/// The formulas once more, in loops over plain numbers.
mod reference {
    use super::{MAX_AGE, Reading, Tokens};

    fn filled(readings: &[Reading]) -> Vec<f64> {
        let known = |reading: &Reading| match reading {
            Some((value, age)) if u128::from(*age) <= MAX_AGE.as_millis() && value.is_finite() => {
                Some(*value)
            }
            _ => None,
        };
        let mut worst = None;
        for value in readings.iter().filter_map(known) {
            worst = Some(worst.map_or(value, |so_far: f64| so_far.max(value)));
        }
        readings.iter().map(|reading| known(reading).unwrap_or(worst.unwrap_or(0.0))).collect()
    }

    pub(super) fn fewest(readings: &[Reading]) -> Vec<f64> {
        let values = filled(readings);
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
        values.iter().map(|value| if low == high { 1.0 } else { (high - value) / (high - low) }).collect()
    }

    pub(super) fn load_aware(threshold: f64, readings: &[Reading]) -> Vec<f64> {
        let mut scores = Vec::new();
        for waiting in filled(readings) {
            scores.push(match waiting {
                0.0 => 0.5,
                full if full >= threshold => 0.0,
                waiting => 0.5 - 0.5 * waiting / threshold,
            });
        }
        scores
    }

    pub(super) fn token_load(threshold: u64, tokens: &[Tokens]) -> Vec<f64> {
        let mut scores = Vec::new();
        for (under_way, added) in tokens {
            let sum = under_way + added;
            scores.push(if sum >= threshold { 0.0 } else { (threshold - sum) as f64 / threshold as f64 });
        }
        scores
    }
}

fn close(got: &[f32], expected: &[f64]) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        prop_assert!((f64::from(*got) - expected).abs() < 1e-6, "{} {}", got, expected);
    }
    Ok(())
}

fn reading() -> impl Strategy<Value = Reading> {
    let value =
        prop_oneof![8 => (0u32..300).prop_map(f64::from), 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)];
    proptest::option::weighted(0.8, (value, prop_oneof![3 => Just(0u64), 1 => 1990u64..2010]))
}

proptest! {
    #[test]
    fn readings_are_scored_as_by_the_reference(
        readings in prop::collection::vec(reading(), 1..30),
        threshold in 1i64..400,
    ) {
        close(&plain(&RunningRequestsScorer, &running(&readings)), &reference::fewest(&readings))?;
        let expected = reference::load_aware(threshold as f64, &readings);
        close(&plain(&load_aware(&threshold.to_string()), &waiting(&readings)), &expected)?;
    }

    #[test]
    fn tokens_are_scored_as_by_the_reference(
        tokens in prop::collection::vec((0u64..3000, 0u64..3000), 1..30),
        threshold in 1i64..5000,
    ) {
        close(&token_load(threshold, &tokens), &reference::token_load(threshold as u64, &tokens))?;
    }
}
