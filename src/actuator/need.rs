//! Pods of each role for which the next step may need free capacity.

use crate::capacity::rollout::Pace;

/// Pods of a role, as far as its next step depends on them.
#[derive(Clone, Copy, Debug)]
pub struct RolePods {
    /// Pods past the gate, or all without gates.
    pub past: u32,
    /// Replicas of its target.
    pub replicas: u32,
    /// Pods admitted before, lost ones included.
    pub before: u32,
    /// Maximum of the role.
    pub max: u32,
}

impl RolePods {
    /// Existing pods up to the replicas; those beyond are being deleted.
    fn there(&self) -> u32 {
        self.past.min(self.replicas)
    }
}

/// Most pods of each role that its next step may need: one step, and its lag behind the role that is furthest
/// along. With a skew, pods up to that percentage of its goal above the role furthest behind. Without a pace,
/// all up to its maximum.
pub fn needed(pace: Option<&Pace>, roles: &[RolePods]) -> Vec<u32> {
    let steps = match pace {
        Some(Pace::Steps(steps)) => steps.as_slice(),
        _ => &[],
    };
    let step = |place: usize| steps.get(place).copied().filter(|step| *step > 0);
    let done = roles.iter().enumerate().filter_map(|(place, role)| Some(role.past.div_ceil(step(place)?)));
    let furthest = done.max().unwrap_or(0);
    let need = |(place, role): (usize, &RolePods)| {
        let rest = role.max.saturating_sub(role.there());
        if let Some(Pace::Skew(skew)) = pace {
            let step = u64::from(role.max).saturating_mul(u64::from(*skew)).div_ceil(100).max(1);
            let target = role.there().saturating_add(u32::try_from(step).unwrap_or(u32::MAX));
            return target.max(role.before).saturating_sub(role.there()).min(rest);
        }
        let Some(step) = step(place) else { return rest };
        let target = furthest.saturating_add(1).saturating_mul(step).max(role.before);
        target.saturating_sub(role.there()).min(rest)
    };
    roles.iter().enumerate().map(need).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::capacity::policy::file;
    use crate::capacity::{History, Inputs, Pod, PodState, Values, tick};

    fn role_pods(past: u32, before: u32, max: u32) -> RolePods {
        RolePods { past, replicas: max, before, max }
    }

    #[test]
    fn step_needs_its_own_and_the_lost_pods() {
        let steps = Pace::Steps(vec![4, 2, 0]);
        let third = role_pods(3, 3, 9);
        // Roles with steps of 4 and of 2 pods, and what they may need.
        for (a, b, expected) in [
            (role_pods(0, 0, 32), role_pods(0, 0, 16), [4, 2]),
            (role_pods(8, 8, 32), role_pods(4, 4, 16), [4, 2]),
            (role_pods(8, 12, 32), role_pods(6, 6, 16), [8, 2]),
            (role_pods(0, 12, 32), role_pods(6, 6, 16), [16, 2]),
            (role_pods(8, 8, 10), role_pods(4, 4, 4), [2, 0]),
            (RolePods { replicas: 6, ..role_pods(8, 8, 32) }, role_pods(4, 4, 16), [6, 2]),
        ] {
            let needs = needed(Some(&steps), &[a, b, third]);
            assert_eq!(needs, [expected[0], expected[1], 6], "{a:?} {b:?}");
        }
        // A tenth of 32 is four pods, and of 4 one.
        let skew = [role_pods(8, 8, 32), role_pods(9, 9, 4), role_pods(1, 1, 4), role_pods(8, 20, 32)];
        assert_eq!(needed(Some(&Pace::Skew(10)), &skew), [4, 0, 1, 12]);
        assert_eq!(needed(Some(&Pace::Skew(0)), &skew[..1]), [1]);
        assert_eq!(needed(None, &skew[..1]), [24]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

        #[test]
        fn needed_pods_bound_every_step(
            steps in (1u32..6, 1u32..6),
            skew in prop::option::of(0u32..60),
            goals in (1u32..30, 1u32..30),
            pods in prop::collection::vec((0usize..2, any::<bool>(), any::<bool>()), 0..40),
            lost in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let pace = match skew {
                Some(skew) => format!("scaling: {{maxSkewPercent: {skew}}}"),
                None => format!("deploy: {{steps: {{a: {}, b: {}}}}}", steps.0, steps.1),
            };
            let text = format!(
                "{{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {{name: p}}, spec: {{roles: {{a: {{min: {}, max: {}}}, b: {{min: {}, max: {}}}}}, {pace}}}}}",
                goals.0, goals.0, goals.1, goals.1
            );
            let policy = file::parse(&text).unwrap().remove(0).policy;
            let pod = |(role, is_ready, is_gated): (usize, bool, bool)| Pod {
                role,
                is_ready: is_ready && !is_gated,
                state: PodState { is_gated, ..PodState::default() },
                values: Values::default(),
            };
            let mut pods: Vec<Pod> = pods.into_iter().map(pod).collect();
            let (mut history, mut before) = (History::default(), [0, 0]);
            // A tick, and one after pods were lost.
            for round in 0..2u64 {
                let count = |of: usize, past: bool| {
                    pods.iter().filter(|pod| pod.role == of && !(past && pod.state.is_gated)).count() as u32
                };
                let replicas = [0, 1].map(|role| count(role, false).min([goals.0, goals.1][role]));
                let inputs =
                    Inputs { replicas: replicas.to_vec(), pods: pods.clone(), ..Inputs::default() };
                let plan = tick(&inputs, &policy, &mut history, Duration::from_secs(round));
                let roles = [0, 1].map(|role| RolePods {
                    past: count(role, true),
                    replicas: replicas[role],
                    before: before[role],
                    max: [goals.0, goals.1][role],
                });
                let pace = policy.rollout.as_ref().and_then(|rollout| rollout.pace.as_ref());
                for (role, most) in needed(pace, &roles).into_iter().enumerate() {
                    let need = plan.roles[role].admitted.saturating_sub(roles[role].there());
                    prop_assert!(need <= most, "{need} of {most}: {:?} {plan:?}", roles[role]);
                    before[role] = plan.roles[role].admitted;
                }
                for index in lost.iter().filter(|_| !pods.is_empty()).collect::<Vec<_>>() {
                    if !pods.is_empty() {
                        pods.remove(index.index(pods.len()));
                    }
                }
            }
        }
    }
}
