//! Ticks of policies: fetch, plan, apply.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tracing::{info, warn};

use super::applies::{ApplyResult, ApplyTask};
use super::fetches::Ended;
use super::prior_state::PriorState;
use super::running::{Running, fired};
use super::{ASK_AGAIN, Driver, is_same};
use crate::actuator::{Actuator, Fetched};
use crate::capacity::plan::{Reason, RolePlan, State};
use crate::capacity::policy::Role;
use crate::capacity::rollout::deadlock::{self, BlockedGroup};
use crate::capacity::{Condition, Plan};
use crate::scaling::gather::{Freshness, pod_loads};
use crate::scaling::objects::Known;
use crate::scaling::plan_store::Latest;
use crate::scaling::query::QueryRunner;

/// Pause before a policy is ticked again whose query has no result yet: half an hour may pass between two
/// ticks, and the first would lack it.
const ANSWERED_SOON: Duration = Duration::from_secs(1);

/// Pause before draining pods are observed again.
const DRAINED_SOON: Duration = Duration::from_secs(2);

/// Time for ticking policies in a row before plans are published and updates are applied.
const AT_ONCE: Duration = Duration::from_millis(100);

impl Driver {
    pub(super) async fn tick_due(&mut self) {
        let now = self.live.clock.elapsed();
        let may_plan = (self.live.may_plan)();
        if let Some(query_runner) = &self.query_runner {
            query_runner.want(may_plan);
        }
        if !may_plan {
            // Earlier plans are no longer valid.
            let had_plans = self.running.iter().any(|running| running.latest.is_some());
            for running in &mut self.running {
                *running = Running::new(running.group.clone(), now + ASK_AGAIN);
            }
            self.metrics.leaves();
            self.applying.clear();
            if let Some(actuator) = &mut self.live.actuator {
                actuator.forget();
            }
            self.drain();
            return if had_plans {
                self.put()
            };
        }
        let mut ticked = false;
        for place in 0..self.running.len() {
            let is_due = |running: &&Running| running.due <= now && self.is_free(running);
            if self.running.get(place).filter(is_due).is_none() {
                continue;
            }
            let Some(running) = self.running.get_mut(place) else { continue };
            let results = self.query_runner.as_ref().map(QueryRunner::results);
            let policy = &running.group.policy;
            let is_open =
                results.is_some_and(|known| policy.queries().iter().any(|query| known.is_open(query)));
            running.due = now + if is_open { policy.interval.min(ANSWERED_SOON) } else { policy.interval };
            ticked |= self.begin(place).await;
            // The runtime has others to serve between two of many policies.
            tokio::task::yield_now().await;
        }
        if ticked {
            self.finish();
        }
    }

    /// Returns `true` if a policy is neither being fetched nor applied.
    pub(super) fn is_free(&self, running: &Running) -> bool {
        running.fetching.is_none() && !self.applying.contains(&running.group.policy.name)
    }

    /// Starts a fetch for a policy, or ticks it if there is nothing to fetch. Returns `true` if it was ticked
    /// or blocked.
    async fn begin(&mut self, place: usize) -> bool {
        let Some(running) = self.running.get_mut(place) else { return false };
        let policy = &running.group.policy;
        let Some(actuator) = self.live.actuator.as_mut().filter(|_| Actuator::concerns(policy)) else {
            self.tick(place, None).await;
            return true;
        };
        actuator.restore_admissions(policy, Known::roles_of(&self.objects, &policy.name));
        // Another replica may write by now: the last plan stays, and ages.
        if !(self.live.may_act)() {
            self.block(place, Condition::LeaseNotRenewed).await;
            return true;
        }
        running.fetching = Some(self.fetches.begin(actuator.fetch_request(policy)));
        false
    }

    /// Ticks policies with a completed fetch. Others, and updates, wait for no more than one tick.
    pub(super) async fn tick_fetched(&mut self, ended: Ended) {
        let (began, mut next) = (Instant::now(), Some(ended));
        while let Some((id, fetched)) = next {
            // A policy that has changed meanwhile is fetched again.
            let place = self.running.iter().position(|running| running.fetching == Some(id));
            if let Some(place) = place
                && let Some(running) = self.running.get_mut(place)
            {
                running.fetching = None;
                if fetched.is_some() {
                    self.tick(place, fetched).await;
                    tokio::task::yield_now().await;
                }
            }
            next = if began.elapsed() < AT_ONCE { self.fetches.next_ended() } else { None };
        }
        self.finish();
    }

    /// Takes over the result of an applied plan.
    pub(super) fn applied(&mut self, result: ApplyResult) {
        let ApplyResult { mut task, actuator: own, unwritten } = result;
        // This replica lost leadership meanwhile.
        if !self.applying.remove(&task.policy.name) {
            return;
        }
        let now = self.live.clock.elapsed();
        let is_own = |running: &Running| is_same(&task.policy, &running.group.policy);
        let is_next = |running: &&mut Running| running.group.policy.name == task.policy.name;
        if let Some(place) = self.running.iter().position(is_own)
            && let Some(running) = self.running.get_mut(place)
        {
            running.note_late(own.is_late(), now);
            if own.is_unfinished() {
                running.go_on(now);
            }
            if let Some(history) = &mut running.history {
                history.take_back(&task.policy, &mut task.latest.plan, &unwritten);
                task.latest.fired = fired(&task.policy, history);
            }
            self.show(place, task.latest, task.was_stuck);
            // A request may have begun to wait meanwhile.
            let waits = (self.live.waiting)() > 0;
            if let Some(running) =
                self.running.get_mut(place).filter(|of| waits && of.late == 0 && of.is_woken_by_demand())
            {
                running.due = running.due.min(now.max(running.not_before));
            }
        } else if let Some(running) = self.running.iter_mut().find(is_next) {
            running.take_back_before(&task.policy, &task.latest.plan.fired, &unwritten);
        }
        if let Some(actuator) = &mut self.live.actuator {
            actuator.merge(own);
        }
        self.finish();
    }

    /// Publishes a plan.
    fn show(&mut self, place: usize, latest: Latest, was_stuck: bool) {
        let Some(running) = self.running.get_mut(place) else { return };
        let policy = &running.group.policy;
        let Plan { state, conditions, .. } = &latest.plan;
        if state.is_stuck() && !was_stuck {
            let conditions: Vec<String> =
                conditions.iter().map(|condition| format!("{condition:?}")).collect();
            warn!(policy = policy.name, %state, conditions = conditions.join(", "), "rollout step blocked");
        } else if was_stuck && !state.is_stuck() {
            info!(policy = policy.name, %state, "rollout step no longer blocked");
        }
        self.metrics.count(policy, &latest.plan);
        running.latest = Some(Arc::new(latest));
    }

    /// Applies the outcome of ticks to all policies: draining pods get no requests, deadlocks are resolved,
    /// and plans are published.
    fn finish(&mut self) {
        self.drain();
        self.resolve_deadlocks();
        self.freeze_refused();
        self.put();
    }

    /// Keeps requests from draining pods, and schedules their next observation.
    pub(super) fn drain(&mut self) {
        let Some(actuator) = &self.live.actuator else { return };
        self.live.store.set_draining(actuator.draining());
        let soon = self.live.clock.elapsed() + DRAINED_SOON;
        for running in &mut self.running {
            if running.late == 0 && actuator.is_draining(&running.group.policy.name) {
                running.due = running.due.min(soon.max(running.not_before));
            }
        }
    }

    /// Ticks a policy with fetched state, and applies its plan.
    pub(super) async fn tick(&mut self, place: usize, fetched: Option<Fetched>) {
        let Some(running) = self.running.get_mut(place) else { return };
        let (policy, now) = (Arc::clone(&running.group.policy), self.live.clock.elapsed());
        let is_observed = fetched.is_some();
        let known = self.objects.iter().find(|known| known.name == policy.name);
        let observed = match self.live.actuator.as_mut().zip(fetched) {
            Some((actuator, fetched)) => actuator.observe_fetched(&policy, fetched, now).await,
            None => None,
        };
        // Another replica may write by now, or too little is known: the last plan stays, and ages.
        let stops = match (self.live.may_act)() {
            false => Some(Condition::LeaseNotRenewed),
            true => observed.is_none().then_some(Condition::Unobserved),
        };
        if let Some(condition) = stops.filter(|_| is_observed) {
            return self.block(place, condition).await;
        }
        running.held = None;
        let lost = running.stopped.take() == Some(Condition::LeaseNotRenewed) && running.latest.is_some();
        let frozen = running.group.frozen;
        let results = self.query_runner.as_ref().map(QueryRunner::results);
        let prior =
            known.map(|known| PriorState::of(&policy, known.generation, &known.status, Timestamp::now()));
        let mut prior = prior.unwrap_or_default();
        if let Some(actuator) = self.live.actuator.as_ref().filter(|_| running.history.is_none()) {
            let passed = |role: &Role| actuator.let_through(&policy.name, &role.name).unwrap_or(0);
            prior.admitted = policy.roles.iter().map(passed).collect();
        }
        let before = running.latest.as_ref().map(|latest| latest.plan.state);
        let before = before.or(prior.at.as_ref().map(|(state, _)| *state));
        let was_stuck = before.is_some_and(State::is_stuck);
        if let Some(observed) = &observed {
            running.take_back(&observed.lost);
        }
        let mut latest = running.tick(&self.live, self.scraped, results, observed.as_ref(), prior);
        if observed.as_ref().is_some_and(|observed| observed.is_blind) {
            latest.plan.conditions.push(Condition::TopologyUnknown);
        }
        latest.plan.conditions.extend(frozen);
        if lost {
            // The status could not be written before.
            latest.plan.conditions.push(Condition::LeaseNotRenewed);
            info!(policy = policy.name, "lease renewed, capacity policy applied again");
        }
        // Another replica may lead by now.
        if let (Some(actuator), Some(mut observed), true) =
            (&mut self.live.actuator, observed, (self.live.may_act)())
        {
            let shrinks = |(role, replicas): (&RolePlan, &u32)| {
                role.write < *replicas || role.reasons.contains(&Reason::Trimmed)
            };
            if latest.plan.roles.iter().zip(&observed.replicas).any(shrinks) {
                let freshness = Freshness {
                    now_ms: self.live.clock.now_ms(),
                    configured: self.live.staleness,
                    scraped: self.scraped,
                };
                let mut loads = pod_loads(&self.live.store.snapshot(), actuator.namespace(), freshness);
                running.members.add_left(actuator.namespace(), &mut loads);
                observed.loads = Some(loads);
            }
            if latest.plan.state.is_stuck() && !was_stuck {
                actuator.record_stuck(&policy, &latest.plan, &observed);
            }
            let own = actuator.split(&policy);
            self.applying.insert(policy.name.clone());
            return self.applies.begin(ApplyTask { policy, latest, was_stuck, frozen }, own, observed, now);
        }
        self.show(place, latest, was_stuck);
    }

    /// Resolves deadlocks of groups that hold each other's nodes: the youngest gives way at its next tick.
    pub(super) fn resolve_deadlocks(&mut self) {
        let stuck = |running: &Running| {
            let stuck = running.latest.as_ref()?.plan.stuck.clone()?;
            Some(BlockedGroup {
                place: stuck.placement,
                asks: stuck.asks,
                spare: stuck.spare,
                born: running.born,
            })
        };
        let (places, waiting): (Vec<usize>, Vec<BlockedGroup>) = self
            .running
            .iter()
            .enumerate()
            .filter_map(|(place, running)| Some((place, stuck(running)?)))
            .unzip();
        for giving in deadlock::groups_to_trim(&waiting) {
            let running = places.get(giving).and_then(|place| self.running.get_mut(*place));
            if let Some(history) = running.and_then(|running| running.history.as_mut()) {
                history.rollout.request_trim();
            }
        }
    }

    pub(super) async fn tick_scaled_to_zero(&mut self) {
        if !(self.live.may_plan)() || (self.live.waiting)() == 0 {
            return;
        }
        let mut ticked = false;
        for place in 0..self.running.len() {
            // A fetch in progress is followed by a tick that sees the demand.
            let is_woken = |running: &Running| self.is_free(running) && running.is_woken_by_demand();
            if self.running.get(place).is_some_and(is_woken) {
                ticked |= self.begin(place).await;
            }
        }
        if ticked {
            self.finish();
        }
    }
}
