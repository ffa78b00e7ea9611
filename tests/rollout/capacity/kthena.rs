//! kthena's own table of recommendations, as facts: what comes in, what comes out. From
//! `pkg/autoscaler/algorithm/recommendation_test.go` and `revision_test.go`. Other tables of theirs are beside
//! what they are about: windows, limits, cost blocks, the ratio.
//!
//! Left out: targets of zero and of 1e-100, which are refused here, and what sums pods up before it is looked
//! at (volcano-sh/kthena#948).

use serde_json::{Value, json};
use usher::capacity::Condition;

use crate::capacity::support::{Group, desired};

/// A group that may go anywhere at once.
fn group(min: u32, max: u32, tolerance: u32, metrics: &str) -> Group {
    let free = "{instances: 1000000, percent: 1000, stabilization: 0s}";
    Group::new(&format!(
        "roles: {{a: {{min: {min}, max: {max}}}}}\n\
         total: {{metrics: [{metrics}], tolerancePercent: {tolerance}}}\n\
         behavior: {{scaleUp: {free}, scaleDown: {free}}}"
    ))
}

/// Ready pods with this number; null: without it.
fn ready(count: u32, value: impl Into<Value>) -> (&'static str, u32, bool, Value) {
    ("a", count, true, json!({"a": value.into()}))
}

fn unready(count: u32) -> (&'static str, u32, bool, Value) {
    ("a", count, false, json!({}))
}

#[test]
fn recommendations_by_pods() {
    let table = [
        // min, max, current, tolerance, pods, recommended; the target is 1
        (5, 10, 4, 10, vec![unready(4)], 5),
        // Theirs has no pods here. A maximum waits for a number.
        (5, 10, 11, 10, vec![ready(11, json!(1))], 10),
        (1, 100, 3, 0, vec![ready(1, json!(19.1)), ready(1, json!(3.1)), ready(1, json!(7.1))], 30),
        (5, 20, 10, 0, vec![ready(10, json!(0.1))], 5),
        (5, 20, 10, 0, vec![ready(10, json!(3.0))], 20),
        (1, 100, 9, 50, vec![ready(10, json!(0.51))], 9),
        (1, 100, 9, 50, vec![ready(10, json!(0.49))], 5),
        (1, 100, 9, 50, vec![ready(10, json!(1.49))], 9),
        (1, 100, 9, 50, vec![ready(10, json!(1.51))], 16),
        (1, 100, 58, 0, vec![unready(50), ready(8, json!(0.15))], 2),
        (1, 100, 18, 0, vec![unready(10), ready(8, json!(3.9))], 32),
        (1, 100, 58, 0, vec![unready(50), ready(8, json!(3.9))], 58),
        // Theirs has a target of 10 and ten times the numbers.
        (2, 20, 10, 0, vec![ready(5, json!(0.02)), ready(5, json!(null))], 6),
        (1, 100, 10, 0, vec![ready(2, json!(null)), ready(8, json!(0.5))], 6),
        (1, 100, 10, 0, vec![ready(2, json!(null)), ready(8, json!(2.9))], 24),
        (1, 100, 58, 0, vec![ready(50, json!(null)), ready(8, json!(2.9))], 58),
        (1, 100, 58, 0, vec![ready(4, json!(null)), ready(8, json!(2.9))], 58),
    ];
    for (min, max, current, tolerance, pods, expected) in table {
        let mut group = group(min, max, tolerance, "{name: a, target: 1}");
        let plan = group.tick(0, &json!({"a": current}), &pods, &json!({}));
        assert_eq!(desired(&plan), [expected], "{min} {max} {current} {tolerance} {pods:?}");
    }
}

#[test]
fn recommendations_by_several_metrics_and_by_none() {
    let three = "{name: a, target: 3}, {name: b, target: 5}, {name: c, target: 4}";
    let pods = [("a", 3, true, json!({"a": 6, "b": 500, "c": 20}))];
    let plan = group(1, 1_000_000, 0, three).tick(0, &json!({"a": 3}), &pods, &json!({}));
    assert_eq!(desired(&plan), [300]);
    let two = "{name: a, target: 0.5}, {name: b, target: 8}";
    let plan = group(5, 10, 10, two).tick(0, &json!({"a": 7}), &[unready(7)], &json!({}));
    assert_eq!((desired(&plan), plan.conditions), (vec![7], vec![Condition::StaleData]));
}

#[test]
fn recommendations_from_outside() {
    for (tolerance, value, expected) in [(51, 14.9, 10), (49, 14.9, 5), (51, 44.9, 10), (49, 44.9, 15)] {
        let plan = group(1, 100, tolerance, "{name: a, target: 3}").tick(
            0,
            &json!({"a": 10}),
            &[],
            &json!({"external": {"a": value}}),
        );
        assert_eq!(desired(&plan), [expected], "{tolerance} {value}");
    }
}
