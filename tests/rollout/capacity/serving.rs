//! The last pod of a role goes when it has served nobody for a while.

use serde_json::{Value, json};
use usher::capacity::Reason;

use crate::capacity::support::{Group, desired};

const TOTAL: &str = "roles: {a: {min: 0, max: 8}}\ntotal: {metrics: [{name: queue_depth, target: 4}]}";
const RULES: &str = "roles: {a: {min: 0, max: 8}}\n\
    rules: [{name: down, role: a, metric: queue_depth, comparator: LESS_THAN, threshold: 1, step: -8, onBound: clamp, cooldown: 1s}]";

/// Sizes of a group of one pod without a queue, tick by tick.
fn sizes(spec: &str, ticks: &[(u64, Value)]) -> Vec<u32> {
    let mut group = Group::new(spec);
    let pods = [("a", 1, true, json!({"queue_depth": 0}))];
    ticks.iter().map(|(t, work)| desired(&group.tick(*t, &json!({"a": 1}), &pods, work))[0]).collect()
}

#[test]
fn a_busy_role_keeps_its_last_pod() {
    let busy = json!({"busy": ["a"]});
    let idle = json!({"sent": {"a": 7}});
    for spec in [TOTAL, RULES] {
        let ticks = [
            (0, busy.clone()),
            (900, busy.clone()),
            (915, idle.clone()),
            (1_214, idle.clone()),
            (1_215, idle.clone()),
        ];
        assert_eq!(sizes(spec, &ticks), [1, 1, 1, 1, 0], "{spec}");
    }
}

#[test]
fn request_between_ticks_restarts_the_window() {
    let sent = |sent: u64| json!({"sent": {"a": sent}});
    let ticks = [(0, sent(7)), (290, sent(8)), (589, sent(8)), (590, sent(8))];
    for spec in [TOTAL, RULES] {
        assert_eq!(sizes(spec, &ticks), [1, 1, 1, 0], "{spec}");
    }
}

#[test]
fn last_serving_pod_is_a_reason_in_the_plan() {
    for spec in [TOTAL, RULES] {
        let mut group = Group::new(spec);
        let more = json!({"busy": ["a"]});
        let pods = [("a", 3, true, json!({"queue_depth": 0}))];
        group.tick(0, &json!({"a": 3}), &pods, &more);
        let plan = group.tick(600, &json!({"a": 3}), &pods, &more);
        assert_eq!(desired(&plan), [1], "{plan:?}");
        assert!(plan.roles[0].reasons.contains(&Reason::Serving), "{plan:?}");
    }
}

#[test]
fn scale_down_keeps_the_last_serving_pod() {
    // Without a prefill pod no group is whole, and all decode pods exceed those that are.
    let spec = "roles: {decode: {min: 4, max: 4}, prefill: {min: 2, max: 2}}\n\
        deploy: {steps: {decode: 4, prefill: 2}, batchTimeout: 60s, onTimeout: Trim}";
    let last = |busy: Value| {
        let mut group = Group::new(spec);
        let pods = [("decode", 2, true, json!({})), ("prefill", 2, false, json!({}))];
        let ticks =
            (0..20).map(|tick| group.tick(tick * 15, &json!({"decode": 4, "prefill": 2}), &pods, &busy));
        ticks.map(|plan| plan.roles[0].write).min().unwrap()
    };
    assert_eq!(last(json!({})), 0);
    assert_eq!(last(json!({"busy": ["decode"]})), 1);
}

#[test]
fn unready_last_pod_is_kept_while_it_responds() {
    let spec = "roles: {decode: {min: 4, max: 4}, prefill: {min: 2, max: 2}}\n\
        deploy: {steps: {decode: 4, prefill: 2}, batchTimeout: 60s, onTimeout: Trim}";
    let last = |current: u32, work: Value| {
        let mut group = Group::new(spec);
        let pods = [("decode", current.min(1), false, json!({})), ("prefill", 2, false, json!({}))];
        let counts = json!({"decode": current, "prefill": 2});
        let ticks = (0..20).map(|tick| group.tick(tick * 15, &counts, &pods, &work));
        ticks.map(|plan| plan.roles[0].admitted.min(plan.roles[0].write)).min().unwrap()
    };
    assert_eq!(last(1, json!({})), 0);
    assert_eq!(last(1, json!({"busy": ["decode"]})), 1);
}
