//! Growth in progress across ticks.

use crate::plan::RolePlan;
use crate::rollout::Clock;

/// Growth in progress, and roles that wait for it.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    /// Pods to which a role grows, until they are ready.
    pub(super) growing: Vec<Option<u32>>,
    /// `true` at the first tick: the reason of starting pods is unknown.
    is_new: bool,
    /// Roles that keep pods beyond their goal, by index.
    pub(super) surges: Vec<Option<Surge>>,
    pub(super) clock: Clock,
    /// `true` once growth has timed out.
    pub(super) is_full: bool,
    /// Most pods ready at once since then: a larger group has nothing more to wait for.
    pub(super) most_ready: u32,
}

/// A role that keeps pods until others have grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surge {
    /// Pods that it keeps.
    pub desired: u32,
    /// Final pods.
    pub goal: u32,
}

impl Surge {
    /// Pods that count for the group's size, of these replicas: kept ones stand in for others.
    pub fn counts(self, replicas: u32) -> u32 {
        if self.desired == replicas { self.goal.min(replicas) } else { replicas }
    }
}

impl Growth {
    /// Growth with known surges, by index. Empty: unknown.
    pub fn of(surges: Vec<Option<Surge>>) -> Self {
        Self { surges, ..Self::default() }
    }

    /// Returns `true` if surges are known.
    pub fn is_known(&self) -> bool {
        !self.surges.is_empty()
    }

    /// Surge of a role, by index.
    pub fn surge(&self, place: usize) -> Option<Surge> {
        self.surges.get(place).copied().flatten()
    }

    /// Begins with pods that are already starting: another replica, or an earlier version of the policy, may
    /// have asked for them while others waited. With known surges and none waiting, they are ignored.
    pub(super) fn begin(&mut self, roles: &[RolePlan]) {
        let is_known = !self.surges.is_empty() && self.surges.iter().all(Option::is_none);
        if !self.growing.is_empty() || is_known {
            return;
        }
        let is_held = |place: usize| self.surges.get(place).is_some_and(Option::is_some);
        let comes_up = |(place, role): (usize, &RolePlan)| {
            (role.ready < role.current && !is_held(place)).then_some(role.current)
        };
        self.growing = roles.iter().enumerate().map(comes_up).collect();
        self.is_new = true;
    }

    /// Records growing roles, and those that have grown.
    pub(super) fn follow(&mut self, roles: &[RolePlan]) {
        self.growing.resize(roles.len(), None);
        let is_new = std::mem::take(&mut self.is_new);
        // Without a shrinking role, none waited.
        let is_nobodys = is_new && roles.iter().all(|role| role.goal >= role.current);
        for (role, growing) in roles.iter().zip(&mut self.growing) {
            if role.goal > role.current {
                *growing = Some(role.goal);
            } else if is_nobodys || growing.is_some_and(|grown| role.ready >= grown.min(role.goal)) {
                *growing = None;
            }
        }
    }

    /// Pods of each role, without those that stand in for unready pods of others: both would count for one
    /// place in the group.
    pub(super) fn counted(&self, roles: &[RolePlan]) -> Vec<u32> {
        let mut starting = roles.iter().zip(&self.growing).fold(0u32, |sum, (role, grows)| {
            sum.saturating_add(grows.map_or(0, |_| role.current.saturating_sub(role.ready)))
        });
        let mut without = |(place, role): (usize, &RolePlan)| {
            let held = self.surges.get(place).copied().flatten().filter(|held| held.desired == role.current);
            let surplus = held.map_or(0, |held| role.current.saturating_sub(held.goal));
            // Own pods that never became ready.
            let unready = surplus.min(role.current.saturating_sub(role.ready));
            let stand_in = (surplus - unready).min(starting);
            starting -= stand_in;
            role.current - unready - stand_in
        };
        roles.iter().enumerate().map(&mut without).collect()
    }
}
