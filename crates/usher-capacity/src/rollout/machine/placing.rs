//! Domains for the pods of a step, and for pods of closed domains.

use super::Turn;
use crate::plan::{Condition, OpenRole, Reason, Shortfalls};
use crate::rollout::place::{Place, place};
use crate::rollout::role_counts::RoleCounts;
use crate::rollout::{Shortfall, Topology};

impl Turn<'_> {
    /// Finds the domain of a step. Returns `false` if there is none, so that nothing grows.
    pub(super) fn place(&mut self, targets: &mut [u32]) -> bool {
        if self.memory.step.0 != targets {
            self.memory.step = (targets.to_vec(), None);
        }
        let Some(topology) = &self.rollout.topology else { return true };
        // Replacements belong to no step, and need no placement.
        let before = self.seen_past();
        let needs = |before: &[u32]| -> Vec<u32> {
            let need = |(role, (target, before)): (usize, (&u32, &u32))| {
                if self.rollout.is_coordinated(role) { target.saturating_sub(*before) } else { 0 }
            };
            targets.iter().zip(before).enumerate().map(need).collect()
        };
        let staying: Vec<u32> = before
            .iter()
            .enumerate()
            .map(|(role, before)| {
                before.saturating_sub(self.inputs.displaced.get(role).copied().unwrap_or(0))
            })
            .collect();
        let (need, all) = (needs(&before), needs(&staying));
        if need != all {
            let displaced: Vec<u32> =
                all.iter().zip(&need).map(|(all, need)| all.saturating_sub(*need)).collect();
            if displaced != all && self.moves_with_step(&all, topology) {
                return true;
            }
            if self.moves(&displaced, topology) {
                // The step follows them, in its own domain.
                for (role, (target, before)) in targets.iter_mut().zip(&before).enumerate() {
                    if self.rollout.is_coordinated(role) {
                        *target = *before;
                    }
                }
                return true;
            }
        } else {
            self.memory.displaced_to = None;
        }
        if need.iter().all(|need| *need == 0) {
            return true;
        }
        match place(&need, topology, self.inputs.domains.as_ref(), self.memory.step.1.as_ref()) {
            Place::In(placement) => {
                if topology.layers.get(topology.layer) != Some(&placement.layer) {
                    self.add_reason(Reason::WiderDomain);
                }
                self.memory.step.1 = Some(placement);
            }
            Place::Anywhere => {
                self.memory.step.1 = None;
                self.add_reason(Reason::NoDomain);
            }
            Place::Unknown => self.add_reason(Reason::TopologyUnknown),
            Place::Nowhere(domains) => {
                self.memory.unplaced = need.iter().fold(0, |sum, need| sum.saturating_add(*need));
                self.lacks_room(need, domains, topology);
                let open = targets.iter().zip(&self.role_counts).map(|(target, counts)| {
                    let open = OpenRole { pods: *target, up: counts.ok, is_update: false };
                    (*target > counts.there).then_some(open)
                });
                self.plan.roles.iter_mut().zip(open).for_each(|(role, open)| role.open = open);
                targets.copy_from_slice(&before);
                return false;
            }
        }
        true
    }

    /// Finds a domain for displaced pods while no step is in progress.
    pub(super) fn place_displaced(&mut self) {
        let Some(topology) = &self.rollout.topology else { return };
        let displaced = |(role, counts): (usize, &RoleCounts)| {
            let displaced = self.inputs.displaced.get(role).copied().unwrap_or(0);
            if self.rollout.is_coordinated(role) { displaced.min(counts.goal) } else { 0 }
        };
        let displaced: Vec<u32> = self.role_counts.iter().enumerate().map(displaced).collect();
        match displaced.iter().any(|pods| *pods > 0) {
            true => drop(self.moves(&displaced, topology)),
            false => self.memory.displaced_to = None,
        }
    }

    /// Finds a domain for displaced pods together with the step, which for a step in progress is its own.
    fn moves_with_step(&mut self, need: &[u32], topology: &Topology) -> bool {
        let step = self.memory.step.1.as_ref();
        let Place::In(placement) = place(need, topology, self.inputs.domains.as_ref(), step) else {
            return false;
        };
        if step.is_some_and(|step| *step != placement) {
            return false;
        }
        self.memory.step.1 = Some(placement.clone());
        self.memory.displaced_to = Some(placement);
        self.plan.moves = true;
        true
    }

    /// Finds a domain for displaced pods. Without one they stay, as their domain may come back.
    fn moves(&mut self, need: &[u32], topology: &Topology) -> bool {
        let last = self.memory.displaced_to.as_ref().or(self.memory.step.1.as_ref());
        match place(need, topology, self.inputs.domains.as_ref(), last) {
            Place::In(placement) => {
                self.memory.displaced_to = Some(placement);
                self.plan.moves = true;
                return true;
            }
            Place::Nowhere(domains) => self.lacks_room(need.to_vec(), domains, topology),
            Place::Anywhere | Place::Unknown => {}
        }
        false
    }

    fn lacks_room(&mut self, need: Vec<u32>, domains: Vec<Shortfall>, topology: &Topology) {
        let is_reported = self.plan.conditions.contains(&Condition::TopologyUnsatisfied);
        self.condition(Condition::TopologyUnsatisfied);
        if !is_reported {
            self.add_reason(Reason::NoDomain);
        }
        let layer = topology.layers.get(topology.layer).cloned().unwrap_or_default();
        self.plan.shortfalls = Some(Shortfalls { layer, need, domains });
    }
}
