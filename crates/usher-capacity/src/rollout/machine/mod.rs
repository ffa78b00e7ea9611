//! Rollout state machine of a group: Deploy, Scale and Update, one at a time.

use std::time::Duration;

use super::memory::{Memory, RequestedPods};
use super::role_counts::{RoleCounts, role_counts};
use super::{MOST_TRIMS, OnTimeout, Pace, Rollout, batch, skew, update};
use crate::inputs::Inputs;
use crate::plan::{Condition, OpenRole, Plan, Reason, RolePlan, State, StuckStep};
use crate::policy::{Mode, Policy, Sizing};

mod placing;

/// Role that shrinks last, as requests end there.
const LATE: &str = "decode";

/// Computes admitted pods, placement and the partition of rolling updates. `blind`: roles whose metrics are
/// unknown.
pub(crate) fn roll(
    inputs: &Inputs,
    policy: &Policy,
    blind: &[bool],
    plan: &mut Plan,
    memory: &mut Memory,
    now: Duration,
) {
    let Some(rollout) = &policy.rollout else {
        for role in &mut plan.roles {
            (role.admitted, role.write) = (role.desired, role.desired);
        }
        return;
    };
    memory.has_gates |= inputs.pods.iter().any(|pod| pod.state.is_gated);
    let role_counts = role_counts(inputs, &plan.roles, rollout, memory.has_gates);
    memory.see(&role_counts);
    let mut turn = Turn { inputs, policy, rollout, blind, role_counts, plan, memory, now, is_stuck: false };
    turn.begin();
    let outcome = turn.admit();
    turn.end(&outcome);
}

struct Turn<'a> {
    inputs: &'a Inputs,
    policy: &'a Policy,
    rollout: &'a Rollout,
    blind: &'a [bool],
    role_counts: Vec<RoleCounts>,
    plan: &'a mut Plan,
    memory: &'a mut Memory,
    now: Duration,
    /// `true` if gated pods may block an update.
    is_stuck: bool,
}

/// Outcome of a turn.
struct Outcome {
    admitted: Vec<u32>,
    state: Option<State>,
    /// Pods that may be of the newest revision, by role.
    updated: Option<Vec<u32>>,
}

impl Turn<'_> {
    fn begin(&mut self) {
        let is_settled = self.is_settled();
        let memory = &mut *self.memory;
        memory.unplaced = 0;
        if memory.is_deployed.is_none() {
            let is_up =
                |counts: &RoleCounts| counts.there > 0 && counts.ok >= counts.there && counts.gated == 0;
            memory.is_deployed = Some(self.role_counts.iter().all(is_up));
        }
        if self.rollout.update.is_none() {
            return;
        }
        let is_outdated = self.role_counts.iter().any(|counts| counts.outdated > 0);
        // A step that is under way ends first, unless it can't: the update may be what mends it. So it may be of a pod
        // of a group that was up, or that has no steps.
        let between = self.role_counts.iter().all(|counts| counts.ok >= counts.there.min(counts.goal))
            || is_settled
            || self.rollout.pace.is_none();
        if !memory.is_updating && is_outdated && (between || memory.is_blocked) {
            memory.is_updating = true;
            memory.clock.clear();
        } else if memory.is_updating && !is_outdated {
            memory.is_updating = self.role_counts.iter().any(|counts| counts.updated_ok < counts.seen);
            if !memory.is_updating {
                memory.clock.clear();
            }
        }
        if memory.is_updating {
            // A controller replaces no more pods while it waits for one at the gate. Where that may be why an
            // update is stuck, pods come and go by steps as they do without one.
            self.is_stuck = memory.is_update_stuck && self.role_counts.iter().any(|counts| counts.gated > 0);
            // Sizes stay during an update, except for roles below their minimum.
            for (place, (counts, role)) in self.role_counts.iter_mut().zip(&self.policy.roles).enumerate() {
                // The replacement of an admitted pod is at the gate.
                let admitted = memory.floor.get(place).copied();
                let waits = counts.there.saturating_add(counts.gated);
                let admitted = admitted.unwrap_or(counts.there.saturating_add(counts.gated_new));
                counts.size = counts.there.max(admitted.min(waits));
                let most = if self.is_stuck { waits.max(role.range.min) } else { role.range.min };
                if !self.is_stuck || counts.goal >= counts.there {
                    counts.goal = counts.size.max(counts.goal.min(most));
                }
            }
        } else {
            memory.is_update_stuck = false;
        }
    }

    /// Returns `true` if all pods were up, and still exist.
    fn is_settled(&self) -> bool {
        self.memory.settled == self.goals()
            && self.role_counts.iter().all(|counts| counts.there >= counts.goal)
    }

    fn goals(&self) -> Vec<u32> {
        self.role_counts.iter().map(|counts| counts.goal).collect()
    }

    fn there(&self) -> Vec<u32> {
        self.role_counts.iter().map(|counts| counts.there).collect()
    }

    fn add_reason(&mut self, reason: Reason) {
        self.plan.roles.iter_mut().for_each(|role| role.reasons.push(reason));
    }

    fn condition(&mut self, condition: Condition) {
        if !self.plan.conditions.contains(&condition) {
            self.plan.conditions.push(condition);
        }
    }

    fn admit(&mut self) -> Outcome {
        let goals = self.goals();
        let updated = self.updated();
        let is_failed = !self.memory.failed.is_empty() && self.memory.failed == goals;
        if is_failed && !self.memory.is_updating {
            self.condition(Condition::BatchTimeout);
            self.add_reason(Reason::Failed);
            self.place_displaced();
            let admitted = self.there();
            return Outcome { admitted, state: Some(State::Failed), updated };
        }
        self.memory.failed.clear();
        if let Some(left) = self.remaining_after_trim() {
            self.condition(Condition::BatchTimeout);
            if self.memory.trims.is_for_another {
                self.condition(Condition::Deadlock);
            }
            self.add_reason(Reason::Trimmed);
            self.place_displaced();
            let admitted = left.iter().zip(&self.role_counts).map(|(left, counts)| (*left).min(counts.goal));
            return Outcome { admitted: admitted.collect(), state: Some(State::Blocked), updated };
        }
        let exceeds = self.exceeds_goal();
        let mut targets = if exceeds { self.admitted_before() } else { self.grow() };
        let is_placed = self.place(&mut targets);
        let mut state = None;
        if is_placed || self.memory.is_updating {
            state = self.time(&mut targets, updated.as_deref());
        }
        if !is_placed {
            state = Some(State::Blocked);
        }
        let grows = self.role_counts.iter().any(|counts| counts.there < counts.goal);
        if !grows || exceeds || state == Some(State::Blocked) {
            self.shrink(&mut targets);
        } else {
            self.memory.from.clear();
        }
        if state.is_none() && self.memory.is_updating {
            state = Some(State::Update);
        }
        Outcome { admitted: targets, state, updated }
    }

    /// Pods that may be of the newest revision, during an update and shortly after.
    fn updated(&mut self) -> Option<Vec<u32>> {
        let update = self.rollout.update?;
        if self.memory.is_updating {
            self.condition(Condition::Paused);
            self.add_reason(Reason::Updating);
            return Some(update::targets(&self.role_counts, update));
        }
        let is_outdated = self.role_counts.iter().any(|counts| counts.outdated > 0);
        is_outdated.then(|| self.role_counts.iter().map(|counts| counts.updated).collect())
    }

    /// Remaining pods of each role after the last trim, until it is retried.
    fn remaining_after_trim(&mut self) -> Option<Vec<u32>> {
        let (at, left) = self.memory.trims.now.clone()?;
        if self.now.saturating_sub(at) < self.rollout.batch_timeout && !self.memory.is_updating {
            return Some(left);
        }
        self.memory.trims.now = None;
        self.memory.clock.clear();
        None
    }

    /// Returns `true` if the group exceeds its goal, as some roles grow while others shrink: one step ahead
    /// is enough.
    fn exceeds_goal(&self) -> bool {
        let goals = || self.plan.roles.iter().map(|role| role.goal);
        let shrinks = self.role_counts.iter().zip(goals()).any(|(counts, goal)| counts.there > goal);
        let sum = |counts: &mut dyn Iterator<Item = u32>| counts.map(u64::from).sum::<u64>();
        shrinks
            && self.rollout.pace.is_some()
            && sum(&mut self.role_counts.iter().map(|counts| counts.there)) > sum(&mut goals())
    }

    /// Allowed pods while no role grows.
    fn admitted_before(&self) -> Vec<u32> {
        self.past_gates(self.there())
    }

    /// Pods past their gate, or that were and are being replaced.
    fn seen_past(&self) -> Vec<u32> {
        let is_past = |(counts, past): (&RoleCounts, &u32)| {
            let past = if self.memory.has_gates { *past } else { 0 };
            counts.there.max(past.min(counts.goal))
        };
        self.role_counts.iter().zip(&self.memory.past).map(is_past).collect()
    }

    /// Allowed pods of growing roles; others keep theirs.
    fn grow(&self) -> Vec<u32> {
        let targets = match &self.rollout.pace {
            None => self.role_counts.iter().map(|counts| counts.there.max(counts.goal)).collect(),
            Some(Pace::Steps(steps)) => batch::up(&self.role_counts, steps),
            Some(Pace::Skew(skew)) => skew::up(&self.role_counts, *skew),
        };
        self.past_gates(targets)
    }

    /// Raises targets so that replacements of pods past their gate may pass, too.
    fn past_gates(&self, mut targets: Vec<u32>) -> Vec<u32> {
        if self.memory.has_gates {
            for ((target, counts), floor) in targets.iter_mut().zip(&self.role_counts).zip(&self.memory.floor)
            {
                *target = (*target).max((*floor).min(counts.goal));
            }
        }
        targets
    }

    /// Handles the timeout of a step.
    fn time(&mut self, targets: &mut Vec<u32>, updated: Option<&[u32]>) -> Option<State> {
        let (step, up): (Vec<u32>, Vec<u32>) = if self.memory.is_updating {
            (
                updated.unwrap_or_default().to_vec(),
                self.role_counts.iter().map(|counts| counts.updated_ok).collect(),
            )
        } else {
            let of = |(role, counts): (usize, &RoleCounts)| {
                if self.rollout.is_coordinated(role) { counts.ok } else { u32::MAX }
            };
            (targets.clone(), self.role_counts.iter().enumerate().map(of).collect())
        };
        if self.role_counts.iter().any(|counts| counts.unschedulable > 0) {
            self.condition(Condition::Unschedulable);
        }
        let is_settled = !self.memory.is_updating && self.is_settled();
        let is_update = self.memory.is_updating;
        let wanted =
            |(step, counts): (&u32, &RoleCounts)| if is_update { *step } else { (*step).min(counts.goal) };
        let left = |(pods, up): (u32, &u32)| (*up < pods).then_some(OpenRole { pods, up: *up, is_update });
        let open: Vec<Option<OpenRole>> =
            step.iter().zip(&self.role_counts).map(wanted).zip(&up).map(left).collect();
        if is_settled || self.inputs.is_held || open.iter().all(Option::is_none) {
            self.memory.clock.clear();
            self.memory.trims.is_asked_for = false;
            self.memory.is_update_stuck = false;
            return None;
        }
        let (is_adding, most) = (self.inputs.provisioning, self.rollout.provisioning_timeout);
        let idle = self.memory.clock.observe(&step, &up, is_adding, most, self.now);
        let whole = self.whole();
        let sum = |pods: &[u32]| pods.iter().fold(0u32, |sum, pods| sum.saturating_add(*pods));
        if sum(&whole) > self.memory.trims.whole {
            self.memory.trims.count = 0;
        }
        let gives_way = std::mem::take(&mut self.memory.trims.is_asked_for);
        self.memory.is_update_stuck = is_update && idle >= self.rollout.batch_timeout;
        if idle < self.rollout.batch_timeout {
            return None;
        }
        self.condition(Condition::BatchTimeout);
        self.plan.roles.iter_mut().zip(open).for_each(|(role, open)| role.open = open);
        if gives_way {
            self.condition(Condition::Deadlock);
        }
        if self.memory.is_updating {
            self.add_reason(Reason::Held);
            return Some(State::Blocked);
        }
        let may_trim = self.rollout.on_timeout == OnTimeout::Trim && self.memory.trims.count < MOST_TRIMS;
        // Without metrics removed pods would not be requested again. A role without ready pods lacks none.
        let is_blind = |(place, role): (usize, &RolePlan)| {
            let lacks = self.blind.get(place) == Some(&true) || role.reasons.contains(&Reason::StaleData);
            role.ready > 0 && lacks
        };
        let is_known = !self.plan.roles.iter().enumerate().any(is_blind);
        let trims = is_known && (gives_way || may_trim);
        let has_spare = whole.iter().zip(targets.iter()).any(|(whole, target)| whole < target);
        if trims && has_spare {
            self.memory.trims.count += 1;
            self.memory.trims.is_for_another = gives_way;
            self.memory.trims.whole = sum(&whole);
            self.memory.trims.now = Some((self.now, whole.clone()));
            self.add_reason(Reason::Trimmed);
            *targets = whole;
            return Some(State::Blocked);
        }
        if self.rollout.on_timeout == OnTimeout::Fail {
            self.memory.failed = self.goals();
            self.add_reason(Reason::Failed);
            return Some(State::Failed);
        }
        self.add_reason(Reason::Held);
        self.plan.stuck = Some(StuckStep {
            placement: self.memory.step.1.clone().filter(|_| self.is_bound()),
            asks: self.role_counts.iter().fold(0, |sum, counts| sum + counts.unschedulable),
            // Without metrics no pods are removed.
            spare: if is_known { sum(&self.there()).saturating_sub(sum(&whole)) } else { 0 },
        });
        Some(State::Blocked)
    }

    /// Returns `true` if the pods of a step can only go to their domain.
    fn is_bound(&self) -> bool {
        self.memory.has_gates && self.rollout.topology.as_ref().is_some_and(|topology| topology.is_required)
    }

    /// Pods of each role in complete groups. Ready ones count, whatever else a step requires: stale metrics
    /// don't mean that they don't serve.
    fn whole(&self) -> Vec<u32> {
        let usable = |counts: &RoleCounts| RoleCounts { ok: counts.ok.max(counts.ready), ..*counts };
        let role_counts: Vec<RoleCounts> = self.role_counts.iter().map(usable).collect();
        let kept = match &self.rollout.pace {
            None => self.there(),
            Some(Pace::Steps(steps)) => {
                batch::after(&role_counts, steps, batch::steps_up(&role_counts, steps).unwrap_or(u64::MAX))
            }
            Some(Pace::Skew(_)) => skew::usable(&role_counts),
        };
        kept.iter().zip(&self.role_counts).map(|(kept, counts)| (*kept).min(counts.there)).collect()
    }

    /// Allowed pods of shrinking roles, once those of the previous step are gone.
    fn shrink(&mut self, targets: &mut [u32]) {
        if !self.role_counts.iter().any(|counts| counts.there > counts.goal) {
            self.memory.from.clear();
            return;
        }
        if self.memory.from.len() != self.role_counts.len() {
            self.memory.from = self.there();
        }
        let is_gone = self.role_counts.iter().all(|counts| counts.seen <= counts.there);
        let late: Vec<bool> = self.policy.roles.iter().map(|role| role.name == LATE).collect();
        let left = match &self.rollout.pace {
            None => self.goals(),
            Some(_) if !is_gone => self.there(),
            Some(Pace::Steps(steps)) => batch::down(&self.role_counts, steps, &late),
            Some(Pace::Skew(skew)) => skew::down(&self.role_counts, &self.memory.from, *skew, &late),
        };
        for ((target, left), counts) in targets.iter_mut().zip(left).zip(&self.role_counts) {
            if counts.there > counts.goal {
                *target = left;
            }
        }
    }

    fn end(&mut self, outcome: &Outcome) {
        let is_complete =
            self.role_counts.iter().all(|counts| counts.there == counts.goal && counts.ok >= counts.goal);
        let memory = &mut *self.memory;
        if is_complete && !memory.is_updating {
            memory.settled = self.role_counts.iter().map(|counts| counts.goal).collect();
            memory.is_deployed =
                Some(self.role_counts.iter().any(|counts| counts.goal > 0) || memory.is_deployed());
        }
        let is_settled = memory.settled
            == self.role_counts.iter().map(|counts| counts.goal).collect::<Vec<_>>()
            && self.role_counts.iter().all(|counts| counts.there == counts.goal);
        let state = outcome.state.unwrap_or(match (&self.rollout.pace, is_settled) {
            (None, _) => self.plan.state,
            (_, true) => State::Idle,
            (_, false) if memory.is_deployed() => State::Scale,
            (_, false) => State::Deploy,
        });
        memory.is_blocked = state.is_stuck();
        // Gated replacements within an update are updated, whatever else waits.
        let holds = memory.is_updating && !self.is_stuck;
        let floor = |(admitted, counts): (&u32, &RoleCounts)| {
            if holds { (*admitted).max(counts.size) } else { *admitted }
        };
        let floors = outcome.admitted.iter().zip(&self.role_counts).map(floor);
        memory.floor = if memory.has_gates { floors.collect() } else { Vec::new() };
        memory.past.iter_mut().zip(&memory.floor).for_each(|(past, floor)| *past = (*past).min(*floor));
        self.plan.state = state;
        let placement = if self.plan.moves { memory.displaced_to.clone() } else { memory.step.1.clone() };
        self.plan.placement.clone_from(&placement);
        memory.asked.clear();
        for (place, role) in self.plan.roles.iter_mut().enumerate() {
            let (Some(admitted), Some(counts)) = (outcome.admitted.get(place), self.role_counts.get(place))
            else {
                continue;
            };
            role.admitted = *admitted;
            let placement = placement.as_ref().filter(|_| self.rollout.is_coordinated(place));
            role.layer = placement.map(|placement| placement.layer.clone());
            // Pods that wait for their step have the highest ordinals. They may be replaced at any time.
            let all = if memory.is_updating { counts.size } else { role.current };
            role.partition = outcome
                .updated
                .as_ref()
                .map(|updated| all.saturating_sub(updated.get(place).copied().unwrap_or_default()));
            role.write = match (memory.has_gates, memory.is_updating) {
                (false, _) => role.admitted,
                (true, true) if self.is_stuck && role.admitted <= counts.there => {
                    let is_kept = matches!(self.policy.sizing, Sizing::Kept);
                    let min = self.policy.roles.get(place).map_or(0, |own| own.range.min);
                    // Pods that can't come now go, where they are made again after the update. Without a number
                    // nothing would make them again.
                    let is_known = !role.reasons.contains(&Reason::StaleData);
                    let comes_back = (!is_kept || role.current <= min) && is_known;
                    let fewer = if counts.there >= counts.goal {
                        role.desired.max(role.admitted)
                    } else {
                        role.admitted
                    };
                    if comes_back { fewer.min(role.current) } else { role.current }
                }
                (true, true) => role.current.max(role.admitted),
                (true, false) => role.desired.max(role.admitted),
            };
            memory.asked.push(RequestedPods {
                current: role.current,
                write: role.write,
                desired: role.desired,
                is_ours: self.policy.mode == Mode::Apply,
            });
            if role.admitted != role.desired && !memory.is_updating && !memory.is_blocked {
                role.reasons.push(Reason::Step);
            }
        }
        self.plan.conditions.sort_unstable();
    }
}
