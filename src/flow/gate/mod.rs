//! Where requests wait: the queue with a clock, behind a lock.
//!
//! Whoever has an event takes the lock, tells the queue, reads how busy the pool is, and
//! lets go as many as fit: a request that comes, one that ends, one whose endpoint is
//! booked; and for all that happens without a request (endpoints, readings, time) the task
//! in [`task`]. Those who may go are woken after the lock is free. A request that finds
//! room at once passes with one taking of the lock, and no other thread hears of it.

mod collector;
mod demand;
mod demand_gauges;
mod inner;
mod metrics;
mod permit;
mod refusal;
mod series;
mod stages;
pub(super) mod task;
mod wait;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::Rejection;
use super::queue::{Arrival, Count, NEVER, Nanos, Outcome, Queue, Ticket, nanos};
use crate::endpoints::{Candidates, Clock};
use crate::memory::{Budget, Sheds};
use crate::request::Request;
use crate::schedule::SaturationDetector;
use crate::schedule::waiting::Waiting;

use inner::{Inner, Told, Verdict};
use permit::Revocation;
use series::SeriesTable;
use wait::Wait;

pub use collector::GateCollector;
pub use demand::{Demand, DemandOf};
pub use metrics::GateMetrics;
pub use permit::Permit;

/// Headers that say how soon a client needs its first token, in whole milliseconds.
const SLO_TTFT: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];

/// How long the end of a request takes to show in a detector that counts by itself.
const LIVE_GRACE: Duration = Duration::from_millis(10);

/// Time for model servers to end a request and to say so, beside the time that their
/// numbers take to get here.
const SCRAPED_GRACE: Duration = Duration::from_millis(250);

/// Where requests wait.
pub struct Gate {
    detector: Arc<dyn SaturationDetector>,
    detector_name: String,
    ttl: Option<Nanos>,
    evicts: bool,
    clock: Clock,
    /// The queue's time starts here.
    origin: Instant,
    // Guards all of the queue. Held while the queue takes in an event, which is a few
    // microseconds, and never while somebody is woken.
    inner: Mutex<Inner>,
    /// Whether anybody waits; for those who needn't take the lock otherwise.
    somebody_waits: AtomicBool,
    /// Wakes the task: something is due earlier than it thinks.
    alarm: Notify,
    /// Told when somebody begins to wait and nobody did.
    demanded: watch::Sender<()>,
    metrics: GateMetrics,
    series: SeriesTable,
}

/// What there is to do for the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next {
    wake: Option<Instant>,
    somebody_waits: bool,
}

impl Gate {
    /// A gate before an empty pool. `shows_after` is how long a change takes to show in the
    /// endpoints' readings: their interval and the age at which they count as missing.
    pub fn new(waiting: &Waiting, clock: Clock, shows_after: Duration, metrics: GateMetrics) -> Arc<Self> {
        let Waiting { rules, detector, detector_name } = waiting;
        let grace = if detector.is_live() { LIVE_GRACE } else { shows_after + SCRAPED_GRACE };
        Arc::new(Self {
            detector: Arc::clone(detector),
            detector_name: detector_name.clone(),
            ttl: rules.ttl.map(nanos),
            evicts: rules.evicts,
            clock,
            origin: Instant::now(),
            inner: Mutex::new(Inner::new(Queue::new(rules, nanos(grace)))),
            somebody_waits: AtomicBool::new(false),
            alarm: Notify::new(),
            demanded: watch::Sender::new(()),
            metrics,
            series: SeriesTable::default(),
        })
    }

    /// Lets a request through if it needn't wait; `None`: it has to.
    pub(super) fn try_enter(
        self: &Arc<Self>,
        request: &Request,
        pool: &Candidates,
    ) -> Option<Result<Permit, Rejection>> {
        if self.somebody_waits.load(Relaxed) {
            return None;
        }
        let start = Instant::now();
        let (revocation, bytes) = (self.revocation(request), request.body.len() as u64);
        let entered = self.during(|inner, now, told| {
            inner.set_pool(pool, now);
            if inner.queue.waiting().requests > 0 {
                return None;
            }
            let ticket = match inner.queue.enqueue(now, &self.arrival(request, now, now, bytes)) {
                Ok(ticket) => ticket,
                Err(outcome) => return Some(Err(outcome)),
            };
            inner.know(ticket, revocation.as_ref());
            inner.run(self, now, Some(ticket), told);
            match told.own.take() {
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
    /// Why it may not.
    pub(super) async fn enter(
        self: &Arc<Self>,
        request: &Request,
        since: Option<Nanos>,
        pool: &Candidates,
    ) -> Result<Permit, Rejection> {
        let start = Instant::now();
        let (revocation, bytes) = (self.revocation(request), request.body.len() as u64);
        let entered = self.during(|inner, now, told| {
            inner.set_pool(pool, now);
            let since = since.unwrap_or(now).min(now);
            let ticket = inner.queue.enqueue(now, &self.arrival(request, now, since, bytes))?;
            inner.know(ticket, revocation.as_ref());
            inner.run(self, now, Some(ticket), told);
            if let Some(verdict) = told.own.take() {
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
                let series = self.series.of(request, entered, &self.metrics);
                let counted = series.count(request, bytes, &self.metrics);
                Wait::new(self, ticket, receiver, counted, entered, enqueued).await
            }
        };
        match verdict {
            Verdict::Go(grant) => Ok(Permit::new(self, ticket, since, bytes, grant)),
            Verdict::No(outcome) => Err(refusal::of(outcome)),
        }
    }

    /// Refuses everybody who waits, and from now on everybody who would have to: the picker
    /// stops.
    pub fn close(&self) {
        self.during(|inner, now, told| {
            inner.queue.close(now, &mut inner.actions);
            inner.tell(self, None, told);
        });
    }

    /// Refuses requests that wait and have at most this priority until their streams, bodies
    /// and large headers have freed so many bytes, or none is left: the lowest priority first,
    /// of a priority the newest first. They are told 429 with the reason
    /// `evicted-queue-pressure`, and counted as `EvictedQueuePressure`. Returns what will be
    /// free once their streams have ended, which is soon after; what comes meanwhile waits as
    /// always.
    pub fn shed(&self, bytes: u64, highest: i32) -> Count {
        let shed = self.during(|inner, now, told| {
            let shed = inner.queue.shed(now, bytes, highest, &mut inner.actions);
            inner.tell(self, None, told);
            shed
        });
        if shed.requests > 0 {
            let Count { requests, bytes } = shed;
            tracing::warn!(requests, bytes, "requests that waited were refused to free memory");
        }
        shed
    }

    /// Removes series that nobody used for long.
    pub(super) fn sweep(&self) {
        self.series.sweep(self.now(), &self.metrics);
    }

    /// A dispatched request shows in the pool's numbers.
    fn booked(&self, ticket: Ticket) {
        self.during(|inner, now, told| {
            inner.queue.booked(now, ticket);
            inner.run(self, now, None, told);
        });
    }

    /// A request is done with, or its client is gone. Returns when.
    fn end(&self, ticket: Ticket, cost: f64) -> Nanos {
        self.during(|inner, now, told| {
            if inner.forget(ticket, cost, now) {
                inner.run(self, now, None, told);
            } else {
                inner.tell(self, None, told);
            }
            now
        })
    }

    /// The pool may have more room.
    fn nudge(&self) {
        if self.somebody_waits.load(Relaxed) {
            self.during(|inner, now, told| inner.run(self, now, None, told));
        }
    }

    /// What is due happens, and the task learns what comes next. Without a pool it is as it
    /// was.
    fn tick(&self, pool: Option<&Candidates>) -> Next {
        self.during(|inner, now, told| {
            if let Some(pool) = pool {
                inner.set_pool(pool, now);
            }
            inner.queue.advance(now, &mut inner.actions);
            inner.run(self, now, None, told);
            inner.alarm_at = inner.queue.wake_at(now);
            inner.task_listens = inner.queue.waiting().requests > 0;
            let wake = (inner.alarm_at != NEVER).then(|| self.origin + Duration::from_nanos(inner.alarm_at));
            Next { wake, somebody_waits: inner.task_listens }
        })
    }

    /// Does something with the lock, then wakes whom that concerns.
    fn during<T>(&self, event: impl FnOnce(&mut Inner, Nanos, &mut Told) -> T) -> T {
        let mut told = Told::default();
        let result = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.now();
            let result = event(&mut inner, now, &mut told);
            let somebody_waits = inner.queue.waiting().requests > 0;
            let somebody_waited = self.somebody_waits.swap(somebody_waits, Relaxed);
            told.waiting_begins = somebody_waits && !somebody_waited;
            told.rings |= somebody_waits && !inner.task_listens;
            let wake = inner.queue.wake_at(now);
            told.rings |= wake < inner.alarm_at;
            if told.rings {
                (inner.alarm_at, inner.task_listens) = (wake, somebody_waits);
            }
            result
        };
        for (sender, verdict) in told.verdicts {
            // Who is gone takes its request back when its future is dropped.
            let _ = sender.send(verdict);
        }
        told.revoked.iter().for_each(|revocation| revocation.revoke());
        if told.rings {
            self.alarm.notify_one();
        }
        if told.waiting_begins {
            self.demanded.send_replace(());
        }
        result
    }

    /// Time on the queue's clock.
    fn now(&self) -> Nanos {
        nanos(self.origin.elapsed())
    }

    fn arrival<'a>(&self, request: &'a Request, now: Nanos, since: Nanos, bytes: u64) -> Arrival<'a> {
        let age = request.received.map_or(0, |received| nanos(received.elapsed()));
        let received = now.saturating_sub(age).min(since);
        let slo = request.headers.first_text(&SLO_TTFT).and_then(|text| text.trim().parse::<u64>().ok());
        let due = slo.and_then(|ms| received.checked_add(ms.checked_mul(1_000_000)?));
        let (flow, priority) = (request.fairness_id(), request.priority);
        let beside = Budget::STREAM + request.headers.counted() as u64;
        Arrival { flow, priority, bytes, beside, received, since, ttl: self.ttl, due }
    }

    fn revocation(&self, request: &Request) -> Option<Arc<Revocation>> {
        (self.evicts && request.priority < 0).then(Arc::default)
    }

    fn observe(&self, request: &Request, outcome: Outcome, waited: Duration, enqueued: Duration) {
        let series = self.series.of(request, self.now(), &self.metrics);
        series.ended(outcome, waited, enqueued, &self.metrics);
    }
}

impl Sheds for Gate {
    fn shed(&self, bytes: u64, highest: i32) -> u64 {
        Self::shed(self, bytes, highest).bytes
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Gate")
            .field("detector", &self.detector_name)
            .field("waiting", &inner.queue.waiting())
            .field("in_flight", &inner.queue.in_flight())
            .finish_non_exhaustive()
    }
}
