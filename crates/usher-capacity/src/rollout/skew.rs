//! Rollout by skew: no role is further along than another by more than a percentage (`maxSkew` of
//! RoleBasedGroup, sgl-project/rbg, with exact arithmetic; a skew of 0 means one pod at a time).
//!
//! A role's progress is `there / goal`. The allowed progress is the least of growing roles plus the skew; a
//! role may have `ceil(allowed × goal)` pods, and the slowest one at least one more.

use super::RoleCounts;

/// Allowed pods of each role during scale-up. Shrinking roles keep theirs.
pub(super) fn up(role_counts: &[RoleCounts], skew: u32) -> Vec<u32> {
    let grows = |counts: &&RoleCounts| counts.there < counts.goal;
    // The pods of the step before have to be up.
    let is_open = role_counts.iter().filter(grows).any(|counts| counts.there > 0 && counts.ok < counts.there);
    let slowest = role_counts
        .iter()
        .filter(grows)
        .map(|counts| (counts.there, counts.goal))
        .min_by(|a, b| compare(*a, *b));
    let targets = role_counts.iter().map(|counts| match slowest {
        Some(least) if !is_open && grows(&counts) => ahead(counts.there, counts.goal, least, skew),
        _ => counts.there,
    });
    targets.collect()
}

/// Allowed pods of each role during scale-down: the mirror image of scale-up, over the pods to remove. `from`
/// are the pods when the group began to shrink.
pub(super) fn down(role_counts: &[RoleCounts], from: &[u32], skew: u32, late: &[bool]) -> Vec<u32> {
    let shrinks = |counts: &RoleCounts| counts.there > counts.goal;
    let gone = |counts: &RoleCounts, from: u32| {
        let from = from.max(counts.there);
        (from - counts.there, from - counts.goal)
    };
    let each = || role_counts.iter().zip(from.iter().copied()).zip(late.iter().copied());
    let slowest = each()
        .filter(|((counts, _), _)| shrinks(counts))
        .map(|((counts, from), _)| gone(counts, from))
        .min_by(|a, b| compare(*a, *b));
    let Some(least) = slowest else { return role_counts.iter().map(|counts| counts.there).collect() };
    let target = |counts: &RoleCounts, from: u32| {
        let (done, all) = gone(counts, from);
        counts.goal + (all - ahead(done, all, least, skew))
    };
    let others_shrink =
        each().any(|((counts, from), late)| !late && shrinks(counts) && target(counts, from) < counts.there);
    let targets = each().map(|((counts, from), late)| {
        if !shrinks(counts) || (late && others_shrink) { counts.there } else { target(counts, from) }
    });
    targets.collect()
}

/// Pods of each role in usable groups: every role at the progress of the slowest.
pub(super) fn usable(role_counts: &[RoleCounts]) -> Vec<u32> {
    let least = role_counts
        .iter()
        .filter(|counts| counts.ok < counts.goal)
        .map(|counts| (counts.ok, counts.goal))
        .min_by(|a, b| compare(*a, *b));
    let Some((slow, of)) = least else { return role_counts.iter().map(|counts| counts.goal).collect() };
    let part = |counts: &RoleCounts| (u64::from(counts.goal) * u64::from(slow)).div_ceil(u64::from(of));
    role_counts.iter().map(|counts| u32::try_from(part(counts)).unwrap_or(counts.goal)).collect()
}

/// Allowed pods of a role at `done` of `all`, relative to the slowest.
fn ahead(done: u32, all: u32, least: (u32, u32), skew: u32) -> u32 {
    let (slow, of) = (u128::from(least.0), u128::from(least.1.max(1)));
    // ceil(all × (slow / of + skew / 100))
    let allowed = (u128::from(all) * (slow * 100 + u128::from(skew) * of)).div_ceil(100 * of);
    let is_slowest = compare((done, all), least).is_eq();
    let allowed = u32::try_from(allowed).unwrap_or(u32::MAX).max(done + u32::from(is_slowest));
    allowed.min(all)
}

/// Compares `a.0 / a.1` with `b.0 / b.1`.
pub(super) fn compare(a: (u32, u32), b: (u32, u32)) -> std::cmp::Ordering {
    (u64::from(a.0) * u64::from(b.1)).cmp(&(u64::from(b.0) * u64::from(a.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(there: u32, ok: u32, goal: u32) -> RoleCounts {
        RoleCounts { goal, there, seen: there, ok, ..RoleCounts::default() }
    }

    #[test]
    fn targets_are_exact() {
        for (decode, prefill, skew, expected) in [
            // (there, goal) each
            ((0, 200), (0, 300), 5, [10, 15]),
            // 0.9 + 0.05 is 0.95 and nothing above it.
            ((180, 200), (270, 300), 5, [190, 285]),
            // The one that is further along waits.
            ((30, 200), (15, 300), 5, [30, 30]),
            ((200, 200), (15, 300), 5, [200, 30]),
            // Small roles go a pod at a time.
            ((0, 1), (0, 10), 10, [1, 1]),
            ((1, 1), (1, 10), 10, [1, 2]),
            // No skew: the slowest, one at a time.
            ((0, 4), (0, 8), 0, [1, 1]),
            ((1, 4), (1, 8), 0, [1, 2]),
            ((1, 4), (2, 8), 0, [2, 3]),
            ((0, 4), (0, 8), 100, [4, 8]),
        ] {
            let role_counts = [counts(decode.0, decode.0, decode.1), counts(prefill.0, prefill.0, prefill.1)];
            assert_eq!(up(&role_counts, skew), expected, "{decode:?} {prefill:?} {skew}");
        }
        // What is not up yet holds everything.
        assert_eq!(up(&[counts(10, 9, 200), counts(15, 15, 300)], 5), [10, 15]);
    }

    /// Tables of RBG's coordination tests, by (goal, there, up). Theirs have one pod more in some rows (286,
    /// 151, 16 and 56), an effect of floating point for 0.9 + 0.05.
    #[test]
    fn matches_rbgs_test_tables() {
        type Roles = &'static [(u32, u32, u32)];
        const TABLE: [(u32, Roles, &[u32]); 14] = [
            (5, &[(300, 0, 0), (100, 0, 0)], &[15, 5]),
            (5, &[(300, 15, 15), (100, 0, 0)], &[15, 5]),
            (5, &[(300, 15, 15), (100, 5, 5)], &[30, 10]),
            (5, &[(300, 285, 285), (100, 90, 90)], &[285, 95]),
            (5, &[(300, 300, 300), (100, 100, 100)], &[300, 100]),
            (10, &[(200, 20, 20), (100, 0, 0), (50, 5, 5)], &[20, 10, 5]),
            (5, &[(300, 0, 0), (100, 0, 0), (10, 0, 0), (50, 0, 0)], &[15, 5, 1, 3]),
            (8, &[(500, 50, 50), (200, 20, 20), (20, 1, 1), (100, 8, 8), (10, 1, 1)], &[65, 26, 3, 13, 2]),
            (10, &[(1000, 100, 100), (100, 5, 5), (10, 1, 1)], &[150, 15, 2]),
            (5, &[(0, 0, 0), (100, 50, 50)], &[0, 55]),
            // Theirs drops the role at once; here it shrinks when the others have grown.
            (10, &[(0, 5, 5), (100, 10, 10)], &[5, 20]),
            (5, &[(0, 0, 0), (0, 0, 0)], &[0, 0]),
            // Not all are up of those that are there: scheduled or ready, as the policy says.
            (5, &[(300, 15, 10), (100, 5, 5)], &[15, 5]),
            (5, &[(300, 15, 15), (100, 5, 5)], &[30, 10]),
        ];
        for (skew, roles, expected) in TABLE {
            let role_counts: Vec<RoleCounts> =
                roles.iter().map(|(goal, there, ok)| counts(*there, *ok, *goal)).collect();
            assert_eq!(up(&role_counts, skew), expected, "{skew} {roles:?}");
        }
    }

    #[test]
    fn shrinking_mirrors_growing() {
        let (from, late) = ([20, 10], [true, false]);
        let mut there = from;
        let mut seen = Vec::new();
        while there != [10, 5] {
            let role_counts = [counts(there[0], there[0], 10), counts(there[1], there[1], 5)];
            there = down(&role_counts, &from, 20, &late).try_into().unwrap();
            seen.push(there);
        }
        assert_eq!(seen[..4], [[20, 9], [18, 9], [18, 8], [16, 8]]);
        assert_eq!(seen.len(), 10);
    }
}
