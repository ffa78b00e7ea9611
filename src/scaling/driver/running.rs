//! One policy: what it remembers, and its ticks.

use std::sync::Arc;
use std::time::Duration;

use super::Live;
use crate::actuator::Observed;
use crate::capacity::policy::{Role, Sizing};
use crate::capacity::resource::status::PolicyStatus;
use crate::capacity::{History, Policy, Requested, State, tick};
use crate::scaling::board::Latest;
use crate::scaling::gather::{Freshness, Members, gather, gather_observed};
use crate::scaling::groups::Group;
use crate::scaling::query::Answers;

/// A policy that is ticked.
pub(super) struct Running {
    pub(super) group: Group,
    /// `None` before the first tick.
    pub(super) history: Option<History>,
    pub(super) requested: Requested,
    pub(super) members: Members,
    pub(super) due: Duration,
    /// Since when it is known.
    pub(super) born: Duration,
    pub(super) latest: Option<Arc<Latest>>,
}

impl Running {
    pub(super) fn new(group: Group, due: Duration) -> Self {
        Self {
            group,
            history: None,
            requested: Requested::default(),
            members: Members::default(),
            due,
            born: due,
            latest: None,
        }
    }

    /// Whether a request that begins to wait changes everything: a role has no pods, and the last plan
    /// didn't know of it.
    pub(super) fn is_woken_by_demand(&self) -> bool {
        self.latest.as_ref().is_some_and(|latest| {
            latest.waiting == 0 && latest.plan.roles.iter().any(|role| role.current == 0)
        })
    }

    /// One tick, over what was observed where all pods are known. `left`: where the one left the group that
    /// ticked it before this one.
    pub(super) fn tick(
        &mut self,
        live: &Live,
        scraped: Duration,
        answers: Option<&Answers>,
        observed: Option<&Observed>,
        left: Option<(State, Vec<u32>)>,
    ) -> Latest {
        let now = live.clock.elapsed();
        let policy = Arc::clone(&self.group.policy);
        self.members.follow(&policy, &live.store.snapshot(), &live.store.starting());
        let there = self.members.counts();
        let waiting = (live.waiting)();
        let freshness = Freshness { now_ms: live.clock.now_ms(), configured: live.staleness, scraped };
        // What comes up step by step remembers itself what is on its way.
        let is_stepped = policy.rollout.is_some() || observed.is_some();
        let mut inputs = match observed {
            Some(observed) => gather_observed(&self.group, &self.members, freshness, observed, waiting),
            None => {
                let replicas = if is_stepped { there.to_vec() } else { self.requested.replicas(there, now) };
                gather(&self.group, &self.members, freshness, replicas, waiting)
            }
        };
        let number = |query: &str| answers?.number(query, policy.interval, now);
        inputs.external = policy
            .queries()
            .into_iter()
            .map(|query| (query.to_owned(), number(query).unwrap_or(f64::NAN)))
            .collect();
        // Whoever sized the group before, another replica or this one before a restart, may have had
        // reasons that are forgotten: no window is cut short by that.
        let size = inputs.replicas.iter().fold(0, |sum: u32, role| sum.saturating_add(*role));
        let history = self.history.get_or_insert_with(|| {
            let mut history = History::resumed(size, now);
            if let Some((state, goals)) = left {
                history.rollout.resume(state, &goals);
            }
            history
        });
        let mut plan = tick(&inputs, &policy, history, now);
        if !is_stepped {
            self.requested.note(&policy, &mut plan, there, now);
        }
        let rules = if let Sizing::Rules(rules) = &policy.sizing { rules.len() } else { 0 };
        let fired = (0..rules).map(|rule| history.last_fired(rule)).collect();
        Latest { plan, waiting, at: now, fired }
    }
}

/// Where a policy's status says that the group was left: in which state, with which goals. `None` where it
/// doesn't, or says that of another version of the policy.
pub(super) fn left_at(
    policy: &Policy,
    generation: Option<i64>,
    status: &PolicyStatus,
) -> Option<(State, Vec<u32>)> {
    if status.observed_generation != generation {
        return None;
    }
    let said = status.state.as_deref()?;
    let state = State::ALL.into_iter().find(|state| state.to_string() == said)?;
    let goal = |role: &Role| Some(status.roles.iter().find(|known| known.name == role.name)?.desired);
    Some((state, policy.roles.iter().map(goal).collect::<Option<_>>()?))
}
