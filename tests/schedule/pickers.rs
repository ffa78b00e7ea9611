//! The weighted random picker: its probabilities, and what it does at the edges.

use std::num::NonZeroUsize;

use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::schedule::{Picker, Picks, WeightedRandomPicker};

use crate::pool::{Pool, asking, labelled};
use crate::support::{candidates, with_context};

/// Positions that the picker takes, round after round.
fn rounds(totals: &[f64], count: usize, rounds: usize) -> Vec<Vec<u32>> {
    let picker = WeightedRandomPicker::new(NonZeroUsize::new(count).unwrap());
    let all = candidates(&vec![(None, None); totals.len()]);
    let mut rng = StdRng::seed_from_u64(11);
    let mut round = || {
        let mut picks = Picks::default();
        with_context(|cx| picker.pick(cx, all.view(), totals, &mut rng, &mut picks));
        picks.positions().to_vec()
    };
    (0..rounds).map(|_| round()).collect()
}

/// Asserts that something of this probability came so often, give or take six standard
/// deviations.
#[track_caller]
fn assert_likely(count: usize, rounds: usize, probability: f64) {
    let mean = rounds as f64 * probability;
    let deviation = (mean * (1.0 - probability)).sqrt();
    assert!((count as f64 - mean).abs() <= 6.0 * deviation, "{count} of {rounds}, expected {mean}");
}

const ROUNDS: usize = 20_000;

#[test]
fn pick_probability_is_proportional_to_the_total() {
    // The last ones make the powers of the formula as it is written all 0.
    for scale in [1.0, 50.0, 1e-3, 1e-9] {
        let totals = [1.0, 2.0, 0.0, 3.0, 4.0, -1.0].map(|total| total * scale);
        let picks = rounds(&totals, 1, ROUNDS);
        let probabilities = [0.1, 0.2, 0.0, 0.3, 0.4, 0.0];
        for (position, probability) in (0u32..).zip(probabilities) {
            let count = picks.iter().filter(|picks| picks.as_slice() == [position]).count();
            assert_likely(count, ROUNDS, probability);
        }
    }
}

#[test]
fn later_picks_are_proportional_among_the_rest() {
    let totals = [1.0, 2.0, 5.0];
    let picks = rounds(&totals, 2, ROUNDS);
    for first in 0..3 {
        for second in (0..3).filter(|second| *second != first) {
            let probability = totals[first] / 8.0 * totals[second] / (8.0 - totals[first]);
            let wanted = [first as u32, second as u32];
            let count = picks.iter().filter(|picks| picks.as_slice() == wanted).count();
            assert_likely(count, ROUNDS, probability);
        }
    }
}

#[test]
fn without_any_total_each_is_equally_likely() {
    for totals in [[0.0; 4], [-2.0, -1.0, 0.0, f64::NEG_INFINITY]] {
        for count in [1, 2] {
            let picks = rounds(&totals, count, ROUNDS);
            for position in 0..4 {
                let first = picks.iter().filter(|picks| picks[0] == position).count();
                assert_likely(first, ROUNDS, 0.25);
            }
        }
    }
}

#[test]
fn endpoints_without_a_score_come_last_in_random_order() {
    let picks = rounds(&[0.0, 0.5, -1.0, 1.0], 7, ROUNDS);
    assert!(picks.iter().all(|picks| picks.len() == 4), "no more than there are");
    for picks in &picks {
        assert!(picks[..2].iter().all(|position| [1, 3].contains(position)), "{picks:?}");
        assert!(picks[2..].iter().all(|position| [0, 2].contains(position)), "{picks:?}");
    }
    assert_likely(picks.iter().filter(|picks| picks[2] == 0).count(), ROUNDS, 0.5);
}

#[test]
fn infinite_score_is_always_picked() {
    let picks = rounds(&[1e300, f64::INFINITY, 1.0], 1, 500);
    assert!(picks.iter().all(|picks| picks.as_slice() == [1]));
}

#[test]
fn max_num_of_endpoints_sets_the_number_of_picks() {
    let table =
        [("", 1), ("maxNumOfEndpoints: 2", 2), ("maxNumOfEndpoints: 9", 3), ("maxNumOfEndpoints: 0", 1)];
    for picker in ["max-score-picker", "random-picker", "weighted-random-picker"] {
        for (parameters, expected) in table {
            let config = format!("plugins: [{{type: {picker}, parameters: {{{parameters}}}}}]\n");
            let pool = Pool::new(&config, labelled(&[&[], &[], &[]]));
            let routed = pool.route(&asking(&[])).unwrap();
            assert_eq!(routed.decision().endpoints().len(), expected, "{picker} {parameters}");
            assert_eq!(String::from_utf8_lossy(&routed.destination()).split(',').count(), expected);
        }
    }
}
