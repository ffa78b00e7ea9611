//! The size of a group of one role.

use crate::capacity::support::{Group, desired};
use serde_json::json;
use usher::capacity::{Condition, Reason, State};

const ONE: &str = "roles: {a: {min: 1, max: 20}}\ntotal: {metrics: [{name: queue_depth, target: 4}, {name: kv, target: 0.5}]}\nbehavior: {scaleDown: {stabilization: 0s}}";

#[test]
fn largest_recommendation_of_the_metrics_counts() {
    let mut group = Group::new(ONE);
    let pods = |queue: f64, kv: f64| [("a", 4, true, json!({"queue_depth": queue, "kv": kv}))];
    let plan = group.tick(0, &json!({"a": 4}), &pods(6.0, 0.5), &json!({}));
    assert_eq!((desired(&plan), plan.total, plan.state), (vec![6], 6, State::Scale));
    assert_eq!(plan.roles[0].reasons, [Reason::Metric, Reason::Cost]);
    let asks: Vec<_> = plan.stages.metrics.iter().map(|metric| metric.asks).collect();
    assert_eq!(asks, [Some(6), Some(4)]);
    let mut group = Group::new(ONE);
    let plan = group.tick(0, &json!({"a": 4}), &pods(4.4, 0.55), &json!({}));
    assert_eq!((desired(&plan), plan.state), (vec![4], State::Idle), "exactly at the tolerance");
    assert_eq!(plan.roles[0].reasons, [Reason::Tolerance, Reason::Cost]);
    let plan = group.tick(15, &json!({"a": 4}), &pods(0.0, 0.0), &json!({}));
    assert_eq!(desired(&plan), [1], "no fewer than its minimum");
}

#[test]
fn bounds_come_before_metrics() {
    let mut group =
        Group::new("roles: {a: {min: 3, max: 6}}\ntotal: {metrics: [{name: queue_depth, target: 4}]}");
    let plan = group.tick(0, &json!({"a": 1}), &[], &json!({}));
    assert_eq!((desired(&plan), plan.conditions.is_empty()), (vec![3], true));
    assert_eq!(plan.roles[0].reasons[0], Reason::Min);
    let metrics = json!({"queue_depth": 9});
    let plan = group.tick(15, &json!({"a": 9}), &[("a", 9, true, metrics)], &json!({}));
    assert_eq!((desired(&plan), plan.roles[0].reasons[0]), (vec![6], Reason::Max));
}

#[test]
fn without_a_fresh_metric_the_size_stays() {
    let mut group = Group::new(ONE);
    for metrics in [json!({}), json!({"queue_depth": null, "kv": null})] {
        let plan = group.tick(0, &json!({"a": 5}), &[("a", 5, true, metrics)], &json!({}));
        assert_eq!((desired(&plan), plan.state), (vec![5], State::Idle));
        assert_eq!(plan.conditions, [Condition::StaleData]);
    }
    // One of them is enough.
    let plan = group.tick(30, &json!({"a": 5}), &[("a", 5, true, json!({"kv": 1.0}))], &json!({}));
    assert_eq!((desired(&plan), plan.conditions), (vec![10], vec![]));
}

#[test]
fn numbers_from_outside_size_a_group_without_pods() {
    let mut group = Group::new("roles: {a: {min: 0, max: 20}}\ntotal: {metrics: [{name: rps, target: 10}]}");
    let none = group.tick(0, &json!({"a": 0}), &[], &json!({}));
    assert_eq!((desired(&none), none.conditions), (vec![0], vec![Condition::StaleData]));
    let plan = group.tick(15, &json!({"a": 0}), &[], &json!({"external": {"rps": 25}}));
    assert_eq!(desired(&plan), [3]);
    let plan = group.tick(30, &json!({"a": 10}), &[], &json!({"external": {"rps": 105}}));
    assert_eq!(desired(&plan), [10], "the tolerance is about the group, not about one pod");
}

#[test]
fn waiting_requests_start_at_least_one_pod() {
    let spec = "roles: {a: {max: 20}}\ntotal: {metrics: [{name: queue_depth, target: 4}]}\nbehavior: {scaleDown: {stabilization: 0s}}";
    let mut group = Group::new(spec);
    let plan = group.tick(0, &json!({"a": 0}), &[], &json!({}));
    assert_eq!((desired(&plan), plan.state, plan.conditions), (vec![0], State::Idle, vec![]));
    let plan = group.tick(15, &json!({"a": 0}), &[], &json!({"waiting": 10}));
    assert_eq!(desired(&plan), [3]);
    // While they start, what waits asks for no fewer.
    let plan = group.tick(30, &json!({"a": 3}), &[("a", 3, false, json!({}))], &json!({"waiting": 2}));
    assert_eq!(desired(&plan), [3]);
    let mut group = Group::new("roles: {a: {max: 3}}\ntotal: {metrics: [{name: kv, target: 4}]}");
    let plan = group.tick(0, &json!({"a": 0}), &[], &json!({"waiting": 1}));
    assert_eq!((desired(&plan), plan.conditions), (vec![1], vec![Condition::StaleData]));
    assert!(plan.roles[0].reasons.contains(&Reason::Waiting));
}

/// Sizes don't change back and forth under any constant load.
#[test]
fn a_constant_load_settles() {
    for load in 0..80u32 {
        let mut group = Group::new(ONE);
        let (mut size, mut sizes) = (4, Vec::new());
        for tick in 0..60 {
            let queue = f64::from(load) / f64::from(size);
            let pods = [("a", size, true, json!({"queue_depth": queue}))];
            let plan = group.tick(tick * 15, &json!({"a": size}), &pods, &json!({}));
            size = plan.roles[0].desired;
            sizes.push(size);
        }
        let changes = sizes.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let turns = sizes
            .windows(3)
            .filter(|w| (w[0] < w[1]) != (w[1] <= w[2]) && w[0] != w[1] && w[1] != w[2])
            .count();
        assert!(turns == 0 && changes <= 20, "{load}: {sizes:?}");
        assert!(sizes[40..].iter().all(|size| *size == sizes[59]), "{load}: {sizes:?}");
    }
}

/// A bound or limit that held a size is among its reasons, and one that did not is not.
#[test]
fn bound_is_the_reason_where_it_overrides_a_limit() {
    use Reason::{Cost, DownLimit, Max, Metric, Min, Tolerance, Waiting};
    let spec = "roles: {a: {min: 8, max: 9}}\ntotal: {metrics: [{name: queue_depth, target: 4}]}\nbehavior: {scaleDown: {instances: 1, percent: 0}}";
    for (current, expected, reasons) in
        [(1, 8, vec![Min, Cost]), (30, 9, vec![Max, Cost]), (9, 8, vec![Metric, Min, Cost])]
    {
        let plan = Group::new(spec).tick(
            0,
            &json!({"a": current}),
            &[("a", current, true, json!({"queue_depth": 0}))],
            &json!({}),
        );
        assert_eq!((desired(&plan), plan.roles[0].reasons.clone()), (vec![expected], reasons), "{current}");
    }
    let plan = Group::new(&spec.replace("min: 8", "min: 1")).tick(
        0,
        &json!({"a": 9}),
        &[("a", 9, true, json!({"queue_depth": 0}))],
        &json!({}),
    );
    assert_eq!(
        (desired(&plan), plan.roles[0].reasons.clone()),
        (vec![8], vec![Metric, Min, DownLimit, Cost])
    );
    // Nothing runs, and a request waits: that alone keeps the last pod.
    let spec = "roles: {a: {max: 9}}\ntotal: {metrics: [{name: running, target: 4}]}\nbehavior: {scaleDown: {stabilization: 0s}}";
    for (current, reasons) in [(1, vec![Metric, Waiting, Cost]), (3, vec![Metric, Waiting, Cost])] {
        let idle = [("a", current, true, json!({"running": 0}))];
        let plan = Group::new(spec).tick(0, &json!({"a": current}), &idle, &json!({"waiting": 1}));
        assert_eq!((desired(&plan), plan.roles[0].reasons.clone()), (vec![1], reasons), "{current}");
    }
    let plan = Group::new(spec).tick(0, &json!({"a": 0}), &[], &json!({"external": {"running": 0}}));
    assert_eq!((desired(&plan), plan.roles[0].reasons.clone()), (vec![0], vec![Tolerance, Cost]));
}

/// The numbers are gone; what they said before was that far more pods are needed.
#[test]
fn panic_outlasts_lost_numbers() {
    let spec = "roles: {d: {min: 1, max: 50}, p: {min: 1, max: 50}}\ntotal: {metrics: [{name: load, target: 1}]}\n\
        behavior: {scaleUp: {panic: {thresholdPercent: 200, percent: 1000, period: 60s, hold: 60s}}, scaleDown: {stabilization: 0s}}\n\
        coordination: {mode: Preferred, alpha: 0.75, pressure: {d: [{metric: q, target: 1}], p: [{metric: q, target: 1}]}}";
    let mut group = Group::new(spec);
    let pods = [("d", 2, true, json!({"q": 1})), ("p", 2, true, json!({"q": 9}))];
    let plan = group.tick(0, &json!({"d": 2, "p": 2}), &pods, &json!({"external": {"load": 20}}));
    assert_eq!((plan.total, plan.conditions.clone()), (20, vec![Condition::Panic]));
    let there = json!({"d": plan.roles[0].desired, "p": plan.roles[1].desired});
    let lost = group.tick(15, &there, &pods, &json!({"external": {"load": null}}));
    assert_eq!(lost.conditions, [Condition::StaleData, Condition::Panic]);
    assert_eq!((desired(&lost), lost.total), (desired(&plan), 20), "cost alone decides while it lasts");
    let over = group.tick(60, &there, &pods, &json!({"external": {"load": null}}));
    assert_eq!(over.conditions, [Condition::StaleData]);
}
