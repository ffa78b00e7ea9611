//! Any failures: roles keep step, no pod is admitted twice, and the rollout ends.

use proptest::prelude::*;
use rand::RngExt;
use usher::capacity::{History, State};

use crate::cluster::{Cluster, admitted};

fn spec(steps: (u32, u32), goals: (u32, u32), on_timeout: &str) -> String {
    format!(
        "{{roles: {{decode: {{min: {1}, max: {1}}}, prefill: {{min: {3}, max: {3}}}}}, deploy: {{steps: {{decode: {0}, prefill: {2}}}, batchTimeout: 120s, onTimeout: {on_timeout}}}}}",
        steps.0, goals.0, steps.1, goals.1
    )
}

/// `|a / step − b / step| ≤ 1`, unless one of them has reached its goal.
fn keeps_step(admitted: &[u32], steps: (u32, u32), goals: (u32, u32)) -> bool {
    let (a, b) = (u64::from(admitted[0]), u64::from(admitted[1]));
    let (of_a, of_b) = (u64::from(steps.0), u64::from(steps.1));
    let is_done = admitted[0] >= goals.0 || admitted[1] >= goals.1;
    is_done || (a * of_b).abs_diff(b * of_a) <= of_a * of_b
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn roles_keep_step_despite_failures(
        steps in (1u32..6, 1u32..6),
        goals in (1u32..40, 1u32..40),
        seed: u64,
        has_gates: bool,
        is_late: bool,
        creates in prop_oneof![Just(u32::MAX), 1u32..6],
        on_timeout in prop_oneof![Just("Hold"), Just("Trim")],
        trouble in 0u32..150,
    ) {
        let mut cluster = Cluster::new(&spec(steps, goals, on_timeout), seed);
        (cluster.has_gates, cluster.is_late, cluster.creates) = (has_gates, is_late, creates);
        cluster.startup = (5, 90);
        let mut is_idle = false;
        for round in 0..2_000u32 {
            let plan = cluster.plan();
            let may = admitted(&plan);
            prop_assert!(keeps_step(&may, steps, goals), "{may:?} of {goals:?} by {steps:?}");
            prop_assert!(may.iter().zip([goals.0, goals.1]).all(|(may, goal)| *may <= goal));
            // A pod that isn't ready for a moment is no reason to do anything, nor the end of it.
            let all = (cluster.ready(0), cluster.ready(1));
            is_idle = plan.state == State::Idle && all == goals;
            if is_idle && round >= trouble {
                break;
            }
            // One of the writes may fail, and Usher may start again.
            if round < trouble && cluster.random.random_bool(0.3) {
                let role = cluster.random.random_range(0..2);
                let kept = cluster.replicas[role];
                let mut plan = plan.clone();
                plan.roles[role].write = kept;
                plan.roles[role].admitted = 0;
                cluster.apply(&plan);
            } else {
                cluster.apply(&plan);
            }
            if round < trouble {
                if cluster.random.random_bool(0.2) {
                    cluster.lose_one();
                    cluster.control();
                }
                if cluster.random.random_bool(0.2) {
                    cluster.hurt_one();
                }
                if cluster.random.random_bool(0.05) {
                    cluster.history = History::default();
                }
            }
            cluster.pass(15);
        }
        prop_assert!(is_idle, "it never ends");
    }

    #[test]
    fn roles_keep_step_while_shrinking(
        steps in (1u32..6, 1u32..6),
        from in (1u32..12, 1u32..12),
        seed: u64,
    ) {
        // From whole steps down to whole steps.
        let (many, few) = (from.0.max(from.1), from.0.min(from.1));
        let goals = (few * steps.0, few * steps.1);
        let mut cluster = Cluster::new(&spec(steps, goals, "Hold"), seed);
        cluster.replicas = vec![many * steps.0, many * steps.1];
        cluster.control();
        cluster.pass(1);
        cluster.pass(1);
        for _ in 0..100 {
            let plan = cluster.plan();
            let may = admitted(&plan);
            let (a, b) = (may[0] * steps.1, may[1] * steps.0);
            prop_assert!(a.abs_diff(b) <= steps.0 * steps.1, "{:?}", may);
            prop_assert!(may[0] >= goals.0 && may[1] >= goals.1);
            // Requests end at decode, which goes last.
            prop_assert!(a >= b, "{:?}", may);
            if plan.state == State::Idle {
                break;
            }
            cluster.apply(&plan);
            cluster.pass(15);
        }
        prop_assert_eq!(cluster.replicas, vec![goals.0, goals.1]);
    }
}

#[test]
fn held_step_never_times_out() {
    for on_timeout in ["Fail", "Hold", "Trim"] {
        let mut cluster = Cluster::new(&spec((4, 2), (8, 4), on_timeout), 1);
        cluster.is_held = true;
        for _ in 0..100 {
            let plan = cluster.plan();
            assert_eq!((plan.state, plan.conditions.as_slice()), (State::Deploy, &[][..]), "{on_timeout}");
            cluster.pass(15);
        }
        cluster.is_held = false;
        let plan = cluster.plan();
        assert_eq!((plan.state, admitted(&plan)), (State::Deploy, vec![4, 2]), "{on_timeout}");
    }
}
