//! Memory of a group's ticks.

use std::time::Duration;

use super::growth::Growth;
use crate::behavior::PastSizes;
use crate::inputs::Inputs;
use crate::plan::{Plan, RolePlan};
use crate::policy::{Mode, Policy, Sizing};
use crate::rollout;
use crate::rules::Cooldowns;

/// Memory of a group's ticks. It belongs to one policy.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub(super) past: PastSizes,
    pub(super) growth: Growth,
    pub(super) cooldowns: Cooldowns,
    /// Time since which each role has been idle.
    idle: Vec<Option<Idle>>,
    /// Shrinking roles.
    shrinking: Vec<Option<Shrinking>>,
    /// Size that the last tick recommended; `None` in mode Apply.
    recommended: Option<Recommended>,
    /// Changes of the roles of an unsized group.
    changes: Vec<Change>,
    /// Memory of the rollout.
    pub rollout: rollout::Memory,
}

/// A role without work.
#[derive(Clone, Copy, Debug)]
struct Idle {
    since: Duration,
    /// Requests sent by then.
    sent: u64,
}

/// A shrinking role, as the last tick left it.
#[derive(Clone, Copy, Debug)]
struct Shrinking {
    current: u32,
    write: u32,
    goal: u32,
}

/// A size that the last tick asked for.
#[derive(Clone, Copy, Debug)]
struct Recommended {
    size: u32,
    /// Most pods that may exist by then: existing or asked-for ones.
    most: u32,
}

/// Change of a role's size that the last tick asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Pods before.
    pub from: u32,
    /// Pods after.
    pub to: u32,
}

impl Change {
    /// Returns `true` if a role with these pods is changing.
    fn is_under_way(self, current: u32) -> bool {
        (self.from.min(self.to)..=self.from.max(self.to)).contains(&current)
    }
}

impl History {
    /// Pods of each role of an unsized group while all roles are changing as the last tick asked: changes
    /// count as done. Some roles keep pods until others have grown, and both would count for one place in the
    /// group. Sizes set by others meanwhile count if beyond that.
    pub(super) fn kept_sizes(&self, roles: &[RolePlan]) -> Option<Vec<u32>> {
        let all = self.changes.len() == roles.len()
            && roles.iter().zip(&self.changes).all(|(role, change)| change.is_under_way(role.current));
        all.then(|| self.changes.iter().map(|change| change.to).collect())
    }

    /// Records the changes of an unsized group. Roles with unknown metrics continue their change.
    pub(super) fn note_changes(&mut self, policy: &Policy, plan: &mut Plan, blind: &[bool]) {
        if !matches!(policy.sizing, Sizing::Kept) {
            self.changes.clear();
            return;
        }
        let is_known = self.kept_sizes(&plan.roles).is_some();
        let before = std::mem::take(&mut self.changes);
        for (place, role) in plan.roles.iter_mut().enumerate() {
            let goes_on = is_known && blind.get(place) == Some(&true);
            let goes_on = before.get(place).copied().filter(|_| goes_on);
            let change = goes_on.unwrap_or(Change { from: role.current, to: role.goal });
            role.counts_as = Some(change.to);
            self.changes.push(change);
        }
    }

    /// Changes that the last tick asked for in an unsized group, by role.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Restores changes, by role, of the previous leader.
    pub fn resume_changes(&mut self, changes: Vec<Change>) {
        self.changes = changes;
    }

    /// Growth in progress.
    pub fn growth(&self) -> &Growth {
        &self.growth
    }

    /// Restores the growth of the previous leader.
    pub fn resume_growth(&mut self, growth: Growth) {
        self.growth = growth;
    }

    /// Pods that each role is yet to lose, unless another writer has set its replicas since.
    pub(super) fn surplus(&self, inputs: &Inputs) -> Vec<u32> {
        let surplus = |(place, of): (usize, &Option<Shrinking>)| {
            let replicas = inputs.replicas.get(place).copied().unwrap_or_default();
            let of = of.filter(|of| [of.current, of.write].contains(&replicas));
            of.map_or(0, |of| replicas.saturating_sub(of.goal))
        };
        self.shrinking.iter().enumerate().map(surplus).collect()
    }

    /// Records shrinking roles of a plan.
    pub(super) fn note_shrinking(&mut self, policy: &Policy, plan: &Plan) {
        let is_ours = policy.mode == Mode::Apply && matches!(policy.sizing, Sizing::Total(_));
        let of = |role: &RolePlan| {
            let RolePlan { current, write, goal, .. } = *role;
            (is_ours && goal < current).then_some(Shrinking { current, write, goal })
        };
        self.shrinking = plan.roles.iter().map(of).collect();
    }

    /// Size that the last tick asked for and that another writer is applying, with these pods: some roles
    /// keep theirs until others have grown, and lose them afterwards.
    pub(super) fn recommended_size(&self, current: u32) -> Option<u32> {
        self.recommended.filter(|recommended| current <= recommended.most).map(|recommended| recommended.size)
    }

    /// Records the size that a plan asks for, if another writer sets replicas.
    pub(super) fn note_size(&mut self, policy: &Policy, plan: &Plan) {
        let sum = |of: fn(&RolePlan) -> u32| {
            plan.roles.iter().fold(0, |sum: u32, role| sum.saturating_add(of(role)))
        };
        let recommended = || Recommended {
            size: plan.stages.size,
            most: sum(|role| role.current).max(sum(|role| role.write)),
        };
        let is_others = policy.mode != Mode::Apply && matches!(policy.sizing, Sizing::Total(_));
        self.recommended = is_others.then(recommended);
    }

    /// Records serving roles: with running or waiting requests, or some within the scale-down window.
    pub(super) fn serving(&mut self, inputs: &Inputs, policy: &Policy, now: Duration) -> Vec<bool> {
        self.idle.resize(policy.roles.len(), None);
        let serves = self.idle.iter_mut().enumerate().map(|(role, idle)| {
            let Some(work) = inputs.work.get(role) else { return false };
            if work.is_busy {
                *idle = None;
                return true;
            }
            let same = idle.filter(|idle| idle.sent == work.sent);
            let since = idle.insert(same.unwrap_or(Idle { since: now, sent: work.sent })).since;
            now.saturating_sub(since) < policy.behavior.down.stabilization
        });
        serves.collect()
    }

    /// History of a group that another replica sized, with `total` pods: windows begin now.
    pub fn resumed(total: u32, now: Duration) -> Self {
        Self { past: PastSizes::resumed(total, now), ..Self::default() }
    }

    /// Records that a rule, by index, fired at the previous leader `ago` before `now`.
    pub fn resume_rule(&mut self, rule: usize, ago: Duration, now: Duration) {
        self.cooldowns.resume(rule, ago, now);
    }

    /// Records that firings more than `ago` before `now` are unknown: rules that remove pods cool down.
    pub fn begin_unknown_rules(&mut self, ago: Duration, now: Duration) {
        self.cooldowns.begin_unknown(ago, now);
    }

    /// Time at `now` for which fired rules have been known, if earlier ones are unknown.
    pub fn rules_unknown_for(&self, now: Duration) -> Option<Duration> {
        self.cooldowns.unknown_for(now)
    }

    /// Time from the last firing of a rule, by index, to `now`, here or elsewhere.
    pub fn since_fired(&self, rule: usize, now: Duration) -> Option<Duration> {
        self.cooldowns.ago(rule, now)
    }

    /// Last firing of a rule here, by index.
    pub fn last_fired(&self, rule: usize) -> Option<Duration> {
        self.cooldowns.last(rule)
    }

    /// Reverts rules that fired at the last tick for roles, by index, whose replicas were not written: they
    /// don't cool down, and don't count.
    pub fn take_back(&mut self, policy: &Policy, plan: &mut Plan, roles: &[usize]) {
        let Sizing::Rules(rules) = &policy.sizing else { return };
        for (place, rule) in rules.iter().enumerate() {
            if roles.contains(&rule.role) && plan.fired.contains(&rule.name) {
                self.cooldowns.take_back(place);
                plan.fired.retain(|fired| *fired != rule.name);
            }
        }
    }
}
