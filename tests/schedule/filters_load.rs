//! Filters by what endpoints are doing.

use proptest::prelude::*;
use usher::endpoints::{Candidates, InFlightId};
use usher::registry::Use;
use usher::schedule::{Condition, Metric, State, UtilizationFilter, UtilizationFilterParams};

use crate::pool::{Pool, asking, filtered, labelled, pipeline, profile_of};
use crate::support::{MAX_AGE, NOW, Reading, candidates, fresh};

/// Waiting, KV usage, running, and active requests.
type Numbers = (Reading, Reading, Reading, u32);

const ID: usize = 2;

fn endpoints(numbers: &[Numbers]) -> Candidates {
    let both: Vec<_> = numbers.iter().map(|(waiting, kv, ..)| (*waiting, *kv)).collect();
    let endpoints = candidates(&both);
    for (endpoint, (_, _, running, active)) in endpoints.view().iter().zip(numbers) {
        if let Some((value, age)) = running {
            endpoint.load().running.set(*value, NOW - age);
        }
        endpoint.load().in_flight_of(InFlightId::new(ID).unwrap()).report(i64::from(*active), 0);
    }
    endpoints
}

fn filter(conditions: &[(Metric, f64)], fallback_on_empty: bool) -> UtilizationFilter {
    let condition =
        |(metric, max_value): &(Metric, f64)| Condition { metric: *metric, max_value: *max_value };
    let params = UtilizationFilterParams {
        conditions: conditions.iter().map(condition).collect(),
        fallback_on_empty,
        in_flight_load_producer_name: String::new(),
    };
    UtilizationFilter::new(&params, InFlightId::new(ID))
}

#[test]
fn all_limits_have_to_hold() {
    use Metric::{ActiveRequests, KvCacheUtilization, RunningRequests, WaitingQueue};
    let stale = Some((0.0, 2001));
    let row = |waiting, kv, running, active| (fresh(waiting), fresh(kv), fresh(running), active);
    let pool = [row(0.0, 0.9, 4.0, 7), row(3.0, 0.5, 5.0, 2), row(9.0, 0.1, 6.0, 0)];
    let table: [(&[Numbers], &[(Metric, f64)], &[u32]); 12] = [
        (&pool, &[(WaitingQueue, 3.0)], &[0, 1]),
        (&pool, &[(WaitingQueue, 2.9)], &[0]),
        (&pool, &[(KvCacheUtilization, 0.5)], &[1, 2]),
        (&pool, &[(RunningRequests, 4.5)], &[0]),
        (&pool, &[(ActiveRequests, 2.0)], &[1, 2]),
        (&pool, &[(WaitingQueue, 3.0), (KvCacheUtilization, 0.5)], &[1]),
        (&pool, &[(WaitingQueue, 0.0), (ActiveRequests, 1.0)], &[]),
        // Two limits of one number: both count.
        (&pool, &[(WaitingQueue, 9.0), (WaitingQueue, 3.0)], &[0, 1]),
        // What is not known counts as the worst of what is.
        (
            &[row(1.0, 0.0, 0.0, 0), (None, None, None, 0), (stale, None, None, 0)],
            &[(WaitingQueue, 1.0)],
            &[0, 1, 2],
        ),
        (
            &[row(1.0, 0.0, 0.0, 0), row(2.0, 0.0, 0.0, 0), (stale, None, None, 0)],
            &[(WaitingQueue, 1.0)],
            &[0],
        ),
        (&[(None, None, None, 0), (stale, None, None, 0)], &[(WaitingQueue, 0.0)], &[0, 1]),
        (&[(fresh(f64::NAN), None, None, 0), row(5.0, 0.0, 0.0, 0)], &[(WaitingQueue, 4.0)], &[]),
    ];
    for (numbers, conditions, expected) in table {
        assert_eq!(filtered(&filter(conditions, false), &endpoints(numbers)), expected, "{conditions:?}");
        let or_all: Vec<u32> =
            if expected.is_empty() { (0..).take(numbers.len()).collect() } else { expected.into() };
        assert_eq!(filtered(&filter(conditions, true), &endpoints(numbers)), or_all, "{conditions:?}");
    }
}

/// The rule once more, in loops over plain numbers.
fn reference(numbers: &[Numbers], conditions: &[(Metric, f64)]) -> Vec<u32> {
    let known = |numbers: &Numbers, metric: Metric| {
        let reading = match metric {
            Metric::WaitingQueue => numbers.0,
            Metric::KvCacheUtilization => numbers.1,
            Metric::RunningRequests => numbers.2,
            Metric::ActiveRequests => return Some(f64::from(numbers.3)),
        };
        let (value, age) = reading?;
        (u128::from(age) <= MAX_AGE.as_millis() && value.is_finite()).then_some(value)
    };
    let mut kept = Vec::new();
    for position in 0..numbers.len() {
        let mut fits = true;
        for (metric, max) in conditions {
            let mut value = known(&numbers[position], *metric);
            if value.is_none() {
                for other in numbers {
                    if let Some(other) = known(other, *metric) {
                        value = Some(value.unwrap_or(other).max(other));
                    }
                }
            }
            if let Some(value) = value {
                fits &= value <= *max;
            }
        }
        if fits {
            kept.push(position as u32);
        }
    }
    kept
}

fn reading(values: impl Strategy<Value = f64>) -> impl Strategy<Value = Reading> {
    let value = prop_oneof![8 => values, 1 => Just(f64::NAN)];
    proptest::option::weighted(0.8, (value, prop_oneof![3 => Just(0u64), 1 => 1995u64..2006]))
}

fn whole() -> impl Strategy<Value = f64> {
    (0u32..6).prop_map(f64::from)
}

proptest! {
    #[test]
    fn the_filter_equals_its_reference(
        numbers in proptest::collection::vec((reading(whole()), reading(0.0..1.0f64), reading(whole()), 0u32..6), 1..16),
        conditions in proptest::collection::vec(
            prop_oneof![
                (Just(Metric::WaitingQueue), whole()),
                (Just(Metric::KvCacheUtilization), 0.0..1.0f64),
                (Just(Metric::RunningRequests), whole()),
                (Just(Metric::ActiveRequests), whole()),
            ],
            1..5,
        ),
    ) {
        let expected = reference(&numbers, &conditions);
        let all: Vec<u32> = (0..).take(numbers.len()).collect();
        let or_all = if expected.is_empty() { &all } else { &expected };
        prop_assert_eq!(&filtered(&filter(&conditions, true), &endpoints(&numbers)), or_all);
        prop_assert_eq!(filtered(&filter(&conditions, false), &endpoints(&numbers)), expected);
    }
}

#[test]
fn active_requests_are_counted_when_they_are_limited() {
    let config = profile_of(&[
        "type: utilization-filter, parameters: {conditions: [{metric: active-requests, maxValue: 1}]}",
    ]);
    let pool = Pool::new(&config, labelled(&[&[], &[]]));
    let request = asking(&[]);
    let under_way: Vec<_> = (0..4).map(|_| pool.route(&request).unwrap()).collect();
    assert_eq!(pool.kept(&request), [0u32; 0], "two at each");
    drop(under_way);
    assert_eq!(pool.kept(&request), [0, 1]);

    let of_waiting = profile_of(&[
        "type: utilization-filter, parameters: {conditions: [{metric: waiting-queue, maxValue: 1}]}",
    ]);
    let built = pipeline(&of_waiting, &State::default()).unwrap();
    assert!(built.resolved.plugins.iter().all(|plugin| plugin.plugin_type != "inflight-load-producer"));
}

#[test]
fn detector_filters_in_profiles_that_name_it() {
    let config = profile_of(&["type: concurrency-detector, parameters: {maxConcurrency: 2}"]);
    let pool = Pool::new(&config, labelled(&[&[], &[]]));
    let request = asking(&[]);
    let mut under_way: Vec<_> = (0..4).map(|_| pool.route(&request).unwrap()).collect();
    assert_eq!(pool.kept(&request), [0u32; 0], "both are full, and it doesn't fail open");
    let freed = under_way.pop().unwrap().decision().primary().picks[0];
    assert_eq!(pool.kept(&request), [freed]);

    let hour = "metricsStalenessThreshold: 1h";
    let config = profile_of(&[&format!("type: utilization-detector, parameters: {{{hour}}}")]);
    let pool = Pool::new(&config, labelled(&[&[], &[]]));
    assert_eq!(pool.kept(&request), [0, 1], "nothing is known: it fails open");
    for (position, waiting) in [(0, 9.0), (1, 1.0)] {
        let (load, now) = pool.load(position);
        load.waiting.set(waiting, now);
    }
    assert_eq!(pool.kept(&request), [1]);
}

#[test]
fn the_implied_profile_filters_with_every_declared_filter() {
    let config = "
plugins:
- {name: sat, type: utilization-detector}
- {type: queue-scorer}
- {type: decode-filter}
- {type: concurrency-detector}
- {type: label-selector-filter, parameters: {matchLabels: {tier: gold}}}
";
    let built = pipeline(config, &State::default()).unwrap();
    let filters = ["sat", "decode-filter", "concurrency-detector", "label-selector-filter"];
    assert_eq!(built.resolved.profiles[0].filters, filters);
    assert!(built.stages.books(), "one of them reads what is under way");
    assert_eq!(
        built.resolved.saturation_detector,
        Use { plugin: "utilization-detector".into(), defaulted: true }
    );

    // The detector that the defaults add is nobody's filter.
    let built = pipeline("plugins: [{type: queue-scorer}]\n", &State::default()).unwrap();
    assert!(built.resolved.profiles[0].filters.is_empty());
    assert!(!built.stages.books());
}

#[test]
fn detector_outside_profiles_needs_no_atomic_booking() {
    let config = "
plugins: [{type: queue-scorer}, {type: concurrency-detector}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
";
    let built = pipeline(config, &State::default()).unwrap();
    assert!(!built.stages.books());
    assert!(built.resolved.plugins.iter().any(|plugin| plugin.plugin_type == "inflight-load-producer"));
}
