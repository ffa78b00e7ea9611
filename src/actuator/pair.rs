//! Roles with a ratio: neither shrinks without the other.

use std::sync::Arc;

use super::drain::Choice;
use super::observe::Observed;
use super::ordinals::{loses_gated_only, loss};
use super::pods::PodObject;
use super::shrink::Drained;
use crate::capacity::plan::Reason;
use crate::capacity::ratio::RatioBounds;
use crate::capacity::{Plan, Policy};

/// Returns `true` if another writer sets the replicas of the ratio's other role, so that it doesn't follow.
pub(super) fn has_held_partner(policy: &Policy, place: usize, observed: &Observed) -> bool {
    let has_target = |of: usize| observed.targets.get(of).is_some_and(Option::is_some);
    let is_held = |of: usize| observed.may_write.get(of) == Some(&false) && has_target(of);
    let pair = policy.ratio.map(|ratio| [ratio.numerator, ratio.denominator]);
    pair.is_some_and(|pair| pair.contains(&place) && pair.into_iter().any(is_held))
}

/// Limits roles whose ratio partner has no target, so that the ratio holds with the partner's pods. Minima
/// still hold. Returns the indices of limited roles.
///
/// `passed` returns the admitted pods of a role: that many of the remaining ones may be replaced.
pub(super) fn keep_beside_no_target(
    policy: &Policy,
    plan: &mut Plan,
    observed: &Observed,
    passed: impl Fn(&str) -> u32,
) -> Vec<usize> {
    let has_none = |of: usize| observed.targets.get(of).is_some_and(Option::is_none);
    let mut limited = Vec::new();
    for (place, own) in policy.roles.iter().enumerate() {
        let Some(replicas) = observed.replicas.get(place).copied().filter(|_| !has_none(place)) else {
            continue;
        };
        if !partner(policy, place).is_some_and(has_none) {
            continue;
        }
        let write = |plan: &Plan| plan.roles.get(place).map_or(replicas, |role| role.write);
        let wanted = write(plan);
        while write(plan) != replicas.max(own.range.min.min(wanted))
            && breaks_alone(policy, plan, observed, place)
            && changes_serving(plan, observed, place)
        {
            let Some(role) = plan.roles.get_mut(place) else { break };
            role.write = if role.write > replicas { role.write - 1 } else { role.write + 1 };
        }
        if write(plan) != wanted {
            if let Some(role) = plan.roles.get_mut(place) {
                role.admitted = match role.write > wanted {
                    true => role.admitted.max(role.write.min(passed(&own.name))),
                    false => role.admitted.min(role.write),
                };
            }
            limited.push(place);
        }
        if keeps_trimmed(policy, plan, observed, place) && !limited.contains(&place) {
            limited.push(place);
        }
    }
    limited
}

/// Keeps ready pods of a role, by index, that a trim would evict and the ratio needs. Returns `true` if any
/// are kept.
fn keeps_trimmed(policy: &Policy, plan: &mut Plan, observed: &Observed, place: usize) -> bool {
    let Some((ratio, other)) = policy.ratio.as_ref().zip(partner(policy, place)) else { return false };
    let Some((own, other)) = written(plan, observed, place).zip(written(plan, observed, other)) else {
        return false;
    };
    let Some(role) = plan.roles.get_mut(place).filter(|role| role.reasons.contains(&Reason::Trimmed)) else {
        return false;
    };
    let before = role.admitted;
    let left = |becomes: u32| Written { becomes: becomes.min(own.ready), ..own };
    while role.admitted < own.ready
        && breaks(&ratio.bounds, left(role.admitted), other, place == ratio.numerator)
    {
        role.admitted += 1;
    }
    role.admitted > before
}

/// Returns `true` if a write of a role's replicas, by index, adds pods or removes some that are or may soon
/// be ready.
fn changes_serving(plan: &Plan, observed: &Observed, place: usize) -> bool {
    let Some((role, pods)) = written(plan, observed, place).zip(observed.objects.get(place)) else {
        return false;
    };
    let Some((own, target)) = plan.roles.get(place).zip(observed.targets.get(place).and_then(Option::as_ref))
    else {
        return false;
    };
    if role.grows() || role.becomes < role.ready {
        return true;
    }
    // Pods that were not ready in time are abandoned.
    let pods: Vec<&PodObject> = pods.iter().map(Arc::as_ref).collect();
    !own.reasons.contains(&Reason::Trimmed) && !loses_gated_only(&pods, target, own.write)
}

/// A role of a ratio.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// Ready pods, draining ones included.
    ready: u32,
    /// Ready pods after its replicas are written.
    left: u32,
    /// State of the pods that it loses; `None`: none.
    drained: Option<Drained>,
}

/// Marks which of two roles waits for the other's pods to drain, as shrinking alone would break the ratio.
fn waits(bounds: &RatioBounds, numerator: Side, denominator: Side) -> [bool; 2] {
    let is_first =
        |one: Side, other: Side| (one.drained, other.drained) == (Some(Drained::Yes), Some(Drained::NotYet));
    [
        is_first(numerator, denominator) && !bounds.hold(numerator.left, denominator.ready),
        is_first(denominator, numerator) && !bounds.hold(numerator.ready, denominator.left),
    ]
}

/// A role of a ratio: its replicas, and the ready pods that a write leaves.
#[derive(Clone, Copy, Debug)]
struct Written {
    ready: u32,
    replicas: u32,
    /// Remaining ready pods, or the desired ones if it grows.
    becomes: u32,
}

impl Written {
    fn grows(self) -> bool {
        self.becomes > self.replicas
    }
}

/// A role, by index, with its planned replicas.
fn written(plan: &Plan, observed: &Observed, place: usize) -> Option<Written> {
    let (role, pods) = (plan.roles.get(place)?, observed.objects.get(place)?);
    let ready = pods.iter().filter(|pod| pod.is_alive() && pod.is_ready()).count() as u32;
    let Some(target) = observed.targets.get(place)? else {
        // Nothing is written to it.
        return Some(Written { ready, replicas: *observed.replicas.get(place)?, becomes: ready });
    };
    if role.write > target.replicas {
        return Some(Written { ready, replicas: target.replicas, becomes: role.write });
    }
    let loss = match Choice::of(&target.reference) {
        Some(Choice::Ordinal) => {
            let pods: Vec<&PodObject> = pods.iter().map(Arc::as_ref).collect();
            loss(&pods, target.replicas, role.write)
        }
        _ => None,
    };
    // Unready pods are deleted first, unless ordinals decide.
    let left = match loss {
        Some(loss) => ready.saturating_sub(loss.goes.len() as u32),
        None => role.write.min(ready),
    };
    Some(Written { ready, replicas: target.replicas, becomes: left })
}

/// Marks roles, by index, that keep their replicas until pods of the ratio's other role are drained.
/// `drained` is by role; `None`: it loses none. Both drain no longer than their policy allows, so neither
/// waits forever.
pub(super) fn wait_for_partners(
    policy: &Policy,
    plan: &Plan,
    observed: &Observed,
    drained: &[Option<Drained>],
) -> Vec<bool> {
    let mut held = vec![false; plan.roles.len()];
    let Some(ratio) = &policy.ratio else { return held };
    let side = |place: usize| {
        let Written { ready, becomes, .. } = written(plan, observed, place)?;
        Some(Side { ready, left: becomes.min(ready), drained: drained.get(place).copied().flatten() })
    };
    if let (Some(numerator), Some(denominator)) = (side(ratio.numerator), side(ratio.denominator)) {
        let places = [ratio.numerator, ratio.denominator];
        for (place, waits) in places.into_iter().zip(waits(&ratio.bounds, numerator, denominator)) {
            if let Some(held) = held.get_mut(place) {
                *held = waits;
            }
        }
    }
    held
}

/// Returns `true` if a write of one role alone breaks a ratio, or breaks it further.
fn breaks(bounds: &RatioBounds, one: Written, other: Written, is_numerator: bool) -> bool {
    // Starting pods count for growth: they are ready before newly requested ones.
    let beside = if one.grows() { other.replicas } else { other.ready };
    match (is_numerator, one.grows()) {
        (true, true) => bounds.is_above(one.becomes, beside),
        (true, false) => bounds.is_below(one.becomes, beside),
        (false, true) => bounds.is_below(beside, one.becomes),
        (false, false) => bounds.is_above(beside, one.becomes),
    }
}

/// Returns `true` if a write of a role alone, by index, breaks its ratio.
fn breaks_alone(policy: &Policy, plan: &Plan, observed: &Observed, place: usize) -> bool {
    let Some((ratio, other)) = policy.ratio.as_ref().zip(partner(policy, place)) else { return false };
    let sides = written(plan, observed, place).zip(written(plan, observed, other));
    sides.is_some_and(|(one, other)| breaks(&ratio.bounds, one, other, place == ratio.numerator))
}

/// Index of the ratio's other role.
fn partner(policy: &Policy, place: usize) -> Option<usize> {
    let ratio = policy.ratio.as_ref()?;
    match place {
        place if place == ratio.numerator => Some(ratio.denominator),
        place if place == ratio.denominator => Some(ratio.numerator),
        _ => None,
    }
}

/// Returns `true` if a role, by index, keeps its replicas as the write of the ratio's other role failed or
/// may have failed: it would break the ratio alone. `failed` has the indices of such roles.
pub(super) fn stays_with_partner(
    policy: &Policy,
    plan: &Plan,
    observed: &Observed,
    place: usize,
    failed: &[usize],
) -> bool {
    partner(policy, place).is_some_and(|other| failed.contains(&other))
        && breaks_alone(policy, plan, observed, place)
}

/// Order of writes, by index: of two roles with a ratio first the one that keeps it alone, as the second
/// write may fail.
pub(super) fn order(policy: &Policy, plan: &Plan, observed: &Observed) -> Vec<usize> {
    let mut order: Vec<usize> = (0..plan.roles.len()).collect();
    order.sort_by_key(|place| breaks_alone(policy, plan, observed, *place));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::ratio::Fraction;

    #[test]
    fn role_waits_for_its_partner_to_drain_to_keep_the_ratio() {
        let of = |text: &str| Fraction::parse(text).unwrap();
        let bounds = RatioBounds { min: of("1:3"), max: Some(of("1:1")) };
        let (yes, not_yet, none) = (Some(Drained::Yes), Some(Drained::NotYet), None);
        for (numerator, denominator, expected) in [
            // The denominator would have fewer.
            ((5, 2, not_yet), (6, 3, yes), [false, true]),
            ((3, 2, not_yet), (6, 3, yes), [false, false]),
            // Both go together, or neither does yet.
            ((5, 2, yes), (6, 3, yes), [false, false]),
            ((5, 2, not_yet), (6, 3, not_yet), [false, false]),
            // The denominator would have more than three times as many.
            ((4, 2, yes), (9, 4, not_yet), [true, false]),
            ((4, 3, yes), (9, 4, not_yet), [false, false]),
            // Nobody waits for a role that stays as it is.
            ((5, 5, none), (6, 3, yes), [false, false]),
            ((4, 2, yes), (9, 9, none), [false, false]),
        ] {
            let side = |(ready, left, drained)| Side { ready, left, drained };
            let found = waits(&bounds, side(numerator), side(denominator));
            assert_eq!(found, expected, "{numerator:?} {denominator:?}");
        }
    }

    #[test]
    fn a_failed_write_holds_its_partner_where_the_ratio_would_break() {
        let of = |text: &str| Fraction::parse(text).unwrap();
        let bounds = RatioBounds { min: of("1:3"), max: Some(of("1:1")) };
        // Ready pods, replicas, what they become; the same of the other role.
        for (numerator, denominator, expected) in [
            // Both shrink: the numerator may not go alone, the denominator may.
            ((3, 3, 1), (6, 6, 3), [true, false]),
            ((3, 3, 2), (6, 6, 3), [false, false]),
            ((5, 5, 1), (6, 6, 3), [true, true]),
            // Both grow: the pods of the other that start count.
            ((1, 1, 3), (2, 2, 9), [true, true]),
            ((1, 3, 3), (2, 2, 9), [false, false]),
            // The ratio is broken, and this mends it.
            ((1, 1, 1), (9, 9, 6), [true, false]),
        ] {
            let side = |(ready, replicas, becomes)| Written { ready, replicas, becomes };
            let (numerator, denominator) = (side(numerator), side(denominator));
            let found = [
                breaks(&bounds, numerator, denominator, true),
                breaks(&bounds, denominator, numerator, false),
            ];
            assert_eq!(found, expected, "{numerator:?} {denominator:?}");
        }
    }
}
