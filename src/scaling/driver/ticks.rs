//! Ticks of policies: observes, plans and acts.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tracing::{info, warn};

use super::running::{Left, Running, fired};
use super::{ASK_AGAIN, Driver};
use crate::actuator::Hands;
use crate::capacity::plan::{Reason, RolePlan, State};
use crate::capacity::rollout::deadlock::{self, Waiting as Stuck};
use crate::capacity::{Condition, Plan};
use crate::scaling::gather::{Freshness, pod_loads};
use crate::scaling::query::Asking;

/// How soon a policy is ticked again with a query of which nothing came yet: a policy may have half an
/// hour between two ticks, and the first one would know nothing.
const ANSWERED_SOON: Duration = Duration::from_secs(1);

/// How soon it is looked again whether pods that are about to go have answered.
const DRAINED_SOON: Duration = Duration::from_secs(2);

impl Driver {
    pub(super) async fn tick_due(&mut self) {
        let now = self.live.clock.elapsed();
        let may_plan = (self.live.may_plan)();
        if let Some(asking) = &self.asking {
            asking.want(may_plan);
        }
        if !may_plan {
            // What was said before says nothing now.
            let had_plans = self.running.iter().any(|running| running.latest.is_some());
            for running in &mut self.running {
                *running = Running::new(running.group.clone(), now + ASK_AGAIN);
            }
            self.metrics.leaves();
            if let Some(hands) = &mut self.live.hands {
                hands.forget();
            }
            self.drain();
            return if had_plans {
                self.put()
            };
        }
        for place in 0..self.running.len() {
            let Some(running) = self.running.get_mut(place).filter(|running| running.due <= now) else {
                continue;
            };
            let answers = self.asking.as_ref().map(Asking::answers);
            let policy = &running.group.policy;
            let is_open =
                answers.is_some_and(|known| policy.queries().iter().any(|query| known.is_open(query)));
            running.due = now + if is_open { policy.interval.min(ANSWERED_SOON) } else { policy.interval };
            self.tick(place).await;
            // The runtime has others to serve between two of many policies.
            tokio::task::yield_now().await;
        }
        self.drain();
        self.part_those_that_block_each_other();
        self.freeze_refused();
        self.put();
    }

    /// Keeps requests from pods that are about to go, and looks at them again soon.
    pub(super) fn drain(&mut self) {
        let Some(hands) = &self.live.hands else { return };
        self.live.store.set_draining(hands.draining());
        let soon = self.live.clock.elapsed() + DRAINED_SOON;
        for running in &mut self.running {
            if hands.is_draining(&running.group.policy.name) {
                running.due = running.due.min(soon);
            }
        }
    }

    /// Looks, ticks a policy, and acts.
    pub(super) async fn tick(&mut self, place: usize) {
        let Some(running) = self.running.get_mut(place) else { return };
        let (policy, now) = (Arc::clone(&running.group.policy), self.live.clock.elapsed());
        let is_observed = self.live.hands.is_some() && Hands::concerns(&policy);
        let known = self.objects.iter().find(|known| known.name == policy.name);
        // Another may act by now: the last plan stands, and gets older.
        if is_observed && !(self.live.may_act)() {
            return self.hold(place, Condition::LeaseNotRenewed).await;
        }
        let observed = match self.live.hands.as_mut().filter(|_| is_observed) {
            Some(hands) => {
                // Of another version of the policy, the pods may have been others.
                let same = known.filter(|known| known.status.observed_generation == known.generation);
                let roles = same.into_iter().flat_map(|known| &known.status.roles);
                let through = roles.filter_map(|role| Some((role.name.as_str(), role.let_through?)));
                hands.take_over(&policy, through);
                hands.observe(&policy, now).await
            }
            None => None,
        };
        // So it does while too little is known of its pods.
        let stops = match (self.live.may_act)() {
            false => Some(Condition::LeaseNotRenewed),
            true => observed.is_none().then_some(Condition::Unobserved),
        };
        if let Some(condition) = stops.filter(|_| is_observed) {
            return self.hold(place, condition).await;
        }
        running.held = None;
        let lost = running.stopped.take() == Some(Condition::LeaseNotRenewed) && running.latest.is_some();
        let frozen = running.group.frozen;
        let answers = self.asking.as_ref().map(Asking::answers);
        let left = known.map(|known| Left::of(&policy, known.generation, &known.status, Timestamp::now()));
        let left = left.unwrap_or_default();
        let before = running.latest.as_ref().map(|latest| latest.plan.state);
        let before = before.or(left.at.as_ref().map(|(state, _)| *state));
        let was_stuck = before.is_some_and(State::is_stuck);
        if let Some(observed) = &observed {
            running.take_back(&observed.lost);
        }
        let mut latest = running.tick(&self.live, self.scraped, answers, observed.as_ref(), left);
        if observed.as_ref().is_some_and(|observed| observed.is_blind) {
            latest.plan.conditions.push(Condition::TopologyUnknown);
        }
        latest.plan.conditions.extend(frozen);
        if lost {
            // Nobody could be told before.
            latest.plan.conditions.push(Condition::LeaseNotRenewed);
            info!(policy = policy.name, "the lease is renewed again, and the policy is carried out");
        }
        // Another replica may lead by now.
        if let (Some(hands), Some(mut observed), true) =
            (&mut self.live.hands, observed, (self.live.may_act)())
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
                observed.loads = Some(pod_loads(&self.live.store.snapshot(), hands.namespace(), freshness));
            }
            if latest.plan.state.is_stuck() && !was_stuck {
                hands.tell_stuck(&policy, &latest.plan, &observed).await;
            }
            let unwritten = hands.act(&policy, &mut latest.plan, observed, now, frozen).await;
            if let Some(history) = &mut running.history {
                history.take_back(&policy, &mut latest.plan, &unwritten);
                latest.fired = fired(&policy, history);
            }
        }
        let Plan { state, conditions, .. } = &latest.plan;
        if state.is_stuck() && !was_stuck {
            warn!(policy = policy.name, %state, ?conditions, "a step is stuck");
        } else if was_stuck && !state.is_stuck() {
            info!(policy = policy.name, %state, "a step that was stuck goes on");
        }
        self.metrics.count(&policy, &latest.plan);
        running.latest = Some(Arc::new(latest));
    }

    /// Of groups that hold the room that others need, the younger give way at their next tick.
    pub(super) fn part_those_that_block_each_other(&mut self) {
        let stuck = |running: &Running| {
            let stuck = running.latest.as_ref()?.plan.stuck.clone()?;
            Some(Stuck { place: stuck.placement, asks: stuck.asks, spare: stuck.spare, born: running.born })
        };
        let (places, waiting): (Vec<usize>, Vec<Stuck>) = self
            .running
            .iter()
            .enumerate()
            .filter_map(|(place, running)| Some((place, stuck(running)?)))
            .unzip();
        for giving in deadlock::give_way(&waiting) {
            let running = places.get(giving).and_then(|place| self.running.get_mut(*place));
            if let Some(history) = running.and_then(|running| running.history.as_mut()) {
                history.rollout.give_way();
            }
        }
    }

    pub(super) async fn tick_those_at_zero(&mut self) {
        if !(self.live.may_plan)() || (self.live.waiting)() == 0 {
            return;
        }
        let mut ticked = false;
        for place in 0..self.running.len() {
            if self.running.get(place).is_some_and(Running::is_woken_by_demand) {
                self.tick(place).await;
                ticked = true;
            }
        }
        if ticked {
            // A tick may have chosen pods that go.
            self.drain();
            self.put();
        }
    }
}
