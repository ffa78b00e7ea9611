//! By steps: so many pods of each role at a time (after KEP-75 of RoleBasedGroup, sgl-project/rbg).
//!
//! After `k` steps a role has `t(k) = min(goal, k × step)` pods. Step `k` may begin when of every role
//! `t(k − 1)` pods are up. Until a role has reached its goal, no two roles are more than one step apart.

use super::Stand;

/// How many steps are up of all roles together: the largest `k` with `t(k)` pods up of each; `None`: all
/// goals are.
pub(super) fn steps_up(stands: &[Stand], steps: &[u32]) -> Option<u64> {
    stepping(stands, steps)
        .filter(|(stand, _)| stand.ok < stand.goal)
        .map(|(stand, step)| u64::from(stand.ok / step))
        .min()
}

/// How many pods each role has after `k` steps; roles without a step have their goal.
pub(super) fn after(stands: &[Stand], steps: &[u32], k: u64) -> Vec<u32> {
    let each = stands.iter().zip(steps).map(|(stand, step)| match step {
        0 => stand.goal,
        step => u32::try_from(k.saturating_mul(u64::from(*step))).map_or(stand.goal, |t| t.min(stand.goal)),
    });
    each.collect()
}

/// How many pods each role may have while it grows. A role that is to shrink keeps what it has.
pub(super) fn up(stands: &[Stand], steps: &[u32]) -> Vec<u32> {
    let k = steps_up(stands, steps).map_or(u64::MAX, |k| k.saturating_add(1));
    let mut targets = after(stands, steps, k);
    // A role that fell behind, because pods of it were lost, comes back at once to within a step of the one
    // that is furthest among those that still grow.
    let furthest = stepping(stands, steps)
        .filter(|(stand, _)| stand.there < stand.goal)
        .map(|(stand, step)| (u64::from(stand.there), u64::from(step)))
        .max_by(|(a, of_a), (b, of_b)| (a * of_b).cmp(&(b * of_a)));
    for ((target, stand), step) in targets.iter_mut().zip(stands).zip(steps) {
        if let Some((pods, of)) = furthest.filter(|_| *step > 0) {
            let behind = (pods.saturating_sub(of) * u64::from(*step)).div_ceil(of);
            *target = (*target).max(u32::try_from(behind).unwrap_or(u32::MAX).min(stand.goal));
        }
        *target = (*target).max(stand.there);
    }
    targets
}

/// How many pods each role may have while it shrinks: a whole step less, the roles that are `late` after
/// the others. A role that doesn't shrink keeps what it has.
pub(super) fn down(stands: &[Stand], steps: &[u32], late: &[bool]) -> Vec<u32> {
    let shrinking = |stand: &Stand| stand.there > stand.goal;
    let k = stepping(stands, steps)
        .filter(|(stand, _)| shrinking(stand))
        .map(|(stand, step)| u64::from(stand.there.div_ceil(step)))
        .max()
        .unwrap_or(0);
    let after = |stand: &Stand, step: u32| match step {
        0 => stand.goal,
        step => {
            let left = k.saturating_sub(1).saturating_mul(u64::from(step));
            u32::try_from(left).map_or(stand.there, |left| left.clamp(stand.goal, stand.there))
        }
    };
    let each = || stands.iter().zip(steps).zip(late);
    let others_shrink =
        each().any(|((stand, step), late)| !late && shrinking(stand) && after(stand, *step) < stand.there);
    let targets = each().map(|((stand, step), late)| {
        if !shrinking(stand) || (*late && others_shrink) { stand.there } else { after(stand, *step) }
    });
    targets.collect()
}

fn stepping<'a>(stands: &'a [Stand], steps: &'a [u32]) -> impl Iterator<Item = (&'a Stand, u32)> {
    stands.iter().zip(steps.iter().copied()).filter(|(_, step)| *step > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand(there: u32, ok: u32, goal: u32) -> Stand {
        Stand { goal, there, seen: there, ok, ..Stand::default() }
    }

    #[test]
    fn a_step_begins_when_the_one_before_is_up() {
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
            let stands = [stand(decode.0, decode.1, 32), stand(prefill.0, prefill.1, 16)];
            assert_eq!(up(&stands, &steps), expected, "{decode:?} {prefill:?}");
        }
    }

    #[test]
    fn a_role_without_a_step_goes_its_own_way() {
        let stands = [stand(0, 0, 8), stand(0, 0, 3)];
        assert_eq!(up(&stands, &[4, 0]), [4, 3]);
        assert_eq!(down(&[stand(8, 8, 0), stand(3, 3, 1)], &[4, 0], &[false, false]), [4, 1]);
    }

    #[test]
    fn shrinking_mirrors_growing_and_decode_goes_last() {
        let (steps, late) = ([4, 2], [true, false]);
        let mut there = [16, 8];
        let mut seen = Vec::new();
        while there != [4, 2] {
            let stands = [stand(there[0], there[0], 4), stand(there[1], there[1], 2)];
            there = down(&stands, &steps, &late).try_into().unwrap();
            seen.push(there);
        }
        assert_eq!(seen, [[16, 6], [12, 6], [12, 4], [8, 4], [8, 2], [4, 2]]);
        // Between two steps it goes to the lower one.
        assert_eq!(down(&[stand(7, 7, 0), stand(3, 3, 0)], &steps, &late), [7, 2]);
        assert_eq!(down(&[stand(7, 7, 0), stand(2, 2, 0)], &steps, &late), [4, 2]);
        assert_eq!(down(&[stand(4, 4, 0), stand(0, 0, 0)], &steps, &late), [0, 0]);
    }
}
