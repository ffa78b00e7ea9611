//! Entry of a request: at once, or after it has waited.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::grant::Revocation;
use super::inner::Verdict;
use super::permit::Permit;
use super::wait::Wait;
use super::{Gate, refusal};
use crate::endpoints::Candidates;
use crate::flow::Rejection;
use crate::flow::queue::{Arrival, Nanos, Outcome, nanos};
use crate::memory::Budget;
use crate::records::{SHOWN, bounded};
use crate::request::Request;

/// Headers that say how soon a client needs its first token, in whole milliseconds.
const SLO_TTFT: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];

impl Gate {
    /// Lets a request through if it needn't wait; `None`: it has to.
    pub(in crate::flow) fn try_enter(
        self: &Arc<Self>,
        request: &Request,
        pool: &Candidates,
    ) -> Option<Result<Permit, Rejection>> {
        if self.somebody_waits.load(Relaxed) {
            return None;
        }
        let start = Instant::now();
        let (revocation, bytes) = (self.revocation(request), request.body.len() as u64);
        let entered = self.during(|inner, now, wakeups| {
            inner.set_pool(pool, now);
            if inner.queue.waiting().requests > 0 {
                return None;
            }
            let ticket = match inner.queue.enqueue(now, &self.arrival(request, inner.ttl, (now, now), bytes))
            {
                Ok(ticket) => ticket,
                Err(outcome) => return Some(Err(outcome)),
            };
            inner.know(ticket, revocation.as_ref());
            self.run(inner, now, Some(ticket), wakeups);
            match wakeups.own.take() {
                Some(Verdict::Go(grant)) => Some(Ok(Permit::new(self, ticket, now, bytes, grant))),
                _ => {
                    inner.forget(ticket, 0.0, now);
                    None
                }
            }
        })?;
        let outcome = entered.as_ref().map_or_else(|outcome| *outcome, |_| Outcome::Dispatched);
        self.observe(request, outcome, Duration::ZERO, start.elapsed());
        Some(entered.map_err(refusal::of))
    }

    /// Waits until a request may go. `since`: it has been waiting since then, as far as
    /// order and time are concerned. Dropping the future takes the request back.
    ///
    /// # Errors
    /// `Rejection` for a full queue, an expired wait, or shutdown.
    pub(in crate::flow) async fn enter(
        self: &Arc<Self>,
        request: &Request,
        since: Option<Nanos>,
        pool: &Candidates,
    ) -> Result<Permit, Rejection> {
        let start = Instant::now();
        let (revocation, bytes) = (self.revocation(request), request.body.len() as u64);
        let entered = self.during(|inner, now, wakeups| {
            inner.set_pool(pool, now);
            let since = since.unwrap_or(now).min(now);
            let ticket = inner.queue.enqueue(now, &self.arrival(request, inner.ttl, (now, since), bytes))?;
            inner.know(ticket, revocation.as_ref());
            self.run(inner, now, Some(ticket), wakeups);
            if let Some(verdict) = wakeups.own.take() {
                return Ok((ticket, since, Err(verdict)));
            }
            let (sender, receiver) = oneshot::channel();
            inner.wait(ticket, sender);
            Ok((ticket, since, Ok((receiver, now))))
        });
        let enqueued = start.elapsed();
        let (ticket, since, waiting) = match entered {
            Ok(entered) => entered,
            Err(outcome) => {
                self.observe(request, outcome, Duration::ZERO, enqueued);
                return Err(refusal::of(outcome));
            }
        };
        let verdict = match waiting {
            Err(verdict) => {
                let outcome =
                    if let Verdict::No(outcome) = &verdict { *outcome } else { Outcome::Dispatched };
                self.observe(request, outcome, Duration::ZERO, enqueued);
                verdict
            }
            Ok((receiver, entered)) => {
                let series = self.series.of(request, &self.metrics);
                let counted = series.count(request, bytes, &self.metrics);
                // The request is not there any more when its wait ends.
                let id = tracing::enabled!(tracing::Level::DEBUG).then(|| bounded(&request.id(), SHOWN));
                Wait::new(self, ticket, receiver, counted, entered, enqueued, id).await
            }
        };
        match verdict {
            Verdict::Go(grant) => Ok(Permit::new(self, ticket, since, bytes, grant)),
            Verdict::No(outcome) => Err(refusal::of(outcome)),
        }
    }

    fn arrival<'a>(
        &self,
        request: &'a Request,
        ttl: Option<Nanos>,
        (now, since): (Nanos, Nanos),
        bytes: u64,
    ) -> Arrival<'a> {
        let age = request.received.map_or(0, |received| nanos(received.elapsed()));
        let received = now.saturating_sub(age).min(since);
        let slo = request.headers.first_text(&SLO_TTFT).and_then(|text| text.trim().parse::<u64>().ok());
        let due = slo.and_then(|ms| received.checked_add(ms.checked_mul(1_000_000)?));
        let (flow, priority) = (request.fairness_id(), request.priority);
        let beside = Budget::STREAM + request.headers.counted() as u64;
        Arrival { flow, priority, bytes, beside, received, since, ttl, due }
    }

    fn revocation(&self, request: &Request) -> Option<Arc<Revocation>> {
        (self.evicts && request.priority < 0).then(Arc::default)
    }

    fn observe(&self, request: &Request, outcome: Outcome, waited: Duration, enqueued: Duration) {
        let series = self.series.of(request, &self.metrics);
        series.ended(outcome, waited, enqueued, &self.metrics);
    }
}
