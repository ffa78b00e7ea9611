//! Memory of a group's machine.
//!
//! Little is remembered: the pods show which step a group is at, so that a restart continues there. Memory
//! holds times, and requests that must not be repeated at once.

use std::time::Duration;

use super::clock::Clock;
use super::place::Placement;
use super::role_counts::RoleCounts;
use crate::plan::State;

/// Memory of a group's machine.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// `true` once the first deploy is over; `None`: not known yet.
    pub(super) is_deployed: Option<bool>,
    /// `true` if pods wait at gates of ours.
    pub(super) has_gates: bool,
    pub(super) is_updating: bool,
    /// `true` if an update has gone without one more pod coming up for as long as a step may.
    pub(super) is_update_stuck: bool,
    pub(super) is_blocked: bool,
    pub(super) clock: Clock,
    /// With gates: what was admitted, so that lost pods come back at once.
    pub(super) floor: Vec<u32>,
    /// With gates: the most pods of each role that were seen past them, of those that are admitted.
    pub(super) past: Vec<u32>,
    /// Pods of each role that the leader before had admitted; empty once they are seen.
    before: Vec<u32>,
    /// Targets of a step by role, and where its pods go.
    pub(super) step: (Vec<u32>, Option<Placement>),
    /// Domain of pods that need another one.
    pub(super) displaced_to: Option<Placement>,
    /// Pods of the last step that no domain had room for, where one is required.
    pub(super) unplaced: u32,
    /// The goals at which all pods were up.
    pub(super) settled: Vec<u32>,
    /// Number of pods when the group began to shrink.
    pub(super) from: Vec<u32>,
    pub(super) trims: Trims,
    /// The goals that were given up.
    pub(super) failed: Vec<u32>,
    /// Numbers of pods that were asked for of each role at the last tick.
    pub(super) asked: Vec<Asked>,
}

/// Numbers of pods that were asked for of a role.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// Number of pods that there were.
    pub(super) current: u32,
    /// Number of pods that were to be written.
    pub(super) write: u32,
    /// Number of pods that there are to be.
    pub(super) desired: u32,
    /// `true` if no other writer is expected.
    pub(super) is_ours: bool,
}

/// Record of pods that were given back.
#[derive(Clone, Debug, Default)]
pub(super) struct Trims {
    pub(super) count: u32,
    /// Number of pods of whole groups at the last one.
    pub(super) whole: u32,
    /// Time at which the last one was, and what it left.
    pub(super) now: Option<(Duration, Vec<u32>)>,
    /// Another group needs the room.
    pub(super) is_asked_for: bool,
    /// The last one was for another group.
    pub(super) is_for_another: bool,
}

impl Memory {
    /// Gives back what exceeds whole usable groups at the next tick, if the group is blocked by then.
    pub fn give_way(&mut self) {
        self.trims.is_asked_for = true;
    }

    /// Pods of the last step that no domain had room for, where one is required. They don't exist, or wait at
    /// their gate, so that the cluster isn't seen to lack nodes for them.
    pub(crate) fn unplaced(&self) -> u32 {
        self.unplaced
    }

    /// Returns `true` if the first deploy is over.
    pub fn is_deployed(&self) -> bool {
        self.is_deployed == Some(true)
    }

    /// The first deploy was over before this began to look.
    pub fn set_deployed(&mut self) {
        self.is_deployed = Some(true);
    }

    /// Takes over a group that another replica left in this state with these goals. State that pods don't
    /// show continues: a group that was given up stays so, and one that was up is not brought up again
    /// because a pod of it isn't ready.
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

    /// Takes the numbers of pods per role that another replica let through their gate.
    pub fn resume_admitted(&mut self, admitted: Vec<u32>) {
        self.before = admitted;
    }

    /// Notes how many pods are past their gates. What somebody else admitted is what lost pods come back to, where
    /// pods have gates; where all of it is there it needn't be remembered.
    pub(super) fn see(&mut self, role_counts: &[RoleCounts]) {
        if self.has_gates && self.floor.is_empty() {
            // What was past them before the first one was seen is replaced as well.
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

    /// Number of pods that a role was to have at the last tick. Where nobody else is to write, a number that
    /// is neither the earlier one nor the one that was written is somebody's wish: it counts from then on.
    pub(crate) fn pending(&self, role: usize, current: u32) -> Option<u32> {
        let asked = self.asked.get(role)?;
        let is_foreign = asked.is_ours && current != asked.current && current != asked.write;
        (!is_foreign).then_some(asked.desired)
    }
}
