//! Finds a destination: candidates, decision, booking.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoints::{CachedLocator, Candidates, Clock, SubsetHint};
use crate::request::Request;
use crate::schedule::{Context, Record, ScheduleError, Scheduler, Scratch};

use super::{Attempts, Code, Rejection, Routed};

thread_local! {
    /// A thread decides one request at a time, so its buffers can be reused.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Sends requests where the scheduler says.
#[derive(Debug)]
pub struct Dispatcher {
    locator: CachedLocator,
    scheduler: Scheduler,
    clock: Clock,
    max_age: Duration,
    record: Record,
    attempts: Arc<Attempts>,
}

impl Dispatcher {
    /// A dispatcher.
    ///
    /// `max_age` is how old metrics may be before they count as missing; `record`
    /// is how much of a decision is kept.
    pub fn new(
        locator: CachedLocator,
        scheduler: Scheduler,
        clock: Clock,
        max_age: Duration,
        record: Record,
        attempts: Arc<Attempts>,
    ) -> Self {
        Self { locator, scheduler, clock, max_age, record, attempts }
    }

    /// Finds a destination at once, when the candidates are in the cache.
    pub fn try_dispatch(&self, request: &Request, subset: &SubsetHint) -> Option<Result<Routed, Rejection>> {
        let candidates = self.locator.peek(subset)?;
        Some(self.decide(request, &candidates))
    }

    /// Finds a destination.
    ///
    /// # Errors
    /// What to tell the client.
    pub async fn dispatch(&self, request: &Request, subset: &SubsetHint) -> Result<Routed, Rejection> {
        let candidates = self.locator.locate(subset).await;
        self.decide(request, &candidates)
    }

    /// The candidates' cache, for its metrics.
    pub fn locator(&self) -> &CachedLocator {
        &self.locator
    }

    fn decide(&self, request: &Request, candidates: &Candidates) -> Result<Routed, Rejection> {
        if candidates.is_empty() {
            self.attempts.failure(&request.target_model);
            return Err(Rejection::no_endpoints());
        }
        let context = Context { request, now_ms: self.clock.now_ms(), max_age: self.max_age };
        let decision = SCRATCH.with_borrow_mut(|scratch| {
            self.scheduler.decide(&context, candidates, &mut rand::rng(), scratch, self.record)
        });
        match decision {
            Ok(decision) => {
                let endpoint = decision.primary_endpoint();
                self.attempts.success(&request.target_model, endpoint);
                tracing::debug!(endpoint = %endpoint.id(), candidates = candidates.len(), "endpoint picked");
                Ok(Routed::book(decision, self.record))
            }
            Err(error) => {
                self.attempts.failure(&request.target_model);
                Err(refusal(&error))
            }
        }
    }
}

/// Every failure to schedule is 429, as with the peer. A client may try again
/// soon where the pool is only full.
fn refusal(error: &ScheduleError) -> Rejection {
    let reason = error.dropped_reason();
    Rejection {
        reason,
        retry_after: reason.map(|_| 1),
        ..Rejection::new(Code::ResourceExhausted, error.to_string())
    }
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
        let no_target = refusal(&ScheduleError::NoTarget("x".into()));
        assert_eq!((no_target.code.status(), no_target.reason, no_target.retry_after), (429, None, None));
    }
}
