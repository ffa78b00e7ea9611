//! Rolling updates: pods of each role that may be of the newest revision.
//!
//! A role's progress is the fraction of its pods that are updated and up. No role may be further along than
//! another by more than the skew, except by the one pod that rounding requires; and no role may have more
//! than a fraction of its pods unavailable (`maxSkew` and `maxUnavailable` of RoleBasedGroup,
//! sgl-project/rbg, with exact arithmetic). The result is a partition: pods from that ordinal on are updated.

use super::skew::compare;
use super::{RoleCounts, Update};

/// Pods of each role that may be of the newest revision, at least those that are.
pub(super) fn targets(role_counts: &[RoleCounts], update: Update) -> Vec<u32> {
    let slowest = role_counts
        .iter()
        .filter(|counts| counts.updated_ok < counts.size)
        .map(|counts| (counts.updated_ok, counts.size))
        .min_by(|a, b| compare(*a, *b));
    let each = role_counts.iter().map(|counts| match slowest {
        Some(least) => target(counts, least, update),
        None => counts.size,
    });
    each.collect()
}

fn target(counts: &RoleCounts, least: (u32, u32), update: Update) -> u32 {
    let all = counts.size;
    let (slow, of) = (u128::from(least.0), u128::from(least.1.max(1)));
    let allowed = u128::from(all) * (slow * 100 + u128::from(update.max_skew) * of) / (100 * of);
    let allowed = u32::try_from(allowed).unwrap_or(u32::MAX);
    let is_slowest = compare((counts.updated_ok, all), least).is_eq();
    let wanted = allowed.max(counts.updated_ok + u32::from(is_slowest)).min(all);
    // Pods that are away already count, but for one: what is broken may be what the update mends.
    let away = all.saturating_sub(counts.ready);
    let may_go = (u64::from(all) * u64::from(update.max_unavailable) / 100).max(1);
    let more = u32::try_from(may_go).unwrap_or(u32::MAX).saturating_sub(away);
    let on_their_way = counts.updated.saturating_sub(counts.updated_ok);
    let more = if on_their_way == 0 { more.max(1) } else { more };
    wanted.min(counts.updated.saturating_add(more)).max(counts.updated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(there: u32, updated: u32, updated_ok: u32, away: u32) -> RoleCounts {
        let ready = there - away;
        RoleCounts {
            goal: there,
            there,
            size: there,
            seen: there,
            ready,
            updated,
            updated_ok,
            ..RoleCounts::default()
        }
    }

    #[test]
    fn roles_are_updated_in_parallel() {
        let update = |max_skew, max_unavailable| Update { max_skew, max_unavailable };
        for (decode, prefill, with, expected) in [
            (counts(40, 0, 0, 0), counts(20, 0, 0, 0), update(10, 5), [2, 1]),
            (counts(40, 0, 0, 0), counts(20, 0, 0, 0), update(10, 50), [4, 2]),
            // Two of 40 may be away, and are.
            (counts(40, 2, 0, 2), counts(20, 1, 1, 0), update(10, 5), [2, 2]),
            (counts(40, 2, 2, 0), counts(20, 1, 1, 0), update(10, 5), [4, 2]),
            // The one that is ahead waits.
            (counts(40, 8, 8, 0), counts(20, 1, 1, 0), update(10, 50), [8, 3]),
            // Nothing is as small as the skew: one at a time, the slowest first.
            (counts(4, 0, 0, 0), counts(2, 1, 1, 0), update(1, 5), [1, 1]),
            (counts(4, 3, 3, 0), counts(2, 1, 1, 0), update(1, 5), [3, 2]),
            // All are broken, and the update may be what mends them.
            (counts(4, 0, 0, 4), counts(2, 0, 0, 2), update(10, 5), [1, 1]),
            (counts(4, 1, 0, 4), counts(2, 1, 0, 2), update(10, 5), [1, 1]),
            (counts(4, 4, 4, 0), counts(2, 2, 2, 0), update(10, 5), [4, 2]),
            (counts(0, 0, 0, 0), counts(2, 0, 0, 0), update(10, 5), [0, 1]),
        ] {
            assert_eq!(targets(&[decode, prefill], with), expected, "{decode:?} {prefill:?} {with:?}");
        }
    }

    /// All states of two roles: the skew holds, and every update ends.
    #[test]
    fn the_skew_is_kept_and_updates_end() {
        let with = Update { max_skew: 7, max_unavailable: 100 };
        for a in 1..=40u32 {
            for b in 1..=40u32 {
                let (mut x, mut y) = (0, 0);
                let mut rounds = 0;
                while (x, y) != (a, b) {
                    let next = targets(&[counts(a, x, x, 0), counts(b, y, y, 0)], with);
                    assert!(next[0] + next[1] > x + y, "{a} {b}: stands still at {x} and {y}");
                    (x, y) = (next[0], next[1]);
                    let apart = (u64::from(x) * u64::from(b)).abs_diff(u64::from(y) * u64::from(a)) * 100;
                    let most = u64::from(with.max_skew) * u64::from(a * b) + 100 * u64::from(a.max(b));
                    let is_done = x == a || y == b;
                    assert!(is_done || apart <= most, "{a} {b}: {x} and {y} are too far apart");
                    rounds += 1;
                }
                assert!(rounds <= a + b);
            }
        }
    }
}
