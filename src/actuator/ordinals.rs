//! Scale-down of controllers that delete the highest ordinals: ready pods would be deleted while lower
//! ordinals, which stay, are unready. The role waits for those.

use std::sync::Arc;
use std::time::Duration;

use super::drain::Choice;
use super::observe::Observed;
use super::pods::PodObject;
use super::state::Actuator;
use super::target::Target;
use crate::capacity::plan::RolePlan;
use crate::capacity::rollout::{BATCH_TIMEOUT, Pace};
use crate::capacity::{Plan, Policy};

/// Ready pods that a scale-down would delete although remaining ones are not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// Names of the ready pods that would be deleted.
    pub(super) goes: Vec<String>,
    /// Remaining pods that are unready or missing.
    unready: u32,
}

/// Remaining and deleted pods of a scale-down from `replicas` to `write`, by ordinal.
pub(super) fn split<'p>(
    pods: &[&'p PodObject],
    replicas: u32,
    write: u32,
) -> (Vec<&'p PodObject>, Vec<&'p PodObject>) {
    let mut stays: Vec<&PodObject> = pods.iter().copied().filter(|pod| pod.is_alive()).collect();
    stays.sort_by_key(|pod| (pod.ordinal(), pod.name()));
    // With a pod missing, ordinals decide, counted from 0.
    let place = match stays.len() < replicas as usize {
        true => stays.partition_point(|pod| pod.ordinal().is_none_or(|ordinal| ordinal < write)),
        false => (write as usize).min(stays.len()),
    };
    let goes = stays.split_off(place);
    (stays, goes)
}

/// Returns `true` if a scale-down to `write` deletes only pods at our gate, which have never run.
pub(super) fn loses_gated_only(pods: &[&PodObject], target: &Target, write: u32) -> bool {
    let goes = target.replicas.saturating_sub(write) as usize;
    match Choice::of(&target.reference) {
        Some(Choice::Ordinal) => split(pods, target.replicas, write).1.iter().all(|pod| pod.is_gated()),
        Some(Choice::Cost) => pods.iter().filter(|pod| pod.is_alive() && pod.is_gated()).count() >= goes,
        None => false,
    }
}

/// Loss of a scale-down from `replicas` to `write`. `None`: no ready pod is deleted, or all remaining ones
/// are ready.
pub(super) fn loss(pods: &[&PodObject], replicas: u32, write: u32) -> Option<Loss> {
    let (stays, goes) = split(pods, replicas, write);
    let unready = write.saturating_sub(stays.iter().filter(|pod| pod.is_ready()).count() as u32);
    let goes: Vec<String> =
        goes.iter().filter(|pod| pod.is_ready()).map(|pod| pod.name().to_owned()).collect();
    (unready > 0 && !goes.is_empty()).then_some(Loss { goes, unready })
}

/// Fewest replicas, at least `write`, that include a ready pod; `replicas` if none is ready.
fn keeping_one(pods: &[&PodObject], replicas: u32, write: u32) -> u32 {
    let has_ready = |write: &u32| split(pods, replicas, *write).0.iter().any(|pod| pod.is_ready());
    (write..replicas).find(has_ready).unwrap_or(replicas)
}

/// Returns `true` if so many ready pods keep a role, by index, within the limits of its policy while it
/// shrinks: the ratio, and at most one step ahead of other shrinking roles.
fn keeps_together(policy: &Policy, goals: &[u32], ready: &[u32], place: usize) -> bool {
    let of = |place: usize| ready.get(place).copied().unwrap_or(0);
    if policy.ratio.is_some_and(|ratio| !ratio.bounds.hold(of(ratio.numerator), of(ratio.denominator))) {
        return false;
    }
    let Some(Pace::Steps(steps)) = policy.rollout.as_ref().and_then(|rollout| rollout.pace.as_ref()) else {
        return true;
    };
    let step = |place: usize| steps.get(place).map_or(0, |step| u64::from(*step));
    let (own, own_step) = (u64::from(of(place)), step(place));
    let is_behind = |other: usize| {
        let (ready, step) = (u64::from(of(other)), step(other));
        // A role at its goal stays, and doesn't count for the others' progress.
        let is_open = step > 0 && goals.get(other).is_some_and(|goal| ready > u64::from(*goal));
        is_open && (own + own_step).saturating_mul(step) < ready.saturating_mul(own_step)
    };
    !(0..ready.len()).any(|other| other != place && is_behind(other))
}

/// Factor of the timeout after which replicas are written whatever the remaining pods keep, if one of them is
/// ready: those may have no node before others are deleted.
const LONGEST: u32 = 2;

impl Actuator {
    /// Roles, by index, that keep their replicas: their controller, or that of the ratio's other role, would
    /// delete ready pods while remaining ones are unready. `shrinks`: roles whose replicas would be written.
    pub(super) fn held_up(
        &mut self,
        policy: &Policy,
        plan: &mut Plan,
        seen: &Observed,
        shrinks: &[bool],
        now: Duration,
    ) -> Vec<bool> {
        let goals: Vec<u32> = plan.roles.iter().map(|role| role.goal).collect();
        let ready: Vec<u32> = (seen.objects.iter())
            .map(|pods| pods.iter().filter(|pod| pod.is_alive() && pod.is_ready()).count() as u32)
            .collect();
        let with = |place: usize, left: u32| {
            let mut ready = ready.clone();
            if let Some(ready) = ready.get_mut(place) {
                *ready = left;
            }
            keeps_together(policy, &goals, &ready, place)
        };
        let limit = policy.rollout.as_ref().map_or(BATCH_TIMEOUT, |rollout| rollout.batch_timeout);
        let mut held = vec![false; plan.roles.len()];
        for ((place, role), held) in plan.roles.iter_mut().enumerate().zip(&mut held) {
            let key = (policy.name.clone(), role.name.clone());
            let target = seen.targets.get(place).and_then(Option::as_ref);
            let target = target.filter(|target| Choice::of(&target.reference) == Some(Choice::Ordinal));
            // In a trim, too: it removes pods beyond complete groups, and these belong to one.
            let asks = shrinks.get(place) == Some(&true);
            let pods: Vec<&PodObject> =
                seen.objects.get(place).into_iter().flatten().map(Arc::as_ref).collect();
            let loss = target.filter(|_| asks).and_then(|target| loss(&pods, target.replicas, role.write));
            let Some(loss) = loss else {
                self.unready_since.remove(&key);
                continue;
            };
            let since = *self.unready_since.entry(key).or_insert(now);
            let left = ready.get(place).map_or(0, |ready| ready.saturating_sub(loss.goes.len() as u32));
            let waited = now.saturating_sub(since);
            let is_over = waited >= limit * LONGEST || (waited >= limit && with(place, left));
            if is_over {
                // A role with desired pods keeps a ready one.
                let least = target.map_or(0, |target| keeping_one(&pods, target.replicas, role.write));
                if left == 0 {
                    // Pods beyond the admitted ones would wait at gates.
                    role.admitted = role.admitted.max(least);
                    role.write = least;
                }
                if target.is_some_and(|target| role.write < target.replicas) {
                    continue;
                }
            }
            *held = true;
            self.unready.push(format!(
                "role {}: unready lower ordinals: {}, ready pods that scale-down would delete: {}",
                role.name,
                loss.unready,
                loss.goes.join(", ")
            ));
        }
        if let Some(ratio) = &policy.ratio {
            for (one, other) in [(ratio.numerator, ratio.denominator), (ratio.denominator, ratio.numerator)] {
                // Pods that aren't ready go first.
                let left =
                    |role: &RolePlan| ready.get(other).map_or(role.write, |ready| role.write.min(*ready));
                let waits = held.get(one) == Some(&true) && shrinks.get(other) == Some(&true);
                let breaks = plan.roles.get(other).is_some_and(|role| !with(other, left(role)));
                if let Some(held) = held.get_mut(other).filter(|_| waits && breaks) {
                    *held = true;
                }
            }
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::actuator::pods::tests::pod;
    use crate::capacity::policy::file;

    fn pods(all: &[(u32, bool)]) -> Vec<PodObject> {
        let of = |(ordinal, is_ready): &(u32, bool)| {
            let ready = if *is_ready { "True" } else { "False" };
            pod(json!({
                "metadata": {"name": format!("p-{ordinal}")},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
        };
        all.iter().map(of).collect()
    }

    #[test]
    fn loss_names_ready_pods_above_unready_ones() {
        let (up, down) = (true, false);
        for (all, replicas, write, expected) in [
            (&[(0, down), (1, up)][..], 2, 1, Some((&["p-1"][..], 1))),
            (&[(0, up), (1, up)], 2, 1, None),
            (&[(0, up), (1, down)], 2, 1, None),
            (&[(0, down), (1, down)], 2, 1, None),
            (&[(0, down), (10, up), (9, up)], 3, 1, Some((&["p-9", "p-10"], 1))),
            // One of those that stay isn't there, or one of those that go.
            (&[(1, up), (2, up)], 3, 2, Some((&["p-2"], 1))),
            (&[(0, up), (1, up)], 3, 2, None),
            (&[(0, up), (2, up)], 3, 1, None),
            // Numbers that don't begin at 0.
            (&[(5, down), (6, up)], 2, 1, Some((&["p-6"], 1))),
            (&[(5, up), (6, up)], 2, 1, None),
            (&[(0, up), (1, up)], 2, 0, None),
        ] {
            let pods = pods(all);
            let found = loss(&pods.iter().collect::<Vec<_>>(), replicas, write);
            let expected = expected.map(|(goes, unready)| Loss {
                goes: goes.iter().map(|name| (*name).to_owned()).collect(),
                unready,
            });
            assert_eq!(found, expected, "{all:?} {replicas} {write}");
        }
    }

    #[test]
    fn ready_pods_are_checked_against_ratio_and_steps() {
        let policy = |more: &str| {
            let text = format!(
                "{{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {{name: p}}, spec: {{roles: {{a: {{min: 1, max: 16}}, b: {{min: 1, max: 8}}}}, {more}}}}}"
            );
            file::parse(&text).unwrap().remove(0).policy
        };
        let ratio = policy("coordination: {ratio: {numerator: b, denominator: a, min: '1:3', max: '1:1'}}");
        let steps = policy("deploy: {steps: {a: 4, b: 2}}");
        let plain = policy("interval: 15s");
        for (place, ready, keeps) in [
            // A ratio, steps, neither.
            (1, [3, 1], [true, true, true]),
            (1, [4, 1], [false, true, true]),
            (1, [1, 2], [false, true, true]),
            (1, [12, 4], [true, true, true]),
            (1, [12, 3], [false, false, true]),
            // Also of a role that has come to its goal.
            (1, [12, 2], [false, false, true]),
            (0, [12, 2], [false, true, true]),
            (0, [8, 8], [true, false, true]),
            (0, [4, 8], [false, false, true]),
        ] {
            let found = [&ratio, &steps, &plain].map(|policy| keeps_together(policy, &[4, 2], &ready, place));
            assert_eq!(found, keeps, "{place} {ready:?}");
        }
    }

    #[test]
    fn lowest_ordinals_stay() {
        let pods = pods(&[(4, true), (0, false), (1, true), (3, true)]);
        let pods: Vec<&PodObject> = pods.iter().collect();
        let names = |of: Vec<&PodObject>| of.iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>();
        let (stays, goes) = split(&pods, 5, 3);
        assert_eq!(
            (names(stays), names(goes)),
            (vec!["p-0".into(), "p-1".into()], vec!["p-3".into(), "p-4".into()])
        );
    }
}
