//! Growth that is under way from one tick to the next.

use crate::plan::RolePlan;
use crate::rollout::Clock;

/// Growth that is under way, and the pods that wait for it.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    /// Up to how many pods a role was told to grow, until so many are ready.
    pub(super) growing: Vec<Option<u32>>,
    /// `true` if this is the first tick: whom the pods are for that come up is not known.
    is_new: bool,
    /// Roles that keep pods beyond their goal, by place.
    pub(super) surges: Vec<Option<Surge>>,
    pub(super) clock: Clock,
    /// The clock has run out since the group began to grow.
    pub(super) is_full: bool,
    /// The most pods that were ready at once since then: a group that is to be larger has no more to wait for.
    pub(super) most_ready: u32,
}

/// A role that keeps pods until others have grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surge {
    /// Pods that it keeps.
    pub desired: u32,
    /// Pods that it is to have in the end.
    pub goal: u32,
}

impl Surge {
    /// Pods of a role that count for the group, of as many replicas: those that it keeps stand in for others.
    pub fn counts(self, replicas: u32) -> u32 {
        if self.desired == replicas { self.goal.min(replicas) } else { replicas }
    }
}

impl Growth {
    /// Growth of which it is known which roles keep pods, by place. Empty: it isn't.
    pub fn of(surges: Vec<Option<Surge>>) -> Self {
        Self { surges, ..Self::default() }
    }

    /// Returns `true` if it is known which roles keep pods.
    pub fn is_known(&self) -> bool {
        !self.surges.is_empty()
    }

    /// Pods that a role, by its place, keeps until others have grown.
    pub fn surge(&self, place: usize) -> Option<Surge> {
        self.surges.get(place).copied().flatten()
    }

    /// Begins with what comes up already: another replica, or a version of the policy before, may have asked for
    /// it, and had others wait. Where it is known that nobody waited, it is nobody's growth.
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

    /// Notes up to how many pods roles grow, and which of them have come up.
    pub(super) fn follow(&mut self, roles: &[RolePlan]) {
        self.growing.resize(roles.len(), None);
        let is_new = std::mem::take(&mut self.is_new);
        // Where nobody is to shrink, nobody waited.
        let is_nobodys = is_new && roles.iter().all(|role| role.goal >= role.current);
        for (role, growing) in roles.iter().zip(&mut self.growing) {
            if role.goal > role.current {
                *growing = Some(role.goal);
            } else if is_nobodys || growing.is_some_and(|grown| role.ready >= grown.min(role.goal)) {
                *growing = None;
            }
        }
    }

    /// Pods of each role, without those that stand in for pods of other roles which aren't ready yet: both
    /// would count for one place in the group.
    pub(super) fn counted(&self, roles: &[RolePlan]) -> Vec<u32> {
        let mut starting = roles.iter().zip(&self.growing).fold(0u32, |sum, (role, grows)| {
            sum.saturating_add(grows.map_or(0, |_| role.current.saturating_sub(role.ready)))
        });
        let mut without = |(place, role): (usize, &RolePlan)| {
            let held = self.surges.get(place).copied().flatten().filter(|held| held.desired == role.current);
            let surplus = held.map_or(0, |held| role.current.saturating_sub(held.goal));
            // Of its own those that never came up.
            let unready = surplus.min(role.current.saturating_sub(role.ready));
            let stand_in = (surplus - unready).min(starting);
            starting -= stand_in;
            role.current - unready - stand_in
        };
        roles.iter().enumerate().map(&mut without).collect()
    }
}
