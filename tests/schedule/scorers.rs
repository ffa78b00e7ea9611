//! Scorers against their formulas.

use std::sync::Arc;

use proptest::prelude::*;
use usher::endpoints::Candidates;
use usher::schedule::{KvCacheUtilizationScorer, QueueScorer, Record, Scorer};

use crate::support::{Reading, candidates, decide, fresh, single, top, with_context};

fn scores(scorer: &dyn Scorer, candidates: &Candidates) -> Vec<f32> {
    let mut out = vec![0.0; candidates.len()];
    with_context(|cx| scorer.score(cx, candidates.view(), &mut out));
    out
}

const STALE: Reading = Some((0.0, 2001));

#[test]
fn the_queue_scorer_follows_its_formula() {
    let old = Some((4.0, 2000));
    let table: [(&[Reading], &[f32]); 9] = [
        (&[fresh(0.0), fresh(5.0), fresh(10.0)], &[1.0, 0.5, 0.0]),
        (&[fresh(3.0), fresh(3.0)], &[1.0, 1.0]),
        (&[fresh(7.0)], &[1.0]),
        (&[fresh(2.0), old, fresh(6.0)], &[1.0, 0.5, 0.0]),
        // Missing, stale and broken readings count as the worst of the others.
        (&[fresh(0.0), None, fresh(10.0)], &[1.0, 0.0, 0.0]),
        (&[fresh(4.0), STALE, fresh(8.0), fresh(6.0)], &[1.0, 0.0, 0.0, 0.5]),
        (&[fresh(f64::NAN), fresh(1.0), fresh(3.0), fresh(f64::INFINITY)], &[0.0, 1.0, 0.0, 0.0]),
        (&[fresh(5.0), None], &[1.0, 1.0]),
        // Nothing is known: all are equal.
        (&[None, STALE, fresh(f64::NAN)], &[1.0, 1.0, 1.0]),
    ];
    for (readings, expected) in table {
        let loads: Vec<_> = readings.iter().map(|reading| (*reading, None)).collect();
        assert_eq!(scores(&QueueScorer, &candidates(&loads)), expected, "{readings:?}");
    }
    assert!(scores(&QueueScorer, &candidates(&[])).is_empty());
}

#[test]
fn the_kv_cache_scorer_follows_its_formula() {
    let table: [(&[Reading], &[f32]); 5] = [
        (&[fresh(0.0), fresh(0.25), fresh(1.0)], &[1.0, 0.75, 0.0]),
        (&[fresh(0.5), None, STALE, fresh(0.25)], &[0.5, 0.5, 0.5, 0.75]),
        (&[fresh(f64::NAN), fresh(0.75)], &[0.25, 0.25]),
        (&[None, STALE], &[1.0, 1.0]),
        (&[fresh(0.5)], &[0.5]),
    ];
    for (readings, expected) in table {
        let loads: Vec<_> = readings.iter().map(|reading| (None, *reading)).collect();
        assert_eq!(scores(&KvCacheUtilizationScorer, &candidates(&loads)), expected, "{readings:?}");
    }
}

/// The formulas once more, in loops over plain numbers.
mod reference {
    use crate::support::{MAX_AGE, Reading};

    fn known(reading: Reading) -> Option<f64> {
        match reading {
            Some((value, age)) if age as u128 <= MAX_AGE.as_millis() && value.is_finite() => Some(value),
            _ => None,
        }
    }

    fn filled(readings: &[Reading]) -> Vec<f64> {
        let mut worst = 0.0;
        let mut any = false;
        for reading in readings {
            if let Some(value) = known(*reading) {
                if !any || value > worst {
                    worst = value;
                }
                any = true;
            }
        }
        readings.iter().map(|reading| known(*reading).unwrap_or(worst)).collect()
    }

    pub(super) fn queue(readings: &[Reading]) -> Vec<f64> {
        let values = filled(readings);
        let mut low = f64::MAX;
        let mut high = f64::MIN;
        for value in &values {
            low = low.min(*value);
            high = high.max(*value);
        }
        values.iter().map(|q| if high == low { 1.0 } else { (high - q) / (high - low) }).collect()
    }

    pub(super) fn kv(readings: &[Reading]) -> Vec<f64> {
        filled(readings).iter().map(|kv| 1.0 - kv).collect()
    }
}

fn reading(values: impl Strategy<Value = f64>) -> impl Strategy<Value = Reading> {
    let value = prop_oneof![8 => values, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)];
    proptest::option::weighted(0.8, (value, prop_oneof![3 => Just(0u64), 1 => 1990u64..2010]))
}

proptest! {
    #[test]
    fn scorers_equal_their_reference(
        loads in proptest::collection::vec((reading((0u32..200).prop_map(f64::from)), reading(0.0..1.0f64)), 1..40),
    ) {
        let candidates = candidates(&loads);
        let (waiting, kv): (Vec<_>, Vec<_>) = loads.into_iter().unzip();
        for (scorer, expected) in [
            (&QueueScorer as &dyn Scorer, reference::queue(&waiting)),
            (&KvCacheUtilizationScorer, reference::kv(&kv)),
        ] {
            for (got, expected) in scores(scorer, &candidates).into_iter().zip(expected) {
                prop_assert!((f64::from(got) - expected).abs() < 1e-6, "{got} {expected}");
            }
        }
    }

    #[test]
    fn totals_and_picks_equal_their_reference(
        loads in proptest::collection::vec((reading((0u32..9).prop_map(f64::from)), reading(0.0..1.0f64)), 1..40),
        weights in (-2.0..3.0f64, 0.0..3.0f64),
        count in 1usize..6,
        seed in any::<u64>(),
    ) {
        let scheduler = single(
            None,
            vec![(Arc::new(QueueScorer), weights.0), (Arc::new(KvCacheUtilizationScorer), weights.1)],
            top(count),
        );
        let all = candidates(&loads);
        let decision = decide(&scheduler, &all, seed, Record::Scores).unwrap();
        let (waiting, kv): (Vec<_>, Vec<_>) = loads.into_iter().unzip();
        let totals: Vec<f64> = reference::queue(&waiting)
            .iter()
            .zip(reference::kv(&kv))
            .map(|(q, k)| weights.0 * q + weights.1 * k.clamp(0.0, 1.0))
            .collect();
        for ((_, got), expected) in decision.scores().zip(&totals) {
            prop_assert!((got - expected).abs() < 1e-5, "{got} {expected}");
        }
        let picks = &decision.primary().picks;
        prop_assert_eq!(picks.len(), count.min(totals.len()));
        // No one that was left out is better than the worst pick.
        let worst = picks.iter().map(|pick| totals[*pick as usize]).fold(f64::MAX, f64::min);
        for (index, total) in totals.iter().enumerate() {
            prop_assert!(picks.contains(&(index as u32)) || *total <= worst + 1e-5);
        }
        for pair in picks.windows(2) {
            prop_assert!(totals[pair[0] as usize] >= totals[pair[1] as usize] - 1e-5);
        }
    }
}
