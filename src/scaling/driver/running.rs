//! State and ticks of one policy.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::Id;

use super::Live;
use super::prior_state::PriorState;
use crate::actuator::Observed;
use crate::capacity::policy::{Mode, Role, Sizing};
use crate::capacity::{Condition, Growth, History, Policy, Requested};
use crate::scaling::gather::{Freshness, Members, gather, gather_observed};
use crate::scaling::groups::Group;
use crate::scaling::plan_store::{Held, Latest};
use crate::scaling::query::QueryResults;

/// Longest pause after timeouts, unless the policy's interval is longer.
const LATEST: Duration = Duration::from_secs(60);

/// Pause before remaining requests are sent, if the API server responded in time.
const GO_ON: Duration = Duration::from_secs(1);

/// A policy in force.
pub(super) struct Running {
    pub(super) group: Group,
    /// `None` before the first tick.
    pub(super) history: Option<History>,
    pub(super) requested: Requested,
    pub(super) members: Members,
    pub(super) due: Duration,
    /// End of the wait that the API server asked for.
    pub(super) not_before: Duration,
    /// Time since which it is known.
    pub(super) born: Duration,
    pub(super) latest: Option<Arc<Latest>>,
    /// Condition that blocked the last attempt. The first attempt with new objects finds lists not yet read,
    /// and is not reported.
    pub(super) stopped: Option<Condition>,
    pub(super) held: Option<Held>,
    /// Fetch in progress.
    pub(super) fetching: Option<Id>,
    /// Consecutive timeouts.
    pub(super) late: u32,
    /// Pods asked for by the last plan, by role, if desired replicas are not read back.
    pub(super) asked: Vec<Option<u32>>,
    /// Last time at which a pod existed.
    pub(super) had_pods: Duration,
    /// State of the previous version, until the first tick.
    pub(super) before: Option<PriorState>,
}

impl Running {
    pub(super) fn new(group: Group, due: Duration) -> Self {
        Self {
            group,
            history: None,
            requested: Requested::default(),
            members: Members::default(),
            due,
            not_before: Duration::ZERO,
            born: due,
            latest: None,
            stopped: None,
            held: None,
            fetching: None,
            late: 0,
            asked: Vec::new(),
            had_pods: due,
            before: None,
        }
    }

    /// Next version of a policy, with the changes in progress and the fired rules of this one.
    pub(super) fn after(self, group: Group, due: Duration) -> Self {
        let has_role = |policy: &Policy, of: &Role| {
            policy.roles.iter().any(|role| role.name == of.name && role.has_pods_of(of))
        };
        let (old, new) = (&self.group.policy, &group.policy);
        let is_of_it = old.roles.len() == new.roles.len() && new.roles.iter().all(|of| has_role(old, of));
        let known = match &self.before {
            Some(before) if self.history.is_none() => &before.asked,
            _ => &self.asked,
        };
        let asked = |of: &Role| {
            let mut roles = old.roles.iter().zip(known);
            roles.find(|(role, _)| role.name == of.name && role.has_pods_of(of)).and_then(|(_, asked)| *asked)
        };
        let asked: Vec<Option<u32>> = new.roles.iter().map(asked).collect();
        let before = match &self.history {
            Some(history) => {
                let changes = if is_of_it { history.changes().to_vec() } else { Vec::new() };
                let growth = if is_of_it { history.growth().clone() } else { Growth::default() };
                let fired = |place: usize| history.since_fired(place, due);
                let fired = renumbered(&self.group.policy, &group.policy, fired);
                let unknown = history.rules_unknown_for(due);
                Some(PriorState { changes, growth, fired, unknown, asked, ..PriorState::none() })
            }
            // The previous version was never ticked.
            None => self.before.map(|before| {
                let fired =
                    |place: usize| before.fired.iter().find(|(of, _)| *of == place).map(|(_, ago)| *ago);
                let fired = renumbered(&self.group.policy, &group.policy, fired);
                let (changes, growth) =
                    if is_of_it { (before.changes, before.growth) } else { (Vec::new(), Growth::default()) };
                PriorState { fired, changes, growth, asked, ..before }
            }),
        };
        let members = if is_of_it { self.members } else { Members::default() };
        Self { before, members, ..Self::new(group, due) }
    }

    /// Records whether the API server was too slow. Retries back off to one minute, or the policy's interval
    /// if longer.
    pub(super) fn note_late(&mut self, is_late: bool, now: Duration) {
        self.late = if is_late { self.late.saturating_add(1) } else { 0 };
        if is_late {
            let interval = self.group.policy.interval;
            let pause = interval.saturating_mul(1 << self.late.min(10)).min(LATEST.max(interval));
            self.due = self.due.max(now + pause);
        }
    }

    /// Schedules the remaining requests soon, unless the API server is too slow.
    pub(super) fn go_on(&mut self, now: Duration) {
        if self.late == 0 {
            self.due = self.due.min(now + GO_ON);
        }
    }

    /// Returns `true` if a request that begins to wait triggers a tick: a role has no pods or is to lose its
    /// last, and the last plan saw no demand.
    pub(super) fn is_woken_by_demand(&self) -> bool {
        self.latest.as_ref().is_some_and(|latest| {
            latest.waiting == 0 && latest.plan.roles.iter().any(|role| role.current == 0 || role.write == 0)
        })
    }

    /// Returns `true` if the next plan will not be applied, as far as known.
    fn is_held(&self) -> bool {
        const HOLDING: [Condition; 3] =
            [Condition::OtherScaler, Condition::ForeignWriter, Condition::WriteFailed];
        let found = |latest: &Arc<Latest>| latest.plan.conditions.iter().any(|of| HOLDING.contains(of));
        self.group.frozen.is_some() || self.latest.as_ref().is_some_and(found)
    }

    /// Reverts rules that fired at the last tick for roles, by index, whose replicas were not written.
    pub(super) fn take_back(&mut self, roles: &[usize]) {
        if roles.is_empty() {
            return;
        }
        if let (Some(history), Some(latest)) = (&mut self.history, &self.latest) {
            history.take_back(&self.group.policy, &mut latest.plan.clone(), roles);
        }
    }

    /// Reverts the same rules of the previous version, whose plan was applied in the meantime.
    pub(super) fn take_back_before(&mut self, old: &Policy, fired: &[String], roles: &[usize]) {
        let (Some(before), Sizing::Rules(old), Sizing::Rules(new)) =
            (&mut self.before, &old.sizing, &self.group.policy.sizing)
        else {
            return;
        };
        let is_unwritten = |name: &String| {
            fired.contains(name) && old.iter().any(|rule| rule.name == *name && roles.contains(&rule.role))
        };
        before.fired.retain(|(place, _)| !new.get(*place).is_some_and(|rule| is_unwritten(&rule.name)));
    }

    /// One tick. `prior` is the state before the first tick.
    pub(super) fn tick(
        &mut self,
        live: &Live,
        scraped: Duration,
        results: Option<&QueryResults>,
        observed: Option<&Observed>,
        prior: PriorState,
    ) -> Latest {
        let now = live.clock.elapsed();
        let policy = Arc::clone(&self.group.policy);
        self.members.follow(&policy, &live.store.snapshot(), &live.store.starting());
        let waiting = (live.waiting)();
        let led = now.saturating_sub(self.born);
        let freshness = Freshness { now_ms: live.clock.now_ms(), configured: live.staleness, scraped };
        self.members.learn(freshness, led, live.is_shared);
        // A rollout keeps track of its own pending pods.
        let is_stepped = policy.rollout.is_some() || observed.is_some();
        let mut inputs = match observed {
            Some(observed) => gather_observed(&self.group, &mut self.members, freshness, observed, waiting),
            None => {
                let there = self.members.counts();
                let replicas = if is_stepped { there.to_vec() } else { self.requested.replicas(there, now) };
                gather(&self.group, &self.members, freshness, replicas, waiting)
            }
        };
        inputs.is_held = self.is_held();
        let number = |query: &str| results?.number(query, policy.interval, now);
        inputs.external = policy
            .queries()
            .into_iter()
            .map(|query| (query.to_owned(), number(query).unwrap_or(f64::NAN)))
            .collect();
        // Whoever sized the group before, another replica or this one before a restart, may have had
        // reasons that are forgotten: no window is cut short by that.
        let mut asked = Vec::new();
        self.history.get_or_insert_with(|| {
            let before = self.before.take();
            let unknown = before.as_ref().map_or(prior.unknown, |before| before.unknown);
            let before = before.unwrap_or_default();
            asked = if before.asked.is_empty() { prior.asked } else { before.asked };
            let growth = if before.growth.is_known() { before.growth } else { prior.growth };
            let counts = |(place, replicas): (usize, &u32)| {
                growth.surge(place).map_or(*replicas, |surge| surge.counts(*replicas))
            };
            let size = inputs.replicas.iter().enumerate().map(counts).fold(0, u32::saturating_add);
            let mut history = History::resumed(size, now);
            history.resume_growth(growth);
            history.rollout.resume_admitted(prior.admitted);
            if let Some((state, goals)) = prior.at {
                history.rollout.resume(state, &goals);
            }
            history.resume_changes(if before.changes.is_empty() { prior.changes } else { before.changes });
            for (rule, ago) in before.fired.into_iter().chain(prior.fired) {
                history.resume_rule(rule, ago, now);
            }
            if let Some(ago) = unknown {
                history.begin_unknown_rules(ago, now);
            }
            history
        });
        if self.asked.is_empty() {
            self.asked = asked;
        }
        let mut plan = self.plan(&policy, &mut inputs, observed.is_some() && policy.mode == Mode::Apply, now);
        if !is_stepped {
            self.requested.note(&policy, &mut plan, self.members.counts(), now);
        }
        let fired = self.history.as_ref().map_or_else(Vec::new, |history| fired(&policy, history));
        Latest { plan, waiting, at: now, fired }
    }
}

/// Last firing of each rule, by index.
pub(super) fn fired(policy: &Policy, history: &History) -> Vec<Option<Duration>> {
    let rules = if let Sizing::Rules(rules) = &policy.sizing { rules.len() } else { 0 };
    (0..rules).map(|rule| history.last_fired(rule)).collect()
}

/// Time since rules of the next version fired, by index there, from the indices in this version.
fn renumbered(
    this: &Policy,
    next: &Policy,
    ago: impl Fn(usize) -> Option<Duration>,
) -> Vec<(usize, Duration)> {
    let (Sizing::Rules(old), Sizing::Rules(new)) = (&this.sizing, &next.sizing) else { return Vec::new() };
    let fired = new.iter().enumerate().filter_map(|(place, rule)| {
        let known = old.iter().position(|known| known.name == rule.name)?;
        Some((place, ago(known)?))
    });
    fired.collect()
}
