//! Scorer and filter by a number that the configuration names.

use proptest::prelude::*;
use usher::config::Node;
use usher::endpoints::{AttributeId, Candidates, Reading as Named};
use usher::schedule::{
    EndpointAttributeFilter, EndpointAttributeFilterParams, EndpointAttributeScorer,
    EndpointAttributeScorerParams, Filter, Scorer,
};

use crate::support::{NOW, Reading, candidates, fresh, with_context};

const STALE: Reading = Some((0.5, 2001));

fn id() -> AttributeId {
    AttributeId::new(2).unwrap()
}

/// Endpoints with an attribute each.
fn endpoints(readings: &[Reading]) -> Candidates {
    let all = candidates(&vec![(None, None); readings.len()]);
    for (endpoint, reading) in all.view().iter().zip(readings) {
        if let Some((value, age)) = reading {
            endpoint.load().attribute(id()).set(*value, NOW - age);
        }
    }
    all
}

fn scorer(algorithm: &str) -> EndpointAttributeScorer {
    let text = format!("{{attributeKey: a, algorithm: {algorithm}}}");
    let params = EndpointAttributeScorerParams::decode(&Node::parse(&text).unwrap()).unwrap();
    EndpointAttributeScorer::new(Named::Attribute(id()), &params)
}

fn filter(rest: &str) -> EndpointAttributeFilter {
    let params =
        EndpointAttributeFilterParams::decode(&Node::parse(&format!("{{attribute: a, {rest}}}")).unwrap());
    EndpointAttributeFilter::new(Named::Attribute(id()), &params.unwrap())
}

fn scores(scorer: &dyn Scorer, candidates: &Candidates) -> Vec<f32> {
    let mut out = vec![0.0; candidates.len()];
    with_context(|cx| scorer.score(cx, candidates.view(), &mut out));
    out
}

fn kept(filter: &dyn Filter, candidates: &Candidates) -> Vec<u32> {
    let mut kept = candidates.indices().to_vec();
    with_context(|cx| filter.filter(cx, candidates.snapshot(), &mut kept, &mut rand::rng()));
    kept
}

#[test]
fn the_scorer_follows_its_formula() {
    let broken = [fresh(f64::NAN), fresh(f64::INFINITY), STALE, None];
    let old = Some((30.0, 2000));
    let adaptive = "{type: linear_higher_is_better}";
    let lower = "{type: linear_lower_is_better, normalization: {adaptiveRange: {}}}";
    let fixed = "{type: linear_higher_is_better, normalization: {fixedRange: {min: 10, max: 50}}}";
    let fixed_lower = "{type: linear_lower_is_better, normalization: {fixedRange: {max: 50}}}";
    let table: [(&str, &[Reading], &[f32]); 11] = [
        (adaptive, &[fresh(-10.0), fresh(0.0), old], &[0.0, 0.25, 1.0]),
        (lower, &[fresh(-10.0), fresh(0.0), old], &[1.0, 0.75, 0.0]),
        // Who has no number scores 0, and doesn't widen the range.
        (adaptive, &[fresh(1.0), None, fresh(3.0), STALE], &[0.0, 0.0, 1.0, 0.0]),
        (lower, &[fresh(1.0), None, fresh(3.0), STALE], &[1.0, 0.0, 0.0, 0.0]),
        (adaptive, &[fresh(7.0), fresh(7.0), None], &[1.0, 1.0, 0.0]),
        (lower, &[fresh(7.0)], &[1.0]),
        (lower, &broken, &[0.0; 4]),
        (fixed, &[fresh(10.0), fresh(20.0), fresh(90.0), fresh(-5.0), None], &[0.0, 0.25, 1.0, 0.0, 0.0]),
        (fixed_lower, &[fresh(0.0), fresh(40.0), fresh(60.0), None], &[1.0, 0.2, 0.0, 0.0]),
        (fixed, &broken, &[0.0; 4]),
        // Differences that no number is large enough for.
        (adaptive, &[fresh(f64::MIN), fresh(0.0), fresh(f64::MAX)], &[0.0, 0.5, 1.0]),
    ];
    for (algorithm, readings, expected) in table {
        assert_eq!(scores(&scorer(algorithm), &endpoints(readings)), expected, "{algorithm} {readings:?}");
    }
    assert!(scores(&scorer(adaptive), &endpoints(&[])).is_empty());
}

#[test]
fn large_close_numbers_are_distinguished() {
    let readings = [fresh(80e9), fresh(80e9 + 1.0), fresh(80e9 + 4.0)];
    let scores = scores(&scorer("{type: linear_higher_is_better}"), &endpoints(&readings));
    assert_eq!(scores, [0.0, 0.25, 1.0]);
}

#[test]
fn the_filter_compares() {
    let readings = [fresh(1.0), fresh(2.0), fresh(3.0), None, STALE, fresh(f64::NAN)];
    let missing = [3u32, 4, 5];
    let table: [(&str, &[u32]); 6] = [
        ("LessThan", &[0]),
        ("LessThanOrEqual", &[0, 1]),
        ("GreaterThan", &[2]),
        ("GreaterThanOrEqual", &[1, 2]),
        ("Equal", &[1]),
        ("NotEqual", &[0, 2]),
    ];
    let all = endpoints(&readings);
    for (operator, passing) in table {
        let algorithm =
            format!("algorithm: {{type: threshold, threshold: {{operator: {operator}, value: 2}}}}");
        let with_missing: Vec<u32> = passing.iter().chain(&missing).copied().collect();
        assert_eq!(kept(&filter(&algorithm), &all), with_missing, "{operator}");
        let strict = filter(&format!("onMissing: Fail, {algorithm}"));
        assert_eq!(kept(&strict, &all), passing, "{operator}");
    }
}

#[test]
fn filter_falls_back_only_when_configured() {
    let all = endpoints(&[fresh(1.0), None, fresh(2.0)]);
    let algorithm = "algorithm: {threshold: {operator: GreaterThan, value: 5}}";
    let table: [(&str, &[u32]); 4] = [
        ("onMissing: Fail", &[]),
        ("onMissing: Fail, fallbackOnEmpty: true", &[0, 1, 2]),
        ("fallbackOnEmpty: true", &[1]),
        ("onMissing: Pass, fallbackOnEmpty: false", &[1]),
    ];
    for (rest, expected) in table {
        assert_eq!(kept(&filter(&format!("{rest}, {algorithm}")), &all), expected, "{rest}");
    }
    let none = endpoints(&[]);
    assert!(kept(&filter(&format!("fallbackOnEmpty: true, {algorithm}")), &none).is_empty());
}

/// The formulas once more, in loops over plain numbers.
mod reference {
    use crate::support::{MAX_AGE, Reading};

    pub(super) struct Linear {
        pub(super) lower: bool,
        pub(super) fixed: Option<(f64, f64)>,
    }

    fn known(reading: &Reading) -> Option<f64> {
        match reading {
            Some((value, age)) if u128::from(*age) <= MAX_AGE.as_millis() && value.is_finite() => {
                Some(*value)
            }
            _ => None,
        }
    }

    pub(super) fn scores(readings: &[Reading], linear: &Linear) -> Vec<f64> {
        let mut known_values: Vec<f64> = readings.iter().filter_map(known).collect();
        known_values.sort_by(f64::total_cmp);
        let adaptive = known_values.first().copied().zip(known_values.last().copied());
        let mut scores = Vec::new();
        for reading in readings {
            let score = match (known(reading), linear.fixed.or(adaptive)) {
                (Some(_), Some((low, high))) if low == high => 1.0,
                (Some(value), Some((low, high))) => {
                    let place = if value < low {
                        0.0
                    } else if value > high {
                        1.0
                    } else {
                        (value - low) / (high - low)
                    };
                    if linear.lower { 1.0 - place } else { place }
                }
                _ => 0.0,
            };
            scores.push(score);
        }
        scores
    }

    pub(super) fn kept(readings: &[Reading], most: f64, pass_missing: bool, fall_back: bool) -> Vec<u32> {
        let mut kept = Vec::new();
        for (position, reading) in readings.iter().enumerate() {
            let passes = match known(reading) {
                Some(value) => value <= most,
                None => pass_missing,
            };
            if passes {
                kept.push(position as u32);
            }
        }
        if kept.is_empty() && fall_back {
            kept = (0..readings.len() as u32).collect();
        }
        kept
    }
}

fn readings() -> impl Strategy<Value = Vec<Reading>> {
    let value = prop_oneof![8 => (-20i32..20).prop_map(f64::from), 2 => -1e6..1e6f64, 1 => Just(f64::NAN)];
    let age = prop_oneof![3 => Just(0u64), 1 => 1990u64..2010];
    proptest::collection::vec(proptest::option::weighted(0.8, (value, age)), 0..30)
}

proptest! {
    #[test]
    fn the_scorer_equals_its_reference(
        readings in readings(),
        lower in any::<bool>(),
        fixed in proptest::option::of((-20.0..20.0f64, 0.001..30.0f64)),
    ) {
        let fixed = fixed.map(|(min, width)| (min, min + width));
        let direction = if lower { "lower" } else { "higher" };
        let range = fixed.map_or("adaptiveRange: {}".to_owned(), |(min, max)| format!("fixedRange: {{min: {min:?}, max: {max:?}}}"));
        let scorer = scorer(&format!("{{type: linear_{direction}_is_better, normalization: {{{range}}}}}"));
        let expected = reference::scores(&readings, &reference::Linear { lower, fixed });
        for (got, expected) in scores(&scorer, &endpoints(&readings)).into_iter().zip(expected) {
            prop_assert!((f64::from(got) - expected).abs() < 1e-6, "{got} {expected}");
        }
    }

    #[test]
    fn the_filter_equals_its_reference(
        readings in readings(),
        most in -25i32..25,
        pass_missing in any::<bool>(),
        fall_back in any::<bool>(),
    ) {
        let on_missing = if pass_missing { "Pass" } else { "Fail" };
        let rest = format!("onMissing: {on_missing}, fallbackOnEmpty: {fall_back}, algorithm: {{threshold: {{operator: LessThanOrEqual, value: {most}}}}}");
        let expected = reference::kept(&readings, f64::from(most), pass_missing, fall_back);
        prop_assert_eq!(kept(&filter(&rest), &endpoints(&readings)), expected);
    }
}
