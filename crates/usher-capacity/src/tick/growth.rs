//! Growth that is under way from one tick to the next.

use crate::plan::RolePlan;
use crate::rollout::Clock;

/// Growth that is under way, and the pods that wait for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth {
    /// Up to how many pods a role was told to grow, until so many are ready.
    pub(super) growing: Vec<Option<u32>>,
    /// Pods of each role that were asked for beyond its goal, and the goal.
    pub(super) held: Vec<Option<Held>>,
    pub(super) clock: Clock,
    /// The clock has run out since the group began to grow.
    pub(super) is_full: bool,
    /// The most pods that were ready at once since then: a group that is to be larger has no more to wait for.
    pub(super) most_ready: u32,
}

/// A role that keeps pods until others have grown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) desired: u32,
    pub(super) goal: u32,
}

impl Growth {
    /// Pods of each role, without those that stand in for pods of other roles which aren't ready yet: both
    /// would count for one place in the group.
    pub(super) fn counted(&self, roles: &[RolePlan]) -> Vec<u32> {
        let mut starting = roles.iter().zip(&self.growing).fold(0u32, |sum, (role, grows)| {
            sum.saturating_add(grows.map_or(0, |_| role.current.saturating_sub(role.ready)))
        });
        let mut without = |(place, role): (usize, &RolePlan)| {
            let held = self.held.get(place).copied().flatten().filter(|held| held.desired == role.current);
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
