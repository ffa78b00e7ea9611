//! Saturation detectors against their formulas.

use std::time::Duration;

use proptest::prelude::*;
use usher::endpoints::{Candidates, InFlightId};
use usher::schedule::{
    ConcurrencyDetector, ConcurrencyDetectorParams, ConcurrencyMode, SaturationDetector, UtilizationDetector,
    UtilizationDetectorParams,
};

use crate::pool::filtered;
use crate::support::{NOW, Reading, candidates, fresh};

/// Waiting requests and KV usage of an endpoint.
type Numbers = (Reading, Reading);

const SOON: Duration = Duration::from_millis(200);

fn by_utilization(headroom: f64) -> UtilizationDetector {
    UtilizationDetector::new(UtilizationDetectorParams {
        queue_depth_threshold: 5.0,
        kv_cache_util_threshold: 0.8,
        metrics_staleness_threshold: SOON,
        headroom,
    })
}

fn saturation(detector: &dyn SaturationDetector, endpoints: &Candidates) -> f64 {
    detector.saturation(NOW, endpoints.view())
}

const OLD: Reading = Some((0.0, 201));

#[test]
fn utilization_is_the_mean_of_the_higher_ratios() {
    let table: [(&[Numbers], f64); 12] = [
        (&[], 1.0),
        (&[(fresh(0.0), fresh(0.0))], 0.0),
        (&[(fresh(5.0), fresh(0.0))], 1.0),
        (&[(fresh(10.0), fresh(0.4))], 2.0),
        (&[(fresh(1.0), fresh(0.8))], 1.0),
        (&[(fresh(2.5), fresh(0.2)), (fresh(0.0), fresh(0.8))], 0.75),
        (&[(Some((1.0, 200)), fresh(0.0))], 0.2),
        // Nothing is heard of it, or no longer: full.
        (&[(None, None)], 1.0),
        (&[(OLD, OLD), (fresh(0.0), fresh(0.0))], 0.5),
        (&[(OLD, fresh(1.0)), (fresh(f64::NAN), fresh(0.2))], (1.25 + 1.0) / 2.0),
        // An engine without this number.
        (&[(fresh(1.0), None)], 0.2),
        (&[(None, fresh(0.4))], 0.5),
    ];
    for (numbers, expected) in table {
        let got = saturation(&by_utilization(0.0), &candidates(numbers));
        assert!((got - expected).abs() < 1e-12, "{numbers:?}: {got}");
    }
}

#[test]
fn utilization_filter_keeps_unsaturated_endpoints_or_all() {
    let full = (fresh(9.0), fresh(0.9));
    let table: [(f64, &[Numbers], &[u32]); 8] = [
        (0.0, &[(fresh(5.0), fresh(0.0)), (fresh(4.0), fresh(0.5)), (fresh(0.0), fresh(0.8))], &[1]),
        (0.5, &[(fresh(7.0), fresh(1.0)), (fresh(7.5), fresh(0.0)), full], &[0]),
        (0.0, &[full, full], &[0, 1]),
        (0.0, &[(OLD, OLD), (fresh(0.0), fresh(0.0)), (None, None)], &[1]),
        (0.0, &[(OLD, fresh(0.0)), (None, fresh(0.0)), (fresh(0.0), None)], &[1, 2]),
        (0.0, &[(None, None), (OLD, OLD), full], &[0, 1, 2]),
        (0.0, &[full], &[0]),
        (0.0, &[], &[]),
    ];
    for (headroom, numbers, expected) in table {
        let kept = filtered(&by_utilization(headroom), &candidates(numbers));
        assert_eq!(kept, expected, "{numbers:?}");
    }
}

/// Endpoints with so many requests and tokens under way.
fn busy(counts: &[(u32, u32)]) -> (Candidates, InFlightId) {
    let id = InFlightId::new(1).unwrap();
    let endpoints = candidates(&vec![(None, None); counts.len()]);
    for (endpoint, (requests, tokens)) in endpoints.view().iter().zip(counts) {
        endpoint.load().in_flight_of(id).report(i64::from(*requests), i64::from(*tokens));
    }
    (endpoints, id)
}

fn by_concurrency(
    mode: ConcurrencyMode,
    max: (u32, u32),
    headroom: f64,
    id: InFlightId,
) -> ConcurrencyDetector {
    let params = ConcurrencyDetectorParams {
        max_concurrency: max.0.into(),
        concurrency_mode: mode,
        max_token_concurrency: max.1.into(),
        headroom,
        in_flight_load_producer_name: String::new(),
    };
    ConcurrencyDetector::new(&params, id)
}

#[test]
fn concurrency_is_in_flight_load_over_the_maximum() {
    use ConcurrencyMode::{Hybrid, Requests, Tokens};
    let table: [(ConcurrencyMode, &[(u32, u32)], f64); 10] = [
        (Requests, &[], 1.0),
        (Hybrid, &[], 1.0),
        (Requests, &[(0, 9999)], 0.0),
        (Requests, &[(10, 0), (0, 0)], 0.5),
        // Tenths that don't add up to 3 one by one.
        (Requests, &[(1, 0), (2, 0), (27, 0)], 1.0),
        (Requests, &[(25, 0), (5, 0)], 1.5),
        (Tokens, &[(99, 500), (0, 250)], 0.375),
        (Tokens, &[(0, 3000)], 3.0),
        (Hybrid, &[(10, 0), (0, 500)], 0.75),
        (Hybrid, &[(5, 2000), (20, 0), (0, 0)], 4.0 / 3.0),
    ];
    for (mode, counts, expected) in table {
        let (endpoints, id) = busy(counts);
        let got = saturation(&by_concurrency(mode, (10, 1000), 0.0, id), &endpoints);
        assert_eq!(got, expected, "{mode:?} {counts:?}");
    }
}

#[test]
fn concurrency_filter_keeps_only_unsaturated_endpoints() {
    use ConcurrencyMode::{Hybrid, Requests, Tokens};
    let table: [(ConcurrencyMode, f64, &[(u32, u32)], &[u32]); 7] = [
        (Requests, 0.0, &[(9, 5000), (10, 0), (11, 0)], &[0]),
        (Requests, 0.25, &[(11, 0), (12, 0), (13, 0)], &[0]),
        (Tokens, 0.0, &[(50, 999), (0, 1000)], &[0]),
        (Tokens, 0.5, &[(50, 1499), (0, 1500)], &[0]),
        (Hybrid, 0.0, &[(9, 999), (10, 0), (0, 1000), (0, 0)], &[0, 3]),
        (Requests, 0.0, &[(10, 0), (10, 0)], &[]),
        (Requests, 1e300, &[(4_000_000_000, 0)], &[0]),
    ];
    for (mode, headroom, counts, expected) in table {
        let (endpoints, id) = busy(counts);
        let kept = filtered(&by_concurrency(mode, (10, 1000), headroom, id), &endpoints);
        assert_eq!(kept, expected, "{mode:?} {counts:?}");
    }
}

#[test]
fn unseen_requests_count_as_waiting() {
    let detector = by_utilization(0.0);
    // Waiting and KV usage, requests that were sent since, and the saturation with them.
    let table: [(Numbers, u32, f64); 7] = [
        ((fresh(0.0), fresh(0.0)), 0, 0.0),
        ((fresh(0.0), fresh(0.0)), 3, 0.6),
        ((fresh(2.0), fresh(0.0)), 4, 1.2),
        ((fresh(0.0), fresh(0.8)), 3, 1.0),
        ((None, fresh(0.4)), 9, 0.5),
        ((OLD, OLD), 9, 1.0),
        ((None, None), 9, 1.0),
    ];
    for (numbers, sent, expected) in table {
        let endpoints = candidates(&[numbers]);
        let load = endpoints.view().get(0).load();
        let before = load.book();
        load.seen(load.sent());
        let bookings: Vec<_> = (0..sent).map(|_| load.book()).collect();
        let level = detector.level(NOW, endpoints.view());
        assert!((level.saturation - expected).abs() < 1e-12, "{numbers:?} {sent}: {}", level.saturation);
        assert_eq!((level.per_request, level.per_byte), (0.2, 0.0));
        drop((before, bookings));
    }
    assert_eq!(detector.level(NOW, candidates(&[]).view()).per_request, 0.0);
    let endpoints = candidates(&[(fresh(1.0), fresh(0.0)), (OLD, OLD), (None, None), (OLD, fresh(0.1))]);
    assert_eq!(detector.stale(NOW, endpoints.view()), Some(2));
}

#[test]
fn level_predicts_saturation_with_more_requests() {
    use ConcurrencyMode::{Hybrid, Requests, Tokens};
    // Mode, what is under way at two endpoints, and the level with three requests of 2,000
    // bytes together.
    let table: [(ConcurrencyMode, [(u32, u32); 2], f64); 4] = [
        (Requests, [(10, 0), (0, 0)], 13.0 / 20.0),
        (Tokens, [(99, 500), (0, 250)], 1250.0 / 2000.0),
        (Hybrid, [(10, 0), (0, 500)], 0.75 + 0.25),
        (Hybrid, [(0, 0), (0, 0)], 0.25),
    ];
    for (mode, counts, expected) in table {
        let (endpoints, id) = busy(&counts);
        let detector = by_concurrency(mode, (10, 1000), 0.0, id);
        let level = detector.level(NOW, endpoints.view());
        assert_eq!(level.saturation, saturation(&detector, &endpoints));
        assert!(
            (level.with(3, 2000) - expected).abs() < 1e-12,
            "{mode:?} {counts:?}: {}",
            level.with(3, 2000)
        );
        assert!(detector.is_live() && detector.stale(NOW, endpoints.view()).is_none());
    }
}

/// The formulas once more, in loops over plain numbers.
mod reference {
    use super::Numbers;
    use crate::support::Reading;

    /// `None`: the endpoint never said; `Some(None)`: it no longer says.
    fn heard(reading: Reading) -> Option<Option<f64>> {
        let (value, age) = reading?;
        Some(if age <= 200 && value.is_finite() { Some(value) } else { None })
    }

    pub(super) fn utilization(numbers: &[Numbers], queue: f64, kv: f64) -> f64 {
        if numbers.is_empty() {
            return 1.0;
        }
        let mut sum = 0.0;
        for (waiting, usage) in numbers {
            let mut larger = -1.0;
            for (reading, threshold) in [(waiting, queue), (usage, kv)] {
                match heard(*reading) {
                    None => {}
                    Some(None) => larger = f64::max(larger, 1.0),
                    Some(Some(value)) => larger = f64::max(larger, value / threshold),
                }
            }
            sum += if larger < 0.0 { 1.0 } else { larger };
        }
        sum / numbers.len() as f64
    }

    pub(super) fn with_room(numbers: &[Numbers], queue: f64, kv: f64) -> Vec<u32> {
        let mut kept = Vec::new();
        for (position, (waiting, usage)) in numbers.iter().enumerate() {
            let fits = |reading: Reading, limit: f64| match heard(reading) {
                None => true,
                Some(None) => false,
                Some(Some(value)) => value < limit,
            };
            let is_known = heard(*waiting).is_some() || heard(*usage).is_some();
            if is_known && fits(*waiting, queue) && fits(*usage, kv) {
                kept.push(position as u32);
            }
        }
        if kept.is_empty() { (0..numbers.len() as u32).collect() } else { kept }
    }

    pub(super) fn concurrency(mode: &str, counts: &[(u32, u32)], max: (u32, u32)) -> f64 {
        let n = counts.len() as f64;
        let (mut requests, mut tokens, mut ratios) = (0.0, 0.0, 0.0);
        for (r, t) in counts {
            requests += f64::from(*r);
            tokens += f64::from(*t);
            let (a, b) = (f64::from(*r) / f64::from(max.0), f64::from(*t) / f64::from(max.1));
            ratios += if a > b { a } else { b };
        }
        match mode {
            "requests" => requests / (n * f64::from(max.0)),
            "tokens" => tokens / (n * f64::from(max.1)),
            _ => ratios / n,
        }
    }

    pub(super) fn below(mode: &str, counts: &[(u32, u32)], max: (u32, u32), headroom: f64) -> Vec<u32> {
        let requests = (f64::from(max.0) * (1.0 + headroom)).floor();
        let tokens = (f64::from(max.1) * (1.0 + headroom)).floor();
        let mut kept = Vec::new();
        for (position, (r, t)) in counts.iter().enumerate() {
            let few = mode == "tokens" || f64::from(*r) < requests;
            let short = mode == "requests" || f64::from(*t) < tokens;
            if few && short {
                kept.push(position as u32);
            }
        }
        kept
    }
}

fn reading(values: impl Strategy<Value = f64>) -> impl Strategy<Value = Reading> {
    let value = prop_oneof![8 => values, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)];
    proptest::option::weighted(0.8, (value, prop_oneof![3 => Just(0u64), 1 => 195u64..206]))
}

proptest! {
    #[test]
    fn utilization_equals_its_reference(
        numbers in proptest::collection::vec((reading((0u32..12).prop_map(f64::from)), reading(0.0..1.0f64)), 0..20),
        (queue, kv, headroom) in (0.5..20.0f64, 0.05..1.0f64, 0.0..1.0f64),
    ) {
        let detector = UtilizationDetector::new(UtilizationDetectorParams {
            queue_depth_threshold: queue,
            kv_cache_util_threshold: kv,
            metrics_staleness_threshold: SOON,
            headroom,
        });
        let endpoints = candidates(&numbers);
        let expected = reference::utilization(&numbers, queue, kv);
        prop_assert!((saturation(&detector, &endpoints) - expected).abs() < 1e-9);
        let room = 1.0 + headroom;
        prop_assert_eq!(filtered(&detector, &endpoints), reference::with_room(&numbers, queue * room, kv * room));
    }

    #[test]
    fn concurrency_equals_its_reference(
        counts in proptest::collection::vec((0u32..30, 0u32..3000), 1..20),
        max in (1u32..20, 1u32..2000),
        headroom in 0.0..1.0f64,
    ) {
        let (endpoints, id) = busy(&counts);
        for (mode, name) in [
            (ConcurrencyMode::Requests, "requests"),
            (ConcurrencyMode::Tokens, "tokens"),
            (ConcurrencyMode::Hybrid, "hybrid"),
        ] {
            let detector = by_concurrency(mode, max, headroom, id);
            let expected = reference::concurrency(name, &counts, max);
            prop_assert!((saturation(&detector, &endpoints) - expected).abs() < 1e-9, "{}", name);
            prop_assert_eq!(filtered(&detector, &endpoints), reference::below(name, &counts, max, headroom));
        }
    }
}
