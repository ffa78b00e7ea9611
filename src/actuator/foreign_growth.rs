//! Limits growth beside roles whose replicas another writer sets.

use crate::capacity::policy::Sizing;
use crate::capacity::{Plan, Policy};

/// Caps the growth of writable roles, so that a group with a role that another writer keeps above its goal
/// isn't larger than planned. `replicas` and `may_write` are by role. Minima still hold; rules size each role
/// alone and are not capped. Returns `true` if a role was capped.
pub(super) fn limit_growth(policy: &Policy, plan: &mut Plan, replicas: &[u32], may_write: &[bool]) -> bool {
    if matches!(policy.sizing, Sizing::Rules(_)) {
        return false;
    }
    let is_kept_higher = plan
        .roles
        .iter()
        .zip(replicas)
        .zip(may_write)
        .any(|((role, replicas), may_write)| !may_write && *replicas > role.goal);
    if !is_kept_higher {
        return false;
    }
    let mut is_limited = false;
    let sum = |counts: &mut dyn Iterator<Item = u32>| counts.fold(0u32, u32::saturating_add);
    let goals = sum(&mut plan.roles.iter().map(|role| role.goal));
    let mut room = goals.saturating_sub(sum(&mut replicas.iter().copied()));
    let each = plan.roles.iter_mut().zip(&policy.roles).zip(replicas.iter().zip(may_write));
    for ((role, own), (replicas, may_write)) in each {
        if !may_write || role.write <= *replicas {
            continue;
        }
        let most = replicas.saturating_add(room).max(own.range.min);
        is_limited |= most < role.write;
        role.write = role.write.min(most);
        role.admitted = role.admitted.min(role.write);
        room = room.saturating_sub(role.write - replicas);
    }
    is_limited
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::plan::RolePlan;
    use crate::capacity::policy::file;

    fn policy(sizing: &str) -> Policy {
        let text = format!(
            "{{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {{name: p}}, spec: {{roles: {{a: {{min: 2, max: 16}}, b: {{min: 1, max: 8}}}}, {sizing}}}}}"
        );
        file::parse(&text).unwrap().remove(0).policy
    }

    #[test]
    fn role_does_not_grow_beside_an_oversized_foreign_role() {
        let total = policy("total: {metrics: [{name: queue_depth, target: 4}]}");
        // Replicas, goals, whether the second may be written; what the first is then to have.
        for (replicas, goals, may_write, expected) in [
            ([2, 8], [6, 4], false, 2),
            ([2, 6], [6, 4], false, 4),
            ([2, 8], [6, 4], true, 6),
            ([2, 3], [6, 4], false, 6),
            // It gets its minimum, and doesn't shrink.
            ([0, 8], [6, 4], false, 2),
            ([6, 8], [6, 4], false, 6),
        ] {
            let roles =
                goals.map(|goal| RolePlan { goal, write: goal, admitted: goal, ..RolePlan::default() });
            let mut plan = Plan { roles: roles.into(), ..Plan::default() };
            let is_limited = limit_growth(&total, &mut plan, &replicas, &[true, may_write]);
            assert_eq!(is_limited, expected < goals[0], "{replicas:?}");
            assert_eq!((plan.roles[0].write, plan.roles[0].admitted), (expected, expected), "{replicas:?}");
            assert_eq!(plan.roles[1].write, goals[1]);
        }
        let rules = policy(
            "rules: [{name: r, role: a, metric: queue_depth, comparator: GREATER_THAN, threshold: 5, step: 2}]",
        );
        let role = RolePlan { goal: 6, write: 6, admitted: 6, ..RolePlan::default() };
        let mut plan = Plan { roles: vec![role; 2], ..Plan::default() };
        assert!(!limit_growth(&rules, &mut plan, &[2, 8], &[true, false]));
        assert_eq!(plan.roles[0].write, 6);
    }
}
