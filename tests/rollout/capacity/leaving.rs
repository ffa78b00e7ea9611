//! Groups that get smaller while some of their pods still respond.

use std::time::Duration;

use usher::capacity::{History, Inputs, Pod, PodState, tick};

use crate::capacity::support::{desired, policy};

const SPEC: &str = "roles: {decode: {min: 1, max: 9}, prefill: {min: 1, max: 6}}\n\
    total: {metrics: [{name: queue_depth, target: 4}]}\n\
    behavior: {scaleDown: {stabilization: 30s}}\n\
    coordination: {ratio: {numerator: prefill, denominator: decode, min: 1:3, max: 1:1}}";

/// Pods of both roles, so many of which are about to go, under a load of so many requests in all.
fn inputs(replicas: [u32; 2], leaving: [u32; 2], load: f64) -> Inputs {
    let stay = replicas[0] + replicas[1] - leaving[0] - leaving[1];
    let pod = |role: usize, is_leaving: bool| Pod {
        role,
        is_ready: true,
        state: PodState { is_leaving, ..PodState::default() },
        values: [if is_leaving { 0.0 } else { load / f64::from(stay) }].into(),
    };
    let pods = (0..2).flat_map(|role| (0..replicas[role]).map(move |n| pod(role, n < leaving[role])));
    Inputs { replicas: replicas.to_vec(), pods: pods.collect(), ..Inputs::default() }
}

#[test]
fn a_smaller_size_stays_while_a_role_drains() {
    let policy = policy(SPEC);
    let mut history = History::resumed(12, Duration::ZERO);
    let mut at = 0;
    let mut sizes = |replicas, leaving, load| {
        at += 15;
        desired(&tick(&inputs(replicas, leaving, load), &policy, &mut history, Duration::from_secs(at)))
    };
    assert_eq!([sizes([6, 6], [0, 0], 40.0), sizes([6, 6], [0, 0], 40.0)], [[6, 6], [5, 5]]);
    for _ in 0..20 {
        assert_eq!(sizes([6, 6], [1, 1], 40.0), [5, 5]);
    }
    // Ten pods have what they are to have, and eleven would be within the tolerance.
    for _ in 0..20 {
        assert_eq!(sizes([5, 6], [0, 1], 40.0), [5, 5]);
    }
    assert_eq!(sizes([5, 5], [0, 0], 40.0), [5, 5]);
}

#[test]
fn load_within_the_tolerance_keeps_no_leaving_pod() {
    let policy = policy(SPEC);
    let mut history = History::resumed(12, Duration::ZERO);
    let mut at = 0;
    let mut sizes = |replicas, leaving, load| {
        at += 15;
        desired(&tick(&inputs(replicas, leaving, load), &policy, &mut history, Duration::from_secs(at)))
    };
    assert_eq!([sizes([6, 6], [0, 0], 40.0), sizes([6, 6], [0, 0], 40.0)], [[6, 6], [5, 5]]);
    // 43.9 is what eleven pods are for, and what twelve would keep.
    for load in [43.9, 40.0, 43.9, 36.0, 43.9] {
        assert_eq!(sizes([6, 6], [1, 1], load), [5, 5], "{load}");
    }
    assert_eq!(sizes([6, 6], [1, 1], 48.0), [6, 6], "more than the tolerance keeps pods");
}

#[test]
fn a_size_reached_by_steps_is_not_undone() {
    let target =
        |name: &str| format!("scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}");
    let spec = SPEC
        .replace("max: 9", &format!("max: 9, {}", target("d")))
        .replace("max: 6}", &format!("max: 6, {}}}", target("p")));
    let policy = policy(&format!("mode: Apply\n{spec}\ndeploy: {{steps: {{decode: 3, prefill: 1}}}}"));
    let mut history = History::resumed(12, Duration::ZERO);
    let mut replicas = [6, 6];
    for round in 1..60 {
        let inputs = inputs(replicas, [0, 0], 40.0);
        let plan = tick(&inputs, &policy, &mut history, Duration::from_secs(15 * round));
        let written = [plan.roles[0].write, plan.roles[1].write];
        assert!(written[0] <= replicas[0] && written[1] <= replicas[1], "{replicas:?} to {written:?}");
        replicas = written;
    }
    assert_eq!(replicas, [5, 5]);
}

/// A group whose size nothing sets: what pressure says a moment later doesn't stop what drains.
#[test]
fn draining_pods_do_not_count_as_missing() {
    let policy = policy(
        "roles: {d: {min: 1, max: 12}, p: {min: 1, max: 12}}\n\
         coordination: {mode: Preferred, pressure: {d: [{metric: q, target: 1}], p: [{metric: q, target: 1}]}}",
    );
    let mut history = History::default();
    let mut at = 0;
    let mut goals = |replicas: [u32; 2], leaving: u32, pressure: [f64; 2]| {
        at += 15;
        let pod = |role: usize, is_leaving: bool| Pod {
            role,
            is_ready: true,
            state: PodState { is_leaving, ..PodState::default() },
            values: [pressure[role]].into(),
        };
        let pods =
            (0..2).flat_map(|role| (0..replicas[role]).map(move |n| pod(role, role == 0 && n < leaving)));
        let inputs = Inputs { replicas: replicas.to_vec(), pods: pods.collect(), ..Inputs::default() };
        let plan = tick(&inputs, &policy, &mut history, Duration::from_secs(at));
        ([plan.roles[0].goal, plan.roles[1].goal], plan.conditions)
    };
    let (first, _) = goals([8, 4], 0, [1.0, 2.0]);
    assert!(first[0] < 8 && first[0] + first[1] == 12, "{first:?}");
    assert_eq!(goals([8, first[1]], 0, [1.0, 1.0]).0, first);
    for pressure in [[1.0, 2.2], [1.0, 2.6], [1.0, 3.0], [1.0, 4.0]] {
        let (next, conditions) = goals([8, first[1]], 8 - first[0], pressure);
        assert!(next[0] < 8 && conditions.is_empty(), "{pressure:?}: {next:?} {conditions:?}");
    }
}
