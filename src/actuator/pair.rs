//! Roles that have a ratio with each other: neither shrinks away from the other.

use std::sync::Arc;

use super::drain::Choice;
use super::observe::Observed;
use super::ordinals::loss;
use super::pods::PodObject;
use super::shrink::Drained;
use crate::capacity::ratio::RatioBounds;
use crate::capacity::{Plan, Policy};

/// Whether the other role of a ratio is written by others: what this one gives up, that one does not follow.
pub(super) fn has_held_partner(policy: &Policy, place: usize, observed: &Observed) -> bool {
    let is_held = |of: usize| observed.may_write.get(of) == Some(&false);
    let pair = policy.ratio.map(|ratio| [ratio.numerator, ratio.denominator]);
    pair.is_some_and(|pair| pair.contains(&place) && pair.into_iter().any(is_held))
}

/// A role of a ratio.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// Pods that are ready, those that get no new requests included.
    ready: u32,
    /// How many of them a write of its replicas leaves.
    left: u32,
    /// Whether the pods that it loses may go; `None`: it loses none.
    drained: Option<Drained>,
}

/// Whether each of two roles waits for pods of the other to answer, as the ratio wouldn't hold if it shrank alone.
fn waits(bounds: &RatioBounds, numerator: Side, denominator: Side) -> [bool; 2] {
    let is_first =
        |one: Side, other: Side| (one.drained, other.drained) == (Some(Drained::Yes), Some(Drained::NotYet));
    [
        is_first(numerator, denominator) && !bounds.hold(numerator.left, denominator.ready),
        is_first(denominator, numerator) && !bounds.hold(numerator.ready, denominator.left),
    ]
}

/// Whether each role, by its place, keeps its replicas until pods of the other role of its ratio have answered.
/// `drained` says of each role whether the pods that it loses may go; `None`: it loses none. Both drain for no
/// longer than their policy allows, so that neither waits for ever.
pub(super) fn wait_for_partners(
    policy: &Policy,
    plan: &Plan,
    observed: &Observed,
    drained: &[Option<Drained>],
) -> Vec<bool> {
    let mut held = vec![false; plan.roles.len()];
    let Some(ratio) = &policy.ratio else { return held };
    let side = |place: usize| {
        let (role, pods) = (plan.roles.get(place)?, observed.objects.get(place)?);
        let ready = pods.iter().filter(|pod| pod.is_alive() && pod.is_ready()).count() as u32;
        let target = observed.targets.get(place)?.as_ref()?;
        let loss = match Choice::of(&target.reference) {
            Some(Choice::Ordinal) => {
                let pods: Vec<&PodObject> = pods.iter().map(Arc::as_ref).collect();
                loss(&pods, target.replicas, role.write)
            }
            _ => None,
        };
        // Pods that aren't ready go first, where ordinals don't say otherwise.
        let left = match loss {
            Some(loss) => ready.saturating_sub(loss.goes.len() as u32),
            None => role.write.min(ready),
        };
        Some(Side { ready, left, drained: drained.get(place).copied().flatten() })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::ratio::Fraction;

    #[test]
    fn a_role_waits_for_its_partner_to_drain_where_the_ratio_would_break() {
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
}
