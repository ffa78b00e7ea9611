//! One sequence of events, and the invariants checked each second.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::Value;
use tokio::time::Instant;

use super::cluster::{Cluster, WORKLOADS, is_past, is_ready};
use super::event::Event;
use super::picker::{Picker, Shape};
use super::requests::Requests;
use super::rival::Rival;
use super::server::{PODS, POLICIES, Written};
use crate::capacity::plan::{Condition, RolePlan};
use crate::capacity::{Plan, Reason, State};
use crate::endpoints::Clock;

/// Time for which metrics are fresh.
const FRESH: u64 = 5;
/// Time for which the absence of an autoscaler is cached.
const SCALERS_KNOWN: u64 = 10;
/// Longest time without progress or a condition: a step's timeout, and a drain.
const SILENT: u64 = 240;
/// The same without steps.
const SILENT_UNSTEPPED: u64 = 800;
/// Time for which a shrinking StatefulSet waits for remaining pods: twice a step's, and without steps.
const STEP_UNREADY: u64 = 120;
const UNREADY: u64 = 1200;
/// Longest time until a blocking condition is in the status, with an event.
const REPORT_WITHIN: u64 = 60;
/// Longest time until a group reaches its goals after all failures.
const RECOVERS: u64 = 3 * 3600;
/// Time for which nothing may change once a group has reached its goals.
const SETTLED: u64 = 300;

/// A sequence of events in a cluster.
pub(super) struct Trial {
    pub(super) shape: Shape,
    pub(super) cluster: Cluster,
    pub(super) picker: Picker,
    pub(super) clock: Clock,
    pub(super) began: Instant,
    pub(super) load: u32,
    pub(super) is_known: bool,
    /// Last time at which metrics were known.
    pub(super) known: Option<u64>,
    pub(super) waiting: bool,
    pub(super) paused: bool,
    pub(super) applied: bool,
    pub(super) present: bool,
    pub(super) leads: bool,
    pub(super) acts: bool,
    /// Time since which an autoscaler exists.
    pub(super) scaler: Option<u64>,
    pub(super) generation: u64,
    /// Number of deletions of the policy.
    pub(super) deleted: u64,
    /// Time of the last change, and the state then.
    pub(super) still: (u64, String),
    /// Time since which the policy is blocked, by reason, without a failed request.
    pub(super) frozen: BTreeMap<String, u64>,
    /// Number of failed requests by then.
    pub(super) failed: u64,
    /// Time since which a role keeps its replicas because remaining pods are unready.
    pub(super) unready: Option<u64>,
    pub(super) requests: Requests,
    pub(super) is_silent: bool,
    pub(super) rival: Option<Rival>,
    pub(super) beside: bool,
    /// `true` if the policy is invalid.
    pub(super) refused: bool,
    /// `true` if the picker has a valid version.
    pub(super) has_version: bool,
}

/// Runs tasks until all are idle.
async fn settle() {
    for _ in 0..40 {
        tokio::task::yield_now().await;
    }
}

/// Returns `true` if these serving pods keep the invariant: with steps, no role is more than one ahead,
/// unless at its goal; without, the policy's ratio.
fn keeps_ratio(shape: Shape, [decode, prefill]: [u32; 2], goals: [u32; 2]) -> bool {
    match shape.steps {
        Some((of_decode, of_prefill)) => {
            decode <= goals[0]
                || prefill <= goals[1]
                || (decode * of_prefill).abs_diff(prefill * of_decode) <= of_decode * of_prefill
        }
        None => !shape.has_ratio || (prefill <= decode && decode <= 3 * prefill),
    }
}

impl Trial {
    fn new(shape: Shape, replicas: [u32; 2]) -> Self {
        let (cluster, clock) = (Cluster::new(replicas, shape.has_gates, shape.has_racks), Clock::stopped());
        let mut trial = Self {
            shape,
            picker: Picker::start(&cluster.server, clock.clone()),
            cluster,
            clock,
            began: Instant::now(),
            load: replicas.iter().sum(),
            is_known: true,
            known: None,
            waiting: false,
            paused: false,
            applied: true,
            present: true,
            leads: true,
            acts: true,
            scaler: None,
            generation: 0,
            deleted: 0,
            still: (0, String::new()),
            frozen: BTreeMap::new(),
            failed: 0,
            unready: None,
            requests: Requests::default(),
            is_silent: false,
            rival: None,
            beside: false,
            refused: false,
            has_version: true,
        };
        trial.write_policy();
        trial
    }

    fn sync(&mut self) -> u64 {
        self.clock.set(self.began.elapsed());
        let now = self.began.elapsed().as_secs();
        let passed = now - self.cluster.now;
        self.cluster.pass(passed);
        now
    }

    /// Advances time by so many seconds, and checks each.
    pub(super) async fn pass(&mut self, seconds: u64) -> Result<(), TestCaseError> {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let now = self.sync();
        if let Some(rival) = &mut self.rival {
            rival.act(&self.cluster.server, now);
            // The controllers do what it wrote before anything else happens.
            self.cluster.pass(0);
        }
        self.cluster.server.flush();
        settle().await;
        let (drains, requests) = (self.shape.drains, &self.requests);
        let are_answered = |uid: &str| !drains || requests.are_answered(uid, now);
        self.picker.observe(&self.cluster, self.load, self.is_known, are_answered);
        if self.is_known {
            self.known = Some(now);
        }
        self.picker.update_policies(&self.cluster.server).await;
        let (serving, replicas) = (self.cluster.serving(), self.cluster.replicas());
        let is_blind = self.known.is_none_or(|known| now - known > FRESH);
        let (failed, denied) = (self.cluster.server.failed(), self.cluster.server.denied());
        let ready = self.cluster.ready();
        self.picker.act().await;
        let has_failed = self.cluster.server.failed() > failed;
        // Whoever may not choose which pods go doesn't wait for any.
        self.requests.is_denied = self.cluster.server.denied() > denied;
        self.cluster.replaced.clear();
        let written = self.cluster.server.take_written();
        // The controllers do what was written.
        self.sync();
        self.check(now, &written, serving, replicas, is_blind, has_failed)?;
        if let Some(rival) = &mut self.rival {
            rival.check(&written, now)?;
        }
        if drains {
            let after = &self.cluster.ready() | &self.cluster.replaced;
            self.requests.check(now, &ready, &after)?;
        }
        self.requests.keep(self.picker.draining(), now);
        let plan = self.picker.plan();
        let waits = plan.is_some_and(|plan| plan.conditions.contains(&Condition::LowerOrdinalsUnready));
        self.unready = self.unready.or(Some(now)).filter(|_| waits);
        settle().await;
        let _ = self.cluster.server.take_written();
        self.check_reported(now)?;
        self.check_still(now)
    }

    /// Checks that each blocking condition is in the status, with an event.
    fn check_reported(&mut self, now: u64) -> Result<(), TestCaseError> {
        let failed = self.cluster.server.failed();
        if failed != self.failed || !(self.present && self.leads && self.acts) {
            self.failed = failed;
            self.frozen.clear();
        }
        let reasons = self.picker.frozen();
        self.frozen.retain(|reason, _| reasons.contains(reason));
        for reason in reasons {
            self.frozen.entry(reason).or_insert(now);
        }
        let object = self.cluster.server.get(&format!("{POLICIES}/p"));
        let status = &object["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        for (reason, since) in self.frozen.iter().filter(|(_, since)| now - **since > REPORT_WITHIN) {
            let holds = |of: &Value| {
                of["reason"] == **reason && (of["status"] == "True") != (of["type"] == "Accepted")
            };
            prop_assert!(
                conditions.iter().any(holds),
                "{reason} since {since} is not in the status: {status}"
            );
            // One that may not be written isn't tried again.
            let server = &self.cluster.server;
            let has_event = server.denies_events() || server.has_event(&object, reason);
            prop_assert!(has_event, "{reason} since {since} was no event");
        }
        Ok(())
    }

    fn check(
        &self,
        now: u64,
        written: &[Written],
        serving: [u32; 2],
        before: [u32; 2],
        is_blind: bool,
        has_failed: bool,
    ) -> Result<(), TestCaseError> {
        let plan = self.picker.plan();
        let may_write = self.present && self.applied && !self.paused && self.has_version;
        let mut has_changed = false;
        for write in written {
            let Written { path, before: from, after: to } = write;
            if path.starts_with(POLICIES) {
                continue;
            }
            prop_assert!(self.leads && self.acts, "a write without the lease: {write:?}");
            if path.starts_with(PODS) {
                prop_assert!(
                    WORKLOADS.iter().any(|workload| workload.owns(from)),
                    "another's pod: {write:?}"
                );
                prop_assert!(!to.is_null() || may_write, "a pod goes without a policy: {write:?}");
                has_changed |= to.is_null();
                continue;
            }
            if self.shape.has_updates && WORKLOADS.iter().any(|workload| workload.path() == *path) {
                // What a policy that is gone held back goes on.
                let is_held = |object: &Value| {
                    let marks = &object["metadata"]["annotations"];
                    ["usher.dev/paused", "usher.dev/partition"].iter().any(|mark| marks[*mark].is_string())
                };
                let goes_on = !(self.present && self.applied) && is_held(from) && !is_held(to);
                prop_assert!(may_write || goes_on, "an update is held back without a policy: {write:?}");
                prop_assert_eq!(&from["spec"]["replicas"], &to["spec"]["replicas"], "an update has no size");
                continue;
            }
            let role = WORKLOADS.iter().position(|workload| format!("{}/scale", workload.path()) == *path);
            let Some(role) = role else {
                prop_assert!(false, "another's object: {write:?}");
                return Ok(());
            };
            prop_assert!(may_write, "replicas without a policy: {write:?}");
            prop_assert!(!self.is_beside(), "replicas that another policy writes, too: {write:?}");
            let is_known = self.scaler.is_some_and(|since| now > since + SCALERS_KNOWN);
            prop_assert!(!is_known, "replicas beside an autoscaler: {write:?}");
            let number = |object: &Value| object["spec"]["replicas"].as_u64().unwrap() as u32;
            prop_assert_eq!(number(from), before[role], "somebody else's number is overwritten");
            // Requests that wait in the picker are known: they may ask for more.
            let asks =
                self.waiting && plan.as_ref().is_some_and(|plan| plan.stages.size > before[0] + before[1]);
            if is_blind && !asks {
                prop_assert!(
                    number(to) > number(from),
                    "a role shrinks without a number: {write:?} {plan:?}"
                );
                prop_assert!(before.contains(&0), "a role grows without a number: {write:?} {plan:?}");
            }
            has_changed = true;
        }
        let Some(plan) = plan.filter(|_| has_changed) else { return Ok(()) };
        let (now, after) = (self.cluster.serving(), self.cluster.replicas());
        let total = |pods: [u32; 2]| pods[0] + pods[1];
        let goals = [plan.roles[0].goal, plan.roles[1].goal];
        let has_lost = now.iter().zip(serving).any(|(now, before)| *now < before);
        let keeps = |pods| keeps_ratio(self.shape, pods, goals);
        // What stays may have no room before others go: that ends at last.
        let most_unready = if self.shape.steps.is_some() { STEP_UNREADY } else { UNREADY };
        let has_waited = self.unready.is_some_and(|since| self.cluster.now >= since + most_unready);
        prop_assert!(
            !has_lost
                || has_failed
                || has_waited
                || keeps(now)
                || !keeps(serving)
                || !self.cluster.replaced.is_empty(),
            "the ratio is broken: {serving:?} {now:?} of {before:?} {after:?}: {plan:?}"
        );
        for role in 0..2 {
            let has_none = serving[role] > 0 && now[role] == 0 && after[role] > 0;
            prop_assert!(
                !has_none || has_failed || !self.cluster.replaced.is_empty(),
                "the last ready pod of a role goes, and others stay: {serving:?} {now:?} of {after:?}: {plan:?}"
            );
        }
        let most = match self.shape.steps {
            Some((decode, prefill)) => total(goals) + decode + prefill,
            None => goals.iter().zip(before).map(|(goal, before)| *goal.max(&before)).sum(),
        };
        // Beside a role that others keep, the group is not to be larger than its plan, but for a pod of each role.
        let is_foreign = plan.conditions.contains(&Condition::ForeignWriter) && !self.shape.has_rules;
        let zeros = before.iter().filter(|pods| **pods == 0).count() as u32;
        let most = if is_foreign && self.shape.steps.is_none() { total(goals) + zeros } else { most };
        // Pods that drain are on their way out.
        let drains = |role: &RolePlan| role.reasons.contains(&Reason::Draining);
        let going = plan.roles.iter().zip(after).filter(|(role, _)| drains(role));
        let going: u32 = going.map(|(role, after)| after.saturating_sub(role.write)).sum();
        // Those that wait at a gate ask for nothing.
        let (has_gates, roles) = (self.shape.has_gates, &plan.roles);
        let past =
            [0, 1].map(|role| if has_gates { after[role].min(roles[role].admitted) } else { after[role] });
        prop_assert!(
            total(past).saturating_sub(going) <= most.max(total(before)),
            "{before:?} {after:?}: {plan:?}"
        );
        Ok(())
    }

    /// Returns `true` if the policy's goals are reached.
    fn is_done(&self, plan: &Plan) -> bool {
        let is_done = |(role, workload): (usize, &super::cluster::Workload)| {
            let pods = self.cluster.pods(workload);
            let goal = plan.roles[role].goal as usize;
            pods.len() == goal
                && self.cluster.replicas()[role] as usize == goal
                && self.cluster.updated()[role] == goal
                && pods.iter().all(|pod| is_past(pod))
        };
        WORKLOADS.iter().enumerate().all(is_done)
    }

    /// Checks that the group is never blocked for long without a condition.
    fn check_still(&mut self, now: u64) -> Result<(), TestCaseError> {
        let plan = self.picker.plan();
        let is_wanted = self.present && self.applied && self.leads;
        if !is_wanted || self.picker.says_why() || plan.as_ref().is_some_and(|plan| self.is_done(plan)) {
            self.still = (now, String::new());
            return Ok(());
        }
        let pods = WORKLOADS.map(|workload| {
            let pods = self.cluster.pods(&workload);
            (
                pods.len(),
                pods.iter().filter(|pod| is_past(pod)).count(),
                pods.iter().filter(|pod| is_ready(pod)).count(),
            )
        });
        let (replicas, updated) = (self.cluster.replicas(), self.cluster.updated());
        let stands = format!("{pods:?} of {replicas:?}, {updated:?} updated");
        if stands != self.still.1 {
            self.still = (now, stands);
        }
        let most = if self.shape.steps.is_some() { SILENT } else { SILENT_UNSTEPPED };
        prop_assert!(now - self.still.0 <= most, "nothing moves, without a word: {:?} {plan:?}", self.still);
        Ok(())
    }

    /// Ends all failures, and checks that the group reaches its goals.
    async fn recover(&mut self) -> Result<(), TestCaseError> {
        self.cluster.server.heal();
        let well = [
            Event::Heal,
            Event::Metrics(true),
            Event::Waiting(false),
            Event::Paused(false),
            Event::Applied(true),
            Event::Present(true),
            Event::Scaler(false),
            Event::Silent(false),
            Event::Acts(true),
            Event::Leads(true),
            Event::Rival(None),
            Event::Beside(false),
            Event::Refused(false),
        ];
        for event in well {
            self.happen(event).await?;
        }
        let until = self.cluster.now + RECOVERS;
        let begins = self.cluster.now + 60;
        let mut stirred = self.cluster.now;
        while self.cluster.now < until {
            let before = (self.cluster.replicas(), self.cluster.ready());
            self.pass(if self.cluster.now < begins { 3 } else { 5 }).await?;
            self.cluster.heal();
            let Some(plan) = self.picker.plan().filter(|_| self.cluster.now > begins) else { continue };
            // A step that was given up ends until other sizes are asked for.
            let is_over = plan.state == State::Failed || (plan.state == State::Idle && self.is_done(&plan));
            let is_still = before == (self.cluster.replicas(), self.cluster.ready())
                && self.picker.draining().is_empty();
            if !is_over || !is_still {
                stirred = self.cluster.now;
            }
            if self.cluster.now - stirred >= SETTLED {
                return Ok(());
            }
        }
        let pods = WORKLOADS.map(|workload| self.cluster.pods(&workload).len());
        prop_assert!(
            false,
            "it never gets there: {pods:?} {:?} {:?}",
            self.cluster.replicas(),
            self.picker.plan()
        );
        Ok(())
    }
}

/// Runs a sequence of events, then recovers.
///
/// # Errors
/// `TestCaseError` with the violated property.
pub fn run(shape: Shape, replicas: [u32; 2], events: &[Event]) -> Result<(), TestCaseError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut trial = Trial::new(shape, replicas);
        for event in events {
            trial.happen(*event).await?;
        }
        trial.recover().await
    })
}
