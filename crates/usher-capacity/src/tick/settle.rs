//! Order in which roles reach their goals: growing ones first.

use std::time::Duration;

use super::Tick;
use super::growth::{Growth, Surge};
use crate::plan::{Condition, Plan, Reason, RolePlan, State};
use crate::policy::Policy;
use crate::rollout::{BATCH_TIMEOUT, PROVISIONING_TIMEOUT, Pace};

impl Tick<'_> {
    /// Computes desired pods: shrinking roles release as many pods as are ready beyond the group's size, and
    /// without nodes for growing roles one more step. Rules size single roles, and don't wait. `unplaced`:
    /// pods of the last step without a domain.
    pub(super) fn settle(mut self, at_once: bool, growth: &mut Growth, unplaced: u32, now: Duration) -> Plan {
        let roles = self.plan.roles.len();
        growth.surges.resize(roles, None);
        growth.follow(&self.plan.roles);
        for role in &mut self.plan.roles {
            role.desired = role.goal;
        }
        let growing = growth.growing.iter().flatten().count();
        let waits: Vec<bool> = self
            .plan
            .roles
            .iter()
            .zip(&growth.growing)
            .map(|(role, grows)| {
                !at_once && role.goal < role.current && growing > usize::from(grows.is_some())
            })
            .collect();
        self.shrink_behind(&waits, growth, unplaced, now);
        for ((role, held), blind) in self.plan.roles.iter_mut().zip(&mut growth.surges).zip(&self.blind) {
            // Without metrics the pods kept for others are unknown.
            if !blind {
                let Surge { desired, goal } = Surge { desired: role.desired, goal: role.goal };
                *held = (desired > goal).then_some(Surge { desired, goal });
            }
            role.counts_as = held.filter(|held| held.desired == role.desired).map(|held| held.goal);
        }
        // A size that only the floor for waiting requests caused gets their reason.
        for (role, own) in self.plan.roles.iter_mut().zip(&self.policy.roles) {
            let is_floor = self.inputs.waiting > 0 && role.goal == 1 && own.range.min == 0;
            if is_floor && role.current == 0 && !role.reasons.contains(&Reason::Waiting) {
                role.reasons.push(Reason::Waiting);
            }
        }
        self.plan.total = self.plan.roles.iter().fold(0, |sum, role| sum.saturating_add(role.desired));
        let changes = self.plan.roles.iter().any(|role| role.desired != role.current);
        self.plan.state = if changes { State::Scale } else { State::Idle };
        self.plan.conditions.sort_unstable();
        self.plan
    }

    /// Limits the shrinking of roles that wait for others to grow.
    fn shrink_behind(&mut self, waits: &[bool], growth: &mut Growth, unplaced: u32, now: Duration) {
        if !waits.contains(&true) {
            growth.clock.clear();
            (growth.is_full, growth.most_ready) = (false, 0);
            return;
        }
        let lacking = self.lacking(growth).max(unplaced);
        self.time(growth, now);
        let sum = |of: fn(&RolePlan) -> u32| {
            self.plan.roles.iter().fold(0u32, |sum, role| sum.saturating_add(of(role)))
        };
        let (ready, mut size) = (sum(|role| role.ready), sum(|role| role.goal));
        if growth.is_full {
            growth.most_ready = growth.most_ready.max(ready);
            size = size.min(growth.most_ready);
        }
        let step = if growth.is_full { lacking.min(step(self.policy, waits)) } else { 0 };
        let mut spare = ready.saturating_add(step).saturating_sub(size);
        for (place, _) in waits.iter().enumerate().filter(|(_, waits)| **waits) {
            let Some(role) = self.plan.roles.get(place) else { continue };
            // Unready pods are removed first, and were not serving.
            let idle = role.current.saturating_sub(role.ready);
            let most = (role.current - role.goal).min(idle.saturating_add(spare));
            let gives = self.keeping_ratio(place, most);
            let Some(role) = self.plan.roles.get_mut(place) else { continue };
            spare = spare.saturating_sub(gives.saturating_sub(idle));
            role.desired = role.current - gives;
            if role.desired > role.goal {
                role.reasons.push(Reason::GrowFirst);
            }
        }
        if growth.is_full {
            self.condition(Condition::BatchTimeout);
        }
    }

    /// Pods of growing roles that the cluster has had no node for.
    fn lacking(&self, growth: &Growth) -> u32 {
        let grows = |place: usize| growth.growing.get(place).is_some_and(Option::is_some);
        let listed =
            self.inputs.pods.iter().filter(|pod| {
                grows(pod.role) && !pod.is_ready && !pod.state.is_scheduled && !pod.state.is_gated
            });
        let starting = self.inputs.starting.iter().enumerate().filter(|(place, _)| grows(*place));
        starting.fold(listed.count() as u32, |sum, (_, starting)| sum.saturating_add(*starting))
    }

    /// Runs the clock of growth without progress.
    fn time(&self, growth: &mut Growth, now: Duration) {
        let rollout = self.policy.rollout.as_ref();
        let timeout = rollout.map_or(BATCH_TIMEOUT, |rollout| rollout.batch_timeout);
        let excused = rollout.map_or(PROVISIONING_TIMEOUT, |rollout| rollout.provisioning_timeout);
        let of = |role: &Option<u32>, count: u32| if role.is_some() { count } else { 0 };
        let roles = || growth.growing.iter().zip(&self.plan.roles);
        let targets: Vec<u32> = roles().map(|(grows, role)| of(grows, role.goal)).collect();
        let up: Vec<u32> = roles().map(|(grows, role)| of(grows, role.ready)).collect();
        if self.inputs.is_held {
            growth.clock.clear();
            return;
        }
        growth.is_full |=
            growth.clock.observe(&targets, &up, self.inputs.provisioning, excused, now) >= timeout;
    }

    /// Pods, at most `most`, that a role can release so that the ratio of serving pods holds, or gets no
    /// worse.
    fn keeping_ratio(&self, place: usize, most: u32) -> u32 {
        let Some(ratio) = self.policy.ratio.filter(|of| [of.numerator, of.denominator].contains(&place))
        else {
            return most;
        };
        let serves = |of: usize, gives: u32| {
            self.plan.roles.get(of).map_or(0, |role| {
                // Only this role's pods are decided here; others may reach their goals.
                let left =
                    if of == place { role.current } else { role.current.min(role.desired.max(role.goal)) };
                role.ready.min(left.saturating_sub(if of == place { gives } else { 0 }))
            })
        };
        // Fewer of one role can only break one of the two bounds. Where the other is broken, they mend it.
        let breaks = |gives: u32| {
            let (x, y) = (serves(ratio.numerator, gives), serves(ratio.denominator, gives));
            if place == ratio.numerator { ratio.bounds.is_below(x, y) } else { ratio.bounds.is_above(x, y) }
        };
        (1..=most).take_while(|gives| !breaks(*gives)).last().unwrap_or(0)
    }
}

/// Pods that waiting roles release at a time if they have to: those of a step, or one.
fn step(policy: &Policy, waits: &[bool]) -> u32 {
    let pace = policy.rollout.as_ref().and_then(|rollout| rollout.pace.as_ref());
    let Some(Pace::Steps(steps)) = pace else { return 1 };
    let own = steps.iter().zip(waits).filter(|(_, waits)| **waits);
    own.fold(0u32, |sum, (step, _)| sum.saturating_add(*step)).max(1)
}
