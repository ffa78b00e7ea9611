//! Rules in ticks.

use crate::capacity::support::{Group, desired};
use serde_json::json;
use usher::capacity::Reason;
use usher::capacity::plan::RuleOutcome;

const QUEUE: &str = "roles: {decode: {min: 1, max: 8}}\nrules:\n\
- {name: up, role: decode, metric: queue_depth, comparator: GREATER_THAN, threshold: 5, step: 2, cooldown: 300s, onBound: clamp}\n\
- {name: down, role: decode, metric: queue_depth, comparator: LESS_THAN, threshold: 1, step: -1, cooldown: 300s}";

#[test]
fn a_cooldown_begins_when_a_rule_fires() {
    for mode in ["Recommend", "Apply"] {
        rests(&format!("mode: {mode}\n{QUEUE}"));
    }
}

fn rests(spec: &str) {
    let mut group = Group::new(spec);
    let (mut size, mut fired) = (1, Vec::new());
    for tick in 0..41 {
        let pods = [("decode", size, true, json!({"queue_depth": 9}))];
        let plan = group.tick(tick * 15, &json!({"decode": size}), &pods, &json!({}));
        size = plan.roles[0].desired;
        if !plan.fired.is_empty() {
            fired.push((tick * 15, size));
        }
    }
    assert_eq!(fired, [(0, 3), (300, 5), (600, 7)]);
    let pods = [("decode", 7, true, json!({"queue_depth": 9}))];
    let plan = group.tick(900, &json!({"decode": 7}), &pods, &json!({}));
    assert_eq!((desired(&plan), plan.roles[0].reasons.clone()), (vec![8], vec![Reason::Rule]));
    let pods = [("decode", 8, true, json!({"queue_depth": 0}))];
    let plan = group.tick(915, &json!({"decode": 8}), &pods, &json!({}));
    assert_eq!((desired(&plan), plan.fired), (vec![7], vec!["down".to_owned()]), "its own cooldown");
}

#[test]
fn bounds_and_waiting_requests_apply_beside_rules() {
    let mut group = Group::new(QUEUE);
    let plan = group.tick(0, &json!({"decode": 0}), &[], &json!({}));
    assert_eq!((desired(&plan), plan.roles[0].reasons[0]), (vec![1], Reason::Min));
    let mut zero = Group::new(&QUEUE.replace("min: 1, max: 8", "min: 0, max: 8"));
    let plan = zero.tick(0, &json!({"decode": 0}), &[], &json!({"waiting": 3}));
    assert_eq!((desired(&plan), plan.roles[0].reasons.clone()), (vec![1], vec![Reason::Waiting]));
    let plan = zero.tick(15, &json!({"decode": 0}), &[], &json!({}));
    assert_eq!(desired(&plan), [0]);
    // What waits needs a pod, whatever a rule says of the last one.
    let idle = [("decode", 1, true, json!({"queue_depth": 0}))];
    let plan = zero.tick(30, &json!({"decode": 1}), &idle, &json!({"waiting": 3}));
    assert_eq!((desired(&plan), plan.stages.rules[1].outcome), (vec![1], RuleOutcome::Bound));
    assert!(plan.fired.is_empty(), "what changes nothing doesn't rest: {:?}", plan.fired);
    let plan = zero.tick(45, &json!({"decode": 1}), &idle, &json!({}));
    assert_eq!((desired(&plan), plan.fired), (vec![0], vec!["down".to_owned()]));
}

#[test]
fn priorities_and_the_order_of_the_file() {
    let rules = "roles: {a: {max: 9}}\nrules:\n\
        - {name: last, role: a, metric: waiting, comparator: GREATER_THAN, threshold: 0, step: 1, priority: -1}\n\
        - {name: first, role: a, metric: waiting, comparator: GREATER_THAN, threshold: 5, step: 2, priority: 7}\n\
        - {name: middle, role: a, metric: waiting, comparator: GREATER_THAN, threshold: 1, step: 3}";
    for (waiting, fired, size) in [(9, "first", 4), (3, "middle", 5), (1, "last", 3)] {
        let plan = Group::new(rules).tick(0, &json!({"a": 2}), &[], &json!({"waiting": waiting}));
        assert_eq!((plan.fired.as_slice(), desired(&plan)), ([fired.to_owned()].as_slice(), vec![size]));
    }
}
