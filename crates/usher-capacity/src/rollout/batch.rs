//! Rollout in steps of so many pods of each role (after KEP-75 of RoleBasedGroup, sgl-project/rbg).
//!
//! After `k` steps a role has `t(k) = min(goal, k × step)` pods. Step `k` may begin when `t(k − 1)` pods of
//! every role are up. Until a role has reached its goal, no two roles are more than one step apart.

use super::RoleCounts;

/// Completed steps of all roles: the largest `k` with `t(k)` pods up of each; `None`: all goals are reached.
pub(super) fn steps_up(role_counts: &[RoleCounts], steps: &[u32]) -> Option<u64> {
    stepping(role_counts, steps)
        .filter(|(counts, _)| counts.ok < counts.goal)
        .map(|(counts, step)| u64::from(counts.ok / step))
        .min()
}

/// Pods of each role after `k` steps; roles without steps have their goal.
pub(super) fn after(role_counts: &[RoleCounts], steps: &[u32], k: u64) -> Vec<u32> {
    let each = role_counts.iter().zip(steps).map(|(counts, step)| match step {
        0 => counts.goal,
        step => u32::try_from(k.saturating_mul(u64::from(*step))).map_or(counts.goal, |t| t.min(counts.goal)),
    });
    each.collect()
}

/// Allowed pods of each role during scale-up. Shrinking roles keep theirs.
pub(super) fn up(role_counts: &[RoleCounts], steps: &[u32]) -> Vec<u32> {
    let k = steps_up(role_counts, steps).map_or(u64::MAX, |k| k.saturating_add(1));
    let mut targets = after(role_counts, steps, k);
    // A role that fell behind, because pods of it were lost, comes back at once to within a step of the one
    // that is furthest among those that still grow.
    let furthest = stepping(role_counts, steps)
        .filter(|(counts, _)| counts.there < counts.goal)
        .map(|(counts, step)| (u64::from(counts.there), u64::from(step)))
        .max_by(|(a, of_a), (b, of_b)| (a * of_b).cmp(&(b * of_a)));
    for ((target, counts), step) in targets.iter_mut().zip(role_counts).zip(steps) {
        if let Some((pods, of)) = furthest.filter(|_| *step > 0) {
            let behind = (pods.saturating_sub(of) * u64::from(*step)).div_ceil(of);
            *target = (*target).max(u32::try_from(behind).unwrap_or(u32::MAX).min(counts.goal));
        }
        *target = (*target).max(counts.there);
    }
    targets
}

/// Allowed pods of each role during scale-down: one step less, with `late` roles after the others. Others
/// keep theirs.
pub(super) fn down(role_counts: &[RoleCounts], steps: &[u32], late: &[bool]) -> Vec<u32> {
    let shrinking = |counts: &RoleCounts| counts.there > counts.goal;
    let k = stepping(role_counts, steps)
        .filter(|(counts, _)| shrinking(counts))
        .map(|(counts, step)| u64::from(counts.there.div_ceil(step)))
        .max()
        .unwrap_or(0);
    let after = |counts: &RoleCounts, step: u32| match step {
        0 => counts.goal,
        step => {
            let left = k.saturating_sub(1).saturating_mul(u64::from(step));
            u32::try_from(left).map_or(counts.there, |left| left.clamp(counts.goal, counts.there))
        }
    };
    let each = || role_counts.iter().zip(steps).zip(late);
    let others_shrink = each()
        .any(|((counts, step), late)| !late && shrinking(counts) && after(counts, *step) < counts.there);
    let targets = each().map(|((counts, step), late)| {
        if !shrinking(counts) || (*late && others_shrink) { counts.there } else { after(counts, *step) }
    });
    targets.collect()
}

fn stepping<'a>(
    role_counts: &'a [RoleCounts],
    steps: &'a [u32],
) -> impl Iterator<Item = (&'a RoleCounts, u32)> {
    role_counts.iter().zip(steps.iter().copied()).filter(|(_, step)| *step > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(there: u32, ok: u32, goal: u32) -> RoleCounts {
        RoleCounts { goal, there, seen: there, ok, ..RoleCounts::default() }
    }

    #[test]
    fn next_step_begins_when_the_previous_one_is_up() {
        let steps = [4, 2];
        for (decode, prefill, expected) in [
            // (there, up), (there, up) of 32 and 16
            ((0, 0), (0, 0), [4, 2]),
            ((4, 4), (2, 1), [4, 2]),
            ((4, 4), (2, 2), [8, 4]),
            // One was written and the other wasn't.
            ((8, 4), (2, 2), [8, 4]),
            ((8, 8), (2, 2), [8, 4]),
            // Pods were lost: they come back within a step of the others.
            ((16, 16), (2, 2), [16, 6]),
            ((32, 32), (2, 2), [32, 4]),
            ((32, 32), (15, 15), [32, 16]),
            ((32, 31), (16, 16), [32, 16]),
        ] {
            let role_counts = [counts(decode.0, decode.1, 32), counts(prefill.0, prefill.1, 16)];
            assert_eq!(up(&role_counts, &steps), expected, "{decode:?} {prefill:?}");
        }
    }

    #[test]
    fn role_without_a_step_scales_independently() {
        let role_counts = [counts(0, 0, 8), counts(0, 0, 3)];
        assert_eq!(up(&role_counts, &[4, 0]), [4, 3]);
        assert_eq!(down(&[counts(8, 8, 0), counts(3, 3, 1)], &[4, 0], &[false, false]), [4, 1]);
    }

    #[test]
    fn shrinking_reverses_the_steps_with_decode_last() {
        let (steps, late) = ([4, 2], [true, false]);
        let mut there = [16, 8];
        let mut seen = Vec::new();
        while there != [4, 2] {
            let role_counts = [counts(there[0], there[0], 4), counts(there[1], there[1], 2)];
            there = down(&role_counts, &steps, &late).try_into().unwrap();
            seen.push(there);
        }
        assert_eq!(seen, [[16, 6], [12, 6], [12, 4], [8, 4], [8, 2], [4, 2]]);
        // Between two steps it goes to the lower one.
        assert_eq!(down(&[counts(7, 7, 0), counts(3, 3, 0)], &steps, &late), [7, 2]);
        assert_eq!(down(&[counts(7, 7, 0), counts(2, 2, 0)], &steps, &late), [4, 2]);
        assert_eq!(down(&[counts(4, 4, 0), counts(0, 0, 0)], &steps, &late), [0, 0]);
    }
}
