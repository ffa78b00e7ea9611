//! Finds a destination: candidates, decision, booking.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::Rng;

use crate::endpoints::{CachedLocator, Candidates, Clock, SubsetHint};
use crate::request::Request;
use crate::schedule::{
    Context, Decision, Effects, Facts, Finding, Record, ScheduleError, Scheduler, Scratch, Situation, Stages,
};

use super::{Attempts, Code, Rejection, Routed};
use super::{conditional, legacy_admission};

thread_local! {
    /// A thread decides one request at a time, so its buffers can be reused.
    static SCRATCH: RefCell<(Scratch, Facts)> = RefCell::default();
}

/// Sends requests where the scheduler says.
#[derive(Debug)]
pub struct Dispatcher {
    locator: CachedLocator,
    policy: Policy,
    /// Held while a profile that reads what is in flight decides and books, so that
    /// each decision sees the one before it.
    booking: Mutex<()>,
    clock: Clock,
    attempts: Arc<Attempts>,
}

/// How destinations are chosen.
#[derive(Debug)]
pub struct Policy {
    /// Chooses among candidates.
    pub scheduler: Scheduler,
    /// What happens around that.
    pub stages: Arc<Stages>,
    /// How old metrics may be before they count as missing.
    pub max_age: Duration,
    /// How much of a decision is kept.
    pub record: Record,
}

impl Dispatcher {
    /// A dispatcher.
    pub fn new(locator: CachedLocator, policy: Policy, clock: Clock, attempts: Arc<Attempts>) -> Self {
        Self { locator, policy, booking: Mutex::default(), clock, attempts }
    }

    /// Finds a destination at once, when the candidates are in the cache and no plugin
    /// holds requests.
    pub fn try_dispatch(&self, request: &Request, subset: &SubsetHint) -> Option<Result<Routed, Rejection>> {
        self.try_dispatch_with(request, subset, &mut rand::rng())
    }

    /// [`try_dispatch`](Self::try_dispatch) with a random source of the caller's, so that
    /// a simulation's decisions follow from its seed.
    pub fn try_dispatch_with(
        &self,
        request: &Request,
        subset: &SubsetHint,
        rng: &mut dyn Rng,
    ) -> Option<Result<Routed, Rejection>> {
        if self.policy.stages.gathers() {
            return None;
        }
        let candidates = self.locator.peek(subset)?;
        Some(self.decide(request, &candidates, Vec::new(), rng))
    }

    /// Finds a destination.
    ///
    /// # Errors
    /// What to tell the client.
    pub async fn dispatch(&self, request: &Request, subset: &SubsetHint) -> Result<Routed, Rejection> {
        let candidates = self.locator.locate(subset).await;
        if !self.policy.stages.gathers() || candidates.is_empty() {
            return self.decide(request, &candidates, Vec::new(), &mut rand::rng());
        }
        let max_age = self.policy.max_age;
        let situation = Situation { request, now_ms: self.clock.now_ms(), max_age };
        let findings = self.policy.stages.gather(&situation, &candidates).await;
        // The pool may have changed while the request was held.
        let candidates = self.locator.locate(subset).await;
        self.decide(request, &candidates, findings, &mut rand::rng())
    }

    /// The candidates' cache, for its metrics.
    pub fn locator(&self) -> &CachedLocator {
        &self.locator
    }

    /// Decides a request, about which gatherers may have found out something.
    fn decide(
        &self,
        request: &Request,
        candidates: &Candidates,
        findings: Vec<Finding>,
        rng: &mut dyn Rng,
    ) -> Result<Routed, Rejection> {
        let routed = SCRATCH.with_borrow_mut(|(scratch, facts)| {
            // Before and behind: should a plugin panic, its request's facts stay with it.
            facts.clear();
            findings.into_iter().for_each(|finding| finding(candidates, facts));
            let routed = self.route(request, candidates, rng, scratch, facts);
            facts.clear();
            routed
        });
        match &routed {
            Ok(routed) => {
                let endpoint = routed.decision().primary_endpoint();
                self.attempts.success(&request.target_model, endpoint);
                tracing::debug!(endpoint = %endpoint.id(), candidates = candidates.len(), "endpoint picked");
            }
            Err(_) => self.attempts.failure(&request.target_model),
        }
        routed
    }

    /// The stages of a request, one after the other.
    fn route(
        &self,
        request: &Request,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        scratch: &mut Scratch,
        facts: &mut Facts,
    ) -> Result<Routed, Rejection> {
        let now_ms = self.clock.now_ms();
        legacy_admission::check(request, candidates, now_ms, self.policy.stages.sheds_by())?;
        if candidates.is_empty() {
            return Err(Rejection::no_endpoints());
        }
        let mut effects = Effects::default();
        let situation = Situation { request, now_ms, max_age: self.policy.max_age };
        let screened = self.policy.stages.screen(&situation, candidates, rng, &mut effects);
        let candidates = screened.as_ref().unwrap_or(candidates);
        if candidates.is_empty() {
            return Err(Rejection::screened());
        }
        self.policy.stages.produce(&situation, candidates, facts);
        let context = Context { facts, ..Context::new(request, situation.now_ms, situation.max_age) };
        self.policy
            .stages
            .admit(&context, candidates, rng)
            .map_err(|denied| Rejection::saturated(format!("request cannot be admitted: {denied}")))?;
        let _one_at_a_time =
            self.policy.stages.books().then(|| self.booking.lock().unwrap_or_else(PoisonError::into_inner));
        let decision = self
            .policy
            .scheduler
            .decide(&context, candidates, rng, scratch, self.policy.record)
            .map_err(|error| refusal(&error))?;
        conditional::check(&context, &decision, self.policy.stages.prefix())?;
        Ok(self.book(&context, decision, effects))
    }

    fn book(&self, context: &Context<'_>, decision: Decision, mut effects: Effects) -> Routed {
        self.policy.stages.act(context, &decision, &mut effects);
        Routed::book(decision, effects, self.policy.record)
    }
}

/// Every failure to schedule is 429, as with the peer, but for one that it can't have:
/// endpoints that don't fit together are as good as none. A client may try again soon
/// where the pool is only full.
fn refusal(error: &ScheduleError) -> Rejection {
    let reason = error.dropped_reason();
    let (code, retry_after) = match error {
        ScheduleError::NoPair => (Code::ServiceUnavailable, None),
        _ => (Code::ResourceExhausted, reason.map(|_| 1)),
    };
    Rejection { reason, retry_after, ..Rejection::new(code, error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_to_schedule_is_429() {
        let drained = refusal(&ScheduleError::Drained);
        assert_eq!(
            (drained.code.status(), drained.reason, drained.retry_after),
            (429, Some("rejected-saturated"), Some(1))
        );
        assert_eq!(
            drained.body(),
            "inference error: ResourceExhausted - no endpoints available for the given request"
        );
        let no_pair = refusal(&ScheduleError::NoPair);
        assert_eq!(
            (no_pair.code.status(), no_pair.reason, no_pair.retry_after),
            (503, Some("rejected-no-pair"), None)
        );
        let no_target = refusal(&ScheduleError::NoTarget("x".into()));
        assert_eq!((no_target.code.status(), no_target.reason, no_target.retry_after), (429, None, None));
    }
}
