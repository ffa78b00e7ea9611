//! Updates, in a cluster where pods are replaced from the highest ordinal down to the partition.

use usher::capacity::{Condition, State};

use crate::cluster::Cluster;

const SPEC: &str = "{roles: {decode: {min: 20, max: 20}, prefill: {min: 10, max: 10}}, deploy: {steps: {decode: 4, prefill: 2}}, update: {maxSkewPercent: 10, maxUnavailablePercent: 20}}";

/// Ten replicas of prefill and twenty of decode, all of them up.
fn running() -> Cluster {
    let mut cluster = Cluster::new(SPEC, 7);
    cluster.replicas = vec![20, 10];
    cluster.control();
    cluster.pass(1);
    cluster.pass(1);
    assert_eq!(cluster.plan().state, State::Idle);
    cluster
}

#[test]
fn both_roles_are_updated_in_parallel() {
    let mut cluster = running();
    cluster.pods.iter_mut().flatten().for_each(|pod| pod.is_outdated = true);
    let mut rounds = 0;
    loop {
        let plan = cluster.plan();
        if plan.state == State::Idle {
            break;
        }
        rounds += 1;
        assert!(rounds < 100, "it never ends");
        assert_eq!((plan.state, &plan.conditions[..]), (State::Update, &[Condition::Paused][..]));
        let mut progress = Vec::new();
        for (role, planned) in plan.roles.iter().enumerate() {
            assert_eq!(planned.admitted, planned.current, "sizes stay");
            let partition = planned.partition.unwrap() as usize;
            let now = cluster.now;
            for pod in cluster.pods[role].iter_mut().skip(partition).filter(|pod| pod.is_outdated) {
                (pod.is_outdated, pod.ready_at) = (false, now + 3);
            }
            let away = cluster.pods[role].len() as u32 - cluster.ready(role);
            assert!(away * 100 <= 20 * planned.current, "{away} of {} are away", planned.current);
            let updated = cluster.pods[role].iter().filter(|pod| !pod.is_outdated).count();
            progress.push(updated as f64 / f64::from(planned.current));
        }
        assert!((progress[0] - progress[1]).abs() <= 0.1 + 1.0 / 10.0 + 1e-9, "{progress:?}");
        cluster.pass(2);
    }
    assert!(cluster.pods.iter().flatten().all(|pod| !pod.is_outdated));
    assert!(rounds > 10, "in {rounds} rounds that is not step by step");
}

#[test]
fn sizes_stay_while_pods_are_updated() {
    let mut cluster = running();
    cluster.pods[0][0].is_outdated = true;
    cluster.policy.roles[0].range.max = 24;
    cluster.policy.roles[0].range.min = 24;
    let plan = cluster.plan();
    assert_eq!(plan.state, State::Update);
    // But what is below its minimum comes, a step at a time.
    assert_eq!((plan.roles[0].desired, plan.roles[0].admitted), (24, 24));
    let mut cluster = running();
    cluster.pods[0][0].is_outdated = true;
    cluster.policy.roles[0].range.max = 10;
    cluster.policy.roles[0].range.min = 10;
    let plan = cluster.plan();
    assert_eq!((plan.roles[0].desired, plan.roles[0].admitted), (10, 20));
    cluster.pods[0][0].is_outdated = false;
    let plan = cluster.plan();
    assert_eq!((plan.state, plan.roles[0].admitted), (State::Scale, 16));
}

#[test]
fn update_unblocks_a_stuck_step() {
    let mut cluster = Cluster::new(SPEC, 7);
    cluster.startup = (1 << 40, 1 << 40);
    let plan = cluster.plan();
    cluster.apply(&plan);
    cluster.pass(1);
    assert_eq!(cluster.plan().state, State::Deploy);
    cluster.pods.iter_mut().flatten().for_each(|pod| pod.is_outdated = true);
    assert_eq!(cluster.plan().state, State::Deploy, "a step that is under way ends first");
    cluster.pass(600);
    assert_eq!(cluster.plan().state, State::Blocked);
    let plan = cluster.plan();
    assert_eq!(plan.state, State::Update);
    assert_eq!((plan.roles[0].partition, plan.roles[1].partition), (Some(3), Some(1)));
}

#[test]
fn update_without_ready_pods_stops() {
    let mut cluster = running();
    cluster.pods.iter_mut().flatten().for_each(|pod| pod.is_outdated = true);
    let mut last = None;
    for _ in 0..100 {
        let plan = cluster.plan();
        for (role, planned) in plan.roles.iter().enumerate() {
            let partition = planned.partition.unwrap() as usize;
            for pod in cluster.pods[role].iter_mut().skip(partition) {
                (pod.is_outdated, pod.ready_at) = (false, u64::MAX);
            }
        }
        last = Some(plan);
        cluster.pass(15);
    }
    let plan = last.unwrap();
    assert_eq!(plan.state, State::Blocked);
    assert!(plan.conditions.contains(&Condition::BatchTimeout));
    let broken = cluster.pods.iter().flatten().filter(|pod| !pod.is_outdated).count();
    assert!(broken <= 6, "{broken} pods are broken");
}

/// Ticks until the group is idle, as a StatefulSet would with a gate in its template: from the partition on
/// pods are replaced, one at a time, and wait at the gate.
fn update_at_gates(cluster: &mut Cluster, restarts: bool) {
    for round in 0..500 {
        let plan = cluster.plan();
        if plan.state == State::Idle && cluster.pods.iter().flatten().all(|pod| !pod.is_outdated) {
            return;
        }
        assert_ne!(plan.state, State::Blocked, "round {round}");
        cluster.apply(&plan);
        for (role, planned) in plan.roles.iter().enumerate() {
            let Some(partition) = planned.partition else { continue };
            let outdated =
                cluster.pods[role].iter().skip(partition as usize).rposition(|pod| pod.is_outdated);
            if let Some(place) = outdated {
                cluster.replace(role, partition as usize + place);
            }
        }
        cluster.pass(2);
        if restarts && round % 3 == 0 {
            cluster.history = usher::capacity::History::default();
        }
    }
    panic!("it never ends");
}

/// An idle group of 20 and 10 pods, well above its minimum, whose next pods have gates.
fn idle_with_gates() -> Cluster {
    let spec = SPEC.replace("min: 20", "min: 4").replace("min: 10", "min: 2");
    let mut cluster = Cluster::new(&spec, 7);
    cluster.replicas = vec![20, 10];
    cluster.control();
    cluster.pass(1);
    cluster.pass(1);
    assert_eq!(cluster.plan().state, State::Idle);
    cluster.has_gates = true;
    cluster
}

#[test]
fn replacement_pods_pass_their_gate() {
    for restarts in [false, true] {
        let mut cluster = idle_with_gates();
        cluster.pods.iter_mut().flatten().for_each(|pod| pod.is_outdated = true);
        update_at_gates(&mut cluster, restarts);
        assert_eq!((cluster.ready(0), cluster.ready(1)), (20, 10));
    }
}

/// Pods of an older revision that wait at their gate while an update is under way, and a picker that begins then.
/// The controller replaces one only while all others are ready, as that of a StatefulSet does.
#[test]
fn gated_pods_of_an_old_revision_do_not_block_an_update() {
    let mut cluster = idle_with_gates();
    for role in 0..2 {
        for lost in [0, 3] {
            cluster.replace(role, lost);
        }
    }
    cluster.pods.iter_mut().flatten().for_each(|pod| pod.is_outdated = true);
    cluster.history = usher::capacity::History::default();
    for _ in 0..500 {
        let plan = cluster.plan();
        if plan.state == State::Idle && cluster.pods.iter().flatten().all(|pod| !pod.is_outdated) {
            assert_eq!((cluster.ready(0), cluster.ready(1)), (20, 10));
            return;
        }
        cluster.apply(&plan);
        let past = [cluster.past(0), cluster.past(1)];
        assert!(past[0].abs_diff(2 * past[1]) <= 4, "more than a step apart: {past:?}");
        for (role, planned) in plan.roles.iter().enumerate() {
            let is_healthy = cluster.ready(role) == cluster.replicas[role];
            let Some(partition) = planned.partition.filter(|_| is_healthy) else { continue };
            let later = cluster.pods[role].iter().skip(partition as usize);
            if let Some(place) = later.clone().rposition(|pod| pod.is_outdated) {
                cluster.replace(role, partition as usize + place);
            }
        }
        cluster.pass(15);
    }
    panic!("it never ends: {:?}", cluster.plan());
}

/// A step that never comes up, and pods behind it at their gates, in front of which a StatefulSet stops: it replaces
/// the highest ordinals first, each when those above it are ready.
#[test]
fn update_removes_gated_pods_of_a_stuck_step() {
    let mut cluster = Cluster::new(SPEC, 7);
    (cluster.has_gates, cluster.startup) = (true, (1 << 40, 1 << 40));
    for _ in 0..50 {
        let plan = cluster.plan();
        cluster.apply(&plan);
        cluster.pass(15);
    }
    assert_eq!((cluster.plan().state, cluster.past(0), cluster.past(1)), (State::Blocked, 4, 2));
    cluster.startup = (1, 1);
    cluster.pods.iter_mut().flatten().for_each(|pod| pod.is_outdated = true);
    for _ in 0..500 {
        let plan = cluster.plan();
        if plan.state == State::Idle && cluster.pods.iter().flatten().all(|pod| !pod.is_outdated) {
            assert_eq!((cluster.ready(0), cluster.ready(1)), (20, 10));
            return;
        }
        cluster.apply(&plan);
        for (role, planned) in plan.roles.iter().enumerate() {
            let Some(partition) = planned.partition.map(|partition| partition as usize) else { continue };
            // Those at gates are behind those that are past them, which `control` sees to.
            for place in (partition..cluster.pods[role].len()).rev() {
                let pod = cluster.pods[role][place];
                if pod.is_outdated {
                    cluster.replace(role, place);
                }
                if pod.is_outdated || pod.is_gated || !pod.has_node || pod.ready_at > cluster.now {
                    break;
                }
            }
        }
        cluster.pass(15);
    }
    panic!("it never ends: {:?}", cluster.plan());
}
