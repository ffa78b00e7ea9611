//! What a group's ticks remember.

use std::time::Duration;

use super::growth::Growth;
use crate::behavior::Past;
use crate::inputs::Inputs;
use crate::plan::{Plan, RolePlan};
use crate::policy::{Mode, Policy, Sizing};
use crate::rollout;
use crate::rules::Cooldowns;

/// What a group's ticks remember. It belongs to one policy: another one begins anew.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub(super) past: Past,
    pub(super) growth: Growth,
    pub(super) cooldowns: Cooldowns,
    /// Since when each role has been idle.
    idle: Vec<Option<Idle>>,
    /// Roles on their way to fewer pods.
    shrinking: Vec<Option<Shrinking>>,
    /// Ways of the roles of a group whose size nothing sets, as the last tick left them.
    kept: Vec<Way>,
    /// What the order in which pods come up remembers.
    pub rollout: rollout::Memory,
}

/// A role without work.
#[derive(Clone, Copy, Debug)]
struct Idle {
    since: Duration,
    /// Requests that had been sent there.
    sent: u64,
}

/// A role on its way to fewer pods, as the last tick left it.
#[derive(Clone, Copy, Debug)]
struct Shrinking {
    current: u32,
    write: u32,
    goal: u32,
}

/// Way of a role from so many pods to so many.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Pods that it had.
    pub current: u32,
    /// Pods that it is to have.
    pub goal: u32,
}

impl Way {
    /// Pods that a role counts for that has so many: while it is on its way, those at its end.
    fn size(&self, current: u32) -> u32 {
        let (low, high) = (self.current.min(self.goal), self.current.max(self.goal));
        if (low..=high).contains(&current) { self.goal } else { current }
    }
}

impl History {
    /// Pods of each role of a group whose size nothing sets. What the last tick asked for counts as done: some
    /// roles keep pods until others have grown, and both would count for one place in the group. Replicas
    /// that somebody else has written count as they are.
    pub(super) fn kept_sizes(&self, roles: &[RolePlan]) -> Vec<u32> {
        let size = |(place, role): (usize, &RolePlan)| {
            self.kept.get(place).map_or(role.current, |way| way.size(role.current))
        };
        roles.iter().enumerate().map(size).collect()
    }

    /// Notes where the roles of such a group are to go.
    pub(super) fn note_kept(&mut self, policy: &Policy, plan: &Plan) {
        let is_kept = matches!(policy.sizing, Sizing::Kept);
        let way = |role: &RolePlan| Way { current: role.current, goal: role.goal };
        self.kept = plan.roles.iter().filter(|_| is_kept).map(way).collect();
    }

    /// Whoever ticked the group before left its roles, by place, on these ways.
    pub fn resume_ways(&mut self, ways: Vec<Way>) {
        self.kept = ways;
    }

    /// Pods that each role is to lose yet, unless somebody else has written its replicas since.
    pub(super) fn surplus(&self, inputs: &Inputs) -> Vec<u32> {
        let surplus = |(place, of): (usize, &Option<Shrinking>)| {
            let replicas = inputs.replicas.get(place).copied().unwrap_or_default();
            let of = of.filter(|of| [of.current, of.write].contains(&replicas));
            of.map_or(0, |of| replicas.saturating_sub(of.goal))
        };
        self.shrinking.iter().enumerate().map(surplus).collect()
    }

    /// Notes which roles of a plan get smaller.
    pub(super) fn note_shrinking(&mut self, policy: &Policy, plan: &Plan) {
        let is_ours = policy.mode == Mode::Apply && matches!(policy.sizing, Sizing::Total(_));
        let of = |role: &RolePlan| {
            let RolePlan { current, write, goal, .. } = *role;
            (is_ours && goal < current).then_some(Shrinking { current, write, goal })
        };
        self.shrinking = plan.roles.iter().map(of).collect();
    }

    /// Whether each role serves: something runs or waits there, or came within the window of shrinking.
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

    /// Of a group that somebody else sized until now, and that has `total` pods: windows begin now.
    pub fn resumed(total: u32, now: Duration) -> Self {
        Self { past: Past::resumed(total, now), ..Self::default() }
    }

    /// A rule, by its place in the policy, fired so long before `now` for whoever ticked the group then.
    pub fn resume_rule(&mut self, rule: usize, ago: Duration, now: Duration) {
        self.cooldowns.resume(rule, ago, now);
    }

    /// When a rule fired last, by its place in the policy.
    pub fn last_fired(&self, rule: usize) -> Option<Duration> {
        self.cooldowns.last(rule)
    }

    /// Takes the rules back that fired at the last tick for roles, by place, whose replicas were not written:
    /// they don't rest, and don't count.
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
