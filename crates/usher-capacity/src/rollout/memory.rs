//! Memory of a group's rollout.
//!
//! The pods show the current step, so a restart continues there. Memory holds times, and requests that must
//! not be repeated immediately.

use std::time::Duration;

use super::clock::Clock;
use super::place::Placement;
use super::role_counts::RoleCounts;
use crate::plan::State;

/// Memory of a group's rollout.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// `true` after the first rollout; `None`: unknown.
    pub(super) is_deployed: Option<bool>,
    /// `true` if pods begin at our gates.
    pub(super) has_gates: bool,
    pub(super) is_updating: bool,
    /// `true` if an update made no progress for the timeout of a step.
    pub(super) is_update_stuck: bool,
    pub(super) is_blocked: bool,
    pub(super) clock: Clock,
    /// With gates: admitted pods, so that lost ones are replaced immediately.
    pub(super) floor: Vec<u32>,
    /// With gates: most admitted pods of each role seen past theirs.
    pub(super) past: Vec<u32>,
    /// Admitted pods of each role at the previous leader; empty once seen.
    before: Vec<u32>,
    /// Targets of a step by role, and its domain.
    pub(super) step: (Vec<u32>, Option<Placement>),
    /// Domain for displaced pods.
    pub(super) displaced_to: Option<Placement>,
    /// Pods of the last step without a domain, if one is required.
    pub(super) unplaced: u32,
    /// Goals at which all pods were up.
    pub(super) settled: Vec<u32>,
    /// Pods when the group began to shrink.
    pub(super) from: Vec<u32>,
    pub(super) trims: Trims,
    /// Abandoned goals.
    pub(super) failed: Vec<u32>,
    /// Pods asked for at the last tick, by role.
    pub(super) asked: Vec<RequestedPods>,
}

/// Pods asked for of a role.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestedPods {
    /// Existing pods.
    pub(super) current: u32,
    /// Replicas to write.
    pub(super) write: u32,
    /// Desired pods.
    pub(super) desired: u32,
    /// `true` if no other writer is expected.
    pub(super) is_ours: bool,
}

/// Record of trims.
#[derive(Clone, Debug, Default)]
pub(super) struct Trims {
    pub(super) count: u32,
    /// Pods of complete groups at the last one.
    pub(super) whole: u32,
    /// Time of the last one, and the remaining pods.
    pub(super) now: Option<(Duration, Vec<u32>)>,
    /// `true` if another group needs the nodes.
    pub(super) is_asked_for: bool,
    /// `true` if the last one was for another group.
    pub(super) is_for_another: bool,
}

impl Memory {
    /// Requests a trim at the next tick, if the group is still blocked.
    pub fn request_trim(&mut self) {
        self.trims.is_asked_for = true;
    }

    /// Pods of the last step without a domain, if one is required. They don't exist or are gated, so the
    /// cluster shows no lack of nodes.
    pub(crate) fn unplaced(&self) -> u32 {
        self.unplaced
    }

    /// Returns `true` after the first rollout.
    pub fn is_deployed(&self) -> bool {
        self.is_deployed == Some(true)
    }

    /// Marks the first rollout as complete.
    pub fn set_deployed(&mut self) {
        self.is_deployed = Some(true);
    }

    /// Restores the state of another replica with these goals. State that pods don't show continues: an
    /// abandoned step stays abandoned, and a settled group is not deployed again because of an unready pod.
    pub fn resume(&mut self, state: State, goals: &[u32]) {
        match state {
            State::Idle => {
                self.is_deployed = Some(true);
                self.settled = goals.to_vec();
            }
            State::Scale => self.is_deployed = Some(true),
            State::Failed => self.failed = goals.to_vec(),
            State::Deploy | State::Update | State::Blocked => {}
        }
    }

    /// Restores the admitted pods of another replica, by role.
    pub fn resume_admitted(&mut self, admitted: Vec<u32>) {
        self.before = admitted;
    }

    /// Records pods past their gates. Admissions of the previous leader are kept for replacements until all
    /// of them exist.
    pub(super) fn see(&mut self, role_counts: &[RoleCounts]) {
        if self.has_gates && self.floor.is_empty() {
            // Pods past the gates before the first gate was seen are replaced as well.
            self.floor.clone_from(&self.past);
        }
        self.past.resize(role_counts.len(), 0);
        for (past, counts) in self.past.iter_mut().zip(role_counts) {
            *past = (*past).max(counts.seen.min(counts.there));
            if !self.has_gates {
                // Whether others come at gates isn't known yet, and a group that got smaller has a new step to make.
                *past = (*past).min(counts.there);
            }
        }
        let is_there = |(before, counts): (&u32, &RoleCounts)| counts.seen >= (*before).min(counts.goal);
        if self.before.is_empty() {
            return;
        }
        if self.has_gates {
            for all in [&mut self.floor, &mut self.past] {
                all.resize(self.before.len(), 0);
                all.iter_mut().zip(&self.before).for_each(|(all, before)| *all = (*all).max(*before));
            }
            self.before.clear();
        } else if self.before.iter().zip(role_counts).all(is_there) {
            self.before.clear();
        }
    }

    /// Desired pods of a role at the last tick. If no other writer is expected, replicas that are neither the
    /// earlier nor the written ones are a user's wish, and count from then on.
    pub(crate) fn pending(&self, role: usize, current: u32) -> Option<u32> {
        let asked = self.asked.get(role)?;
        let is_foreign = asked.is_ours && current != asked.current && current != asked.write;
        (!is_foreign).then_some(asked.desired)
    }
}
