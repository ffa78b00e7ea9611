//! Percentages beside what ties roles together: a ratio of their sizes, and steps.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use rand::RngExt;
use usher::capacity::State;

use crate::cluster::{Cluster, admitted};

/// No role is further along than the other by more than the skew and one pod, as pods are whole.
fn keeps_skew(done: [u32; 2], all: [u32; 2], skew: u32) -> Result<(), TestCaseError> {
    for [one, other] in [[0, 1], [1, 0]] {
        let ahead = i64::from(done[one] * all[other] * 100) - i64::from(done[other] * all[one] * 100);
        let most = i64::from(skew * all[one] * all[other] + 100 * all[other]);
        prop_assert!(ahead <= most, "{done:?} of {all:?} are further apart than {skew} %");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn roles_of_a_ratio_come_up_within_their_skew(
        goals in (1u32..40, 1u32..20),
        skew in 0u32..60,
        has_gates in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (decode, prefill) = goals;
        let spec = format!(
            "{{roles: {{decode: {{min: {decode}, max: {decode}}}, prefill: {{min: {prefill}, max: {prefill}}}}}, coordination: {{ratio: {{numerator: prefill, denominator: decode, min: \"{prefill}:{decode}\", max: \"{prefill}:{decode}\"}}}}, scaling: {{maxSkewPercent: {skew}}}}}"
        );
        let mut cluster = Cluster::new(&spec, seed);
        (cluster.has_gates, cluster.startup) = (has_gates, (1, 40));
        for _ in 0..2_000 {
            let plan = cluster.plan();
            if plan.state == State::Idle {
                break;
            }
            cluster.apply(&plan);
            keeps_skew([cluster.past(0), cluster.past(1)], [decode, prefill], skew)?;
            let seconds = cluster.random.random_range(1..30);
            cluster.pass(seconds);
        }
        prop_assert_eq!([cluster.ready(0), cluster.ready(1)], [decode, prefill]);
    }

    /// Holds for any pods that the controllers replace at once, and any pods that fail meanwhile.
    #[test]
    fn updates_keep_their_skew_and_the_steps_of_the_group(
        steps in (1u32..5, 1u32..4),
        count in 1u32..6,
        skew in 0u32..60,
        unavailable in 0u32..=100,
        has_gates in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let all = [steps.0 * count, steps.1 * count];
        let [decode, prefill] = all;
        let spec = format!(
            "{{roles: {{decode: {{min: {decode}, max: {decode}}}, prefill: {{min: {prefill}, max: {prefill}}}}}, deploy: {{steps: {{decode: {}, prefill: {}}}}}, update: {{maxSkewPercent: {skew}, maxUnavailablePercent: {unavailable}}}}}",
            steps.0, steps.1
        );
        let mut cluster = Cluster::new(&spec, seed);
        cluster.replicas = all.to_vec();
        cluster.control();
        cluster.pass(1);
        cluster.pass(1);
        prop_assert_eq!(cluster.plan().state, State::Idle);
        (cluster.has_gates, cluster.startup) = (has_gates, (1, 40));
        cluster.pods.iter_mut().flatten().for_each(|pod| pod.is_outdated = true);
        let mut is_updated = false;
        for _ in 0..2_000 {
            let plan = cluster.plan();
            is_updated = cluster.pods.iter().flatten().all(|pod| !pod.is_outdated);
            if is_updated && plan.state == State::Idle {
                break;
            }
            let may = admitted(&plan);
            let apart = (may[0] * steps.1).abs_diff(may[1] * steps.0);
            prop_assert!(apart <= steps.0 * steps.1, "{may:?} are more than a step of {steps:?} apart");
            cluster.apply(&plan);
            for (role, planned) in plan.roles.iter().enumerate() {
                let Some(partition) = planned.partition else { continue };
                for place in (partition as usize..cluster.pods[role].len()).rev() {
                    if cluster.pods[role][place].is_outdated {
                        cluster.replace(role, place);
                    }
                }
            }
            let updated = [0, 1].map(|role: usize| {
                cluster.pods[role].iter().filter(|pod| !pod.is_outdated).count() as u32
            });
            keeps_skew(updated, all, skew)?;
            if cluster.random.random_bool(0.1) {
                cluster.hurt_one();
            }
            let seconds = cluster.random.random_range(1..30);
            cluster.pass(seconds);
        }
        prop_assert!(is_updated, "the update never ends: {:?}", cluster.plan());
        prop_assert_eq!([cluster.past(0), cluster.past(1)], all);
    }
}
