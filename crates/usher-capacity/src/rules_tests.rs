//! Tables for rules; llm-d-router has none for its evaluator.

use super::*;
use crate::inputs::{Pod, PodState};

const S: fn(u64) -> Duration = Duration::from_secs;

fn amount(value: f64) -> Amount {
    Amount::of(value).unwrap()
}

fn rule(comparator: Comparator, threshold: f64, step: i32) -> Rule {
    Rule {
        name: format!("{comparator:?} {threshold}"),
        role: 0,
        number: RuleMetric::OfPods { signal: 0, aggregation: Aggregation::Avg, coverage: 0 },
        test: RuleTest::Compare { comparator, threshold: amount(threshold), step },
        cooldown: S(300),
        range: Range { min: 1, max: 5 },
        clamps: false,
    }
}

fn pods(values: &[f64]) -> Inputs {
    let pods = values
        .iter()
        .map(|value| Pod { role: 0, is_ready: true, state: PodState::default(), values: [*value].into() })
        .collect();
    Inputs { pods, ..Inputs::default() }
}

/// Size after rules, and the outcome of each.
fn apply_to(rules: &[Rule], size: u32, inputs: &Inputs) -> (u32, Vec<RuleOutcome>) {
    let mut sizes = [size];
    let ruled = apply(rules, inputs, &mut sizes, &Cooldowns::default(), S(0));
    (sizes[0], ruled.stages.iter().map(|stage| stage.outcome).collect())
}

#[test]
fn rules_compare_values_and_apply_steps() {
    use Comparator::*;
    use RuleOutcome::{Bound, Fired, Quiet};
    let table = [
        (GreaterThan, 5.0, 1, 5.1, 3, 4, Fired),
        (GreaterThan, 5.0, 1, 5.0, 3, 3, Quiet),
        (GreaterThanOrEqual, 5.0, 1, 5.0, 3, 4, Fired),
        (GreaterThanOrEqual, 5.0, 1, 4.9, 3, 3, Quiet),
        (LessThan, 1.0, -1, 0.9, 3, 2, Fired),
        (LessThan, 1.0, -1, 1.0, 3, 3, Quiet),
        (LessThanOrEqual, 1.0, -1, 1.0, 3, 2, Fired),
        (LessThanOrEqual, 1.0, -1, 1.1, 3, 3, Quiet),
        (GreaterThan, 5.0, 2, 9.0, 3, 5, Fired),
        // Not clamped: 3 with step 4 and at most 5 stays 3.
        (GreaterThan, 5.0, 4, 9.0, 3, 3, Bound),
        (GreaterThan, 5.0, 1, 9.0, 5, 5, Bound),
        (LessThan, 1.0, -2, 0.0, 2, 2, Bound),
        (LessThan, 1.0, -9, 0.0, 3, 3, Bound),
        // A warning elsewhere, and what it says here.
        (GreaterThan, 5.0, -1, 9.0, 3, 2, Fired),
    ];
    for (comparator, threshold, step, value, size, expected, outcome) in table {
        let result = apply_to(&[rule(comparator, threshold, step)], size, &pods(&[value]));
        assert_eq!(result, (expected, vec![outcome]), "{comparator:?} {threshold} {step} {value} {size}");
    }
}

#[test]
fn clamped_step_stops_at_the_bound() {
    use RuleOutcome::{Bound, Fired};
    let table = [
        (4, 3, 5, Fired),
        (4, 5, 5, Bound),
        (-9, 3, 1, Fired),
        (-1, 1, 1, Bound),
        (2, 7, 7, Bound),
        (-2, 0, 0, Bound),
    ];
    for (step, size, expected, outcome) in table {
        let clamps = Rule { clamps: true, ..rule(Comparator::GreaterThan, 0.0, step) };
        assert_eq!(apply_to(&[clamps], size, &pods(&[1.0])), (expected, vec![outcome]), "{step} {size}");
    }
}

#[test]
fn the_pair_of_thresholds_works_in_both_directions() {
    use RuleOutcome::{Fired, Quiet};
    let (min, max) = (Some(amount(1.0)), Some(amount(5.0)));
    let table = [
        (min, max, 0.9, 1, Fired),
        (min, max, 1.0, 3, Quiet),
        (min, max, 5.0, 3, Quiet),
        (min, max, 5.1, 5, Fired),
        (None, max, 0.0, 3, Quiet),
        (min, None, 9.0, 3, Quiet),
    ];
    for (min, max, value, expected, outcome) in table {
        let pair = Rule { test: RuleTest::Range { min, max, step: 2 }, ..rule(Comparator::LessThan, 0.0, 1) };
        assert_eq!(
            apply_to(&[pair], 3, &pods(&[value])),
            (expected, vec![outcome]),
            "{min:?} {max:?} {value}"
        );
    }
}

#[test]
fn values_of_several_pods_are_aggregated() {
    let of = |aggregation, coverage| {
        let number = RuleMetric::OfPods { signal: 0, aggregation, coverage };
        Rule { number, ..rule(Comparator::GreaterThan, 1e9, 1) }
    };
    let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
    let nan = f64::NAN;
    let table: [(Rule, &[f64], Option<f64>, RuleOutcome); 9] = [
        (of(Aggregation::Avg, 0), &[1.0, 2.0], Some(1.5), RuleOutcome::Quiet),
        (of(Aggregation::Sum, 0), &[1.0, 2.0], Some(3.0), RuleOutcome::Quiet),
        (of(Aggregation::Max, 0), &[1.0, 7.0, 2.0], Some(7.0), RuleOutcome::Quiet),
        (of(Aggregation::P95, 0), &twenty, Some(19.0), RuleOutcome::Quiet),
        (of(Aggregation::P95, 0), &[3.0], Some(3.0), RuleOutcome::Quiet),
        (of(Aggregation::Avg, 0), &[1.0, nan], Some(1.0), RuleOutcome::Quiet),
        (of(Aggregation::Avg, 500_000_000), &[1.0, nan], Some(1.0), RuleOutcome::Quiet),
        (of(Aggregation::Avg, 500_000_001), &[1.0, nan], None, RuleOutcome::Coverage),
        (of(Aggregation::Avg, 0), &[nan], None, RuleOutcome::NoData),
    ];
    for (rule, values, value, outcome) in table {
        let ruled = apply(&[rule], &pods(values), &mut [3], &Cooldowns::default(), S(0));
        assert_eq!((ruled.stages[0].value, ruled.stages[0].outcome), (value, outcome), "{values:?}");
    }
    let mut unready = pods(&[1.0, 9.0]);
    unready.pods[1].is_ready = false;
    let ruled = apply(&[of(Aggregation::Sum, 0)], &unready, &mut [3], &Cooldowns::default(), S(0));
    assert_eq!(ruled.stages[0].value, Some(1.0));
}

#[test]
fn rules_use_waiting_requests_and_query_values() {
    let waiting = Rule { number: RuleMetric::Waiting, ..rule(Comparator::GreaterThan, 3.0, 1) };
    let mut inputs = Inputs { waiting: 4, ..Inputs::default() };
    assert_eq!(apply_to(std::slice::from_ref(&waiting), 1, &inputs), (2, vec![RuleOutcome::Fired]));
    let query =
        Rule { number: RuleMetric::External("q".to_owned()), ..rule(Comparator::GreaterThan, 3.0, 1) };
    assert_eq!(apply_to(std::slice::from_ref(&query), 1, &inputs), (1, vec![RuleOutcome::NoData]));
    inputs.external.insert("q".to_owned(), f64::NAN);
    assert_eq!(apply_to(std::slice::from_ref(&query), 1, &inputs), (1, vec![RuleOutcome::NoData]));
    inputs.external.insert("q".to_owned(), 3.5);
    assert_eq!(apply_to(std::slice::from_ref(&query), 1, &inputs), (2, vec![RuleOutcome::Fired]));
}

#[test]
fn one_rule_fires_for_a_role_and_up_wins() {
    use RuleOutcome::{Bound, Fired, Lost};
    let (up, more) = (rule(Comparator::GreaterThan, 0.0, 1), rule(Comparator::GreaterThan, 1.0, 2));
    let (down, far) = (rule(Comparator::LessThan, 99.0, -1), rule(Comparator::GreaterThan, 2.0, 9));
    let table = [
        (vec![up.clone(), more.clone()], 3, 4, vec![Fired, Lost]),
        (vec![more.clone(), up.clone()], 3, 5, vec![Fired, Lost]),
        (vec![down.clone(), up.clone()], 3, 4, vec![Lost, Fired]),
        // What is out of bounds doesn't fire, and the next one may.
        (vec![far.clone(), up.clone()], 3, 4, vec![Bound, Fired]),
        (vec![far.clone(), down.clone()], 3, 2, vec![Bound, Fired]),
    ];
    for (rules, size, expected, outcomes) in table {
        assert_eq!(apply_to(&rules, size, &pods(&[9.0])), (expected, outcomes));
    }
    let other = Rule { role: 1, number: RuleMetric::Waiting, ..rule(Comparator::GreaterThanOrEqual, 0.0, 1) };
    let mut sizes = [3, 1];
    let ruled = apply(&[up, other], &pods(&[9.0]), &mut sizes, &Cooldowns::default(), S(0));
    assert_eq!((sizes, ruled.fired), ([4, 2], vec![0, 1]), "roles don't compete");
}

#[test]
fn rule_does_not_fire_during_its_cooldown() {
    let rules = [rule(Comparator::GreaterThan, 5.0, 1)];
    let mut cooldowns = Cooldowns::default();
    cooldowns.start(0, S(100));
    for (now, outcome) in
        [(101, RuleOutcome::Cooldown), (399, RuleOutcome::Cooldown), (400, RuleOutcome::Fired)]
    {
        let ruled = apply(&rules, &pods(&[9.0]), &mut [3], &cooldowns, S(now));
        assert_eq!(ruled.stages[0].outcome, outcome, "{now}");
    }
    assert_eq!(cooldowns.last(0), Some(S(100)));
    // A quiet rule says so, whether it rests or not.
    let ruled = apply(&rules, &pods(&[1.0]), &mut [3], &cooldowns, S(101));
    assert_eq!(ruled.stages[0].outcome, RuleOutcome::Quiet);
}

#[test]
fn scale_down_needs_the_numbers_of_all_pods() {
    let nan = f64::NAN;
    let down = rule(Comparator::LessThan, 1.0, -1);
    let covered = |coverage| Rule {
        number: RuleMetric::OfPods { signal: 0, aggregation: Aggregation::Avg, coverage },
        ..down.clone()
    };
    let up = rule(Comparator::GreaterThan, 5.0, 1);
    // Nine of ten are too busy to say anything.
    let few = pods(&[0.0, nan, nan, nan, nan, nan, nan, nan, nan, nan]);
    let table: [(&[Rule], _, &[RuleOutcome]); 3] = [
        (std::slice::from_ref(&down), 3, &[RuleOutcome::Coverage]),
        (&[covered(100_000_000)], 2, &[RuleOutcome::Fired]),
        (&[covered(100_000_001)], 3, &[RuleOutcome::Coverage]),
    ];
    for (rules, size, outcomes) in table {
        assert_eq!(apply_to(rules, 3, &few), (size, outcomes.to_vec()));
    }
    assert_eq!(apply_to(std::slice::from_ref(&down), 3, &pods(&[0.0, 0.0])).0, 2);
    assert_eq!(apply_to(&[up], 3, &pods(&[9.0, nan])).0, 4, "growing takes one that says so");
}

#[test]
fn missing_scale_up_number_prevents_scale_down() {
    let down = rule(Comparator::LessThan, 1.0, -1);
    let up =
        Rule { number: RuleMetric::External("backlog".to_owned()), ..rule(Comparator::GreaterThan, 5.0, 1) };
    let of_another = Rule { role: 1, ..up.clone() };
    let mut inputs = pods(&[0.0]);
    let rules = [down.clone(), up];
    assert_eq!(apply_to(&rules, 3, &inputs), (3, vec![RuleOutcome::NoData, RuleOutcome::NoData]));
    assert_eq!(apply_to(&[down, of_another], 3, &inputs).0, 2);
    inputs.external.insert("backlog".to_owned(), 0.0);
    assert_eq!(apply_to(&rules, 3, &inputs), (2, vec![RuleOutcome::Fired, RuleOutcome::Quiet]));
}

#[test]
fn an_empty_queue_removes_no_pod_before_all_requests_are_known() {
    let down = Rule { number: RuleMetric::Waiting, ..rule(Comparator::LessThan, 1.0, -1) };
    let settling = Inputs { is_settling: true, ..Inputs::default() };
    assert_eq!(apply_to(std::slice::from_ref(&down), 3, &settling), (3, vec![RuleOutcome::NoData]));
    let up = Rule {
        test: RuleTest::Compare { comparator: Comparator::GreaterThan, threshold: amount(5.0), step: 1 },
        ..down.clone()
    };
    assert_eq!(apply_to(&[up], 3, &Inputs { waiting: 9, ..settling }).0, 4);
    assert_eq!(apply_to(&[down], 3, &Inputs::default()).0, 2);
}
