//! `probabilistic-admitter`: its formula, its draws, and what a client gets.

use std::sync::Arc;

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::endpoints::{EndpointSpec, Store, SubsetHint};
use usher::schedule::{Admitter, Context, ProbabilisticAdmitter, ProbabilisticAdmitterParams, State};

use super::of_priority;
use crate::support::{MAX_AGE, NOW, Reading, candidates, fresh};

const DEFAULTS: ProbabilisticAdmitterParams = ProbabilisticAdmitterParams {
    queue_depth_threshold: 5.0,
    kv_cache_util_threshold: 0.8,
    power: 5.0,
    k: 300.0,
};

fn probability(params: ProbabilisticAdmitterParams, loads: &[(Reading, Reading)]) -> f64 {
    let request = of_priority(-1);
    let cx = Context::new(&request, NOW, MAX_AGE);
    ProbabilisticAdmitter::new(params).probability(&cx, &candidates(loads))
}

#[test]
fn the_probability_follows_its_formula() {
    let steep = ProbabilisticAdmitterParams { power: 2.0, k: 1.0, ..DEFAULTS };
    let stale = Some((0.0, 2001));
    let table: [(ProbabilisticAdmitterParams, &[(Reading, Reading)], f64); 11] = [
        (DEFAULTS, &[(fresh(0.0), fresh(0.0))], 0.0),
        (DEFAULTS, &[(fresh(1.0), fresh(0.0))], 0.2f64.powi(5) * 300.0),
        (DEFAULTS, &[(fresh(5.0), fresh(0.0))], 1.0),
        (steep, &[(fresh(1.0), fresh(0.4))], 0.25),
        (steep, &[(fresh(4.0), fresh(0.4))], 0.64),
        (steep, &[(fresh(1.0), fresh(0.0)), (fresh(0.0), fresh(0.64))], 0.25),
        (steep, &[(fresh(50.0), fresh(0.0))], 1.0),
        // Nothing is known: full.
        (steep, &[(None, None)], 1.0),
        (steep, &[(None, stale), (fresh(0.0), fresh(0.0))], 0.25),
        // One of the two is known.
        (steep, &[(fresh(2.5), None)], 0.25),
        (steep, &[(fresh(f64::NAN), fresh(0.4))], 0.25),
    ];
    for (params, loads, expected) in table {
        let got = probability(params, loads);
        assert!((got - expected).abs() < 1e-9, "{loads:?}: {got} {expected}");
    }
}

/// The formula once more, over plain numbers.
fn reference(params: ProbabilisticAdmitterParams, loads: &[(Reading, Reading)]) -> f64 {
    let known = |reading: Reading| match reading {
        Some((value, age)) if age as u128 <= MAX_AGE.as_millis() => Some(value),
        _ => None,
    };
    let mut sum = 0.0;
    for (queue, kv) in loads {
        let mut worst = None;
        for (reading, threshold) in
            [(*queue, params.queue_depth_threshold), (*kv, params.kv_cache_util_threshold)]
        {
            if let Some(value) = known(reading) {
                let share = value / threshold;
                worst = Some(worst.map_or(share, |worst: f64| if share > worst { share } else { worst }));
            }
        }
        sum += worst.unwrap_or(1.0);
    }
    let mean = sum / loads.len() as f64;
    let p = mean.powf(params.power) * params.k;
    if p > 1.0 { 1.0 } else { p }
}

fn reading(values: impl Strategy<Value = f64>) -> impl Strategy<Value = Reading> {
    proptest::option::weighted(0.8, (values, prop_oneof![3 => Just(0u64), 1 => 1990u64..2010]))
}

proptest! {
    #[test]
    fn the_probability_equals_its_reference(
        loads in proptest::collection::vec((reading((0u32..9).prop_map(f64::from)), reading(0.0..1.0f64)), 1..20),
        queue in 0.5..20.0f64,
        kv in 0.1..1.0f64,
        power in 0.1..6.0f64,
        k in 0.1..400.0f64,
    ) {
        let params = ProbabilisticAdmitterParams { queue_depth_threshold: queue, kv_cache_util_threshold: kv, power, k };
        let (got, expected) = (probability(params, &loads), reference(params, &loads));
        prop_assert!((got - expected).abs() < 1e-9, "{} {}", got, expected);
    }
}

#[test]
fn negative_priority_is_refused_at_the_expected_rate() {
    let params = ProbabilisticAdmitterParams { power: 2.0, k: 1.0, ..DEFAULTS };
    let (admitter, half_full) = (ProbabilisticAdmitter::new(params), candidates(&[(fresh(2.5), fresh(0.0))]));
    let mut rng = StdRng::seed_from_u64(11);
    let mut refused = |priority: i32| {
        let request = of_priority(priority);
        let cx = Context::new(&request, NOW, MAX_AGE);
        (0..4000).filter(|_| admitter.admit(&cx, &half_full, &mut rng).is_err()).count()
    };
    assert_eq!((refused(0), refused(7)), (0, 0), "whatever the load");
    // Six standard deviations around 1000.
    let count = refused(-1);
    assert!(count.abs_diff(1000) < 165, "{count}");
}

#[tokio::test]
async fn refused_response_has_a_retry_after() {
    let store = Arc::new(Store::default());
    store.replace(vec![EndpointSpec::new("a", ([10, 0, 0, 1], 8000))]);
    let dispatcher =
        super::dispatcher("plugins: [{type: probabilistic-admitter}]\n", &store, &State::default());
    // Nearly full: a full pool refuses such requests before any admitter is asked.
    let snapshot = store.snapshot();
    let load = snapshot.endpoints()[0].load();
    // However long this takes, they are fresh.
    load.waiting.set(4.5, u64::MAX);
    load.kv_usage.set(0.0, u64::MAX);
    for (priority, admitted) in [(-1, false), (0, true)] {
        let request = of_priority(priority);
        let result = dispatcher.enter(&Arc::new(request.clone()), &SubsetHint::Missing).decided().await;
        assert_eq!(result.is_ok(), admitted, "{priority}");
        if let Err(rejection) = result {
            assert_eq!(
                (rejection.code.status(), rejection.reason, rejection.retry_after),
                (429, Some("rejected-saturated"), Some(1))
            );
            assert!(rejection.body().contains("ResourceExhausted - request cannot be admitted: "));
        }
    }
    // A pool that is known to be idle takes everything.
    load.waiting.set(0.0, u64::MAX);
    let request = of_priority(-1);
    assert!(dispatcher.enter(&Arc::new(request.clone()), &SubsetHint::Missing).decided().await.is_ok());
}
