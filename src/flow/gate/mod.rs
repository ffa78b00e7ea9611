//! Gate that requests wait at: the queue with a clock, behind a lock.
//!
//! Each event locks the queue, updates it, reads the pool's saturation and dispatches as many
//! requests as fit. Events are arrivals, ends and bookings of requests; changes without a
//! request (endpoints, readings, time) come from the task in [`task`]. Dispatched requests are
//! woken after the lock is free. A request that finds room at once locks once, and wakes no
//! other thread.

mod collector;
mod demand;
mod demand_gauges;
mod enter;
mod grant;
mod inner;
mod metrics;
mod others;
mod permit;
mod refusal;
mod series;
mod stages;
mod status;
pub(super) mod task;
mod wait;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::queue::{Action, Count, NEVER, Nanos, Ticket, nanos};
use crate::endpoints::{Candidates, Clock};
use crate::memory::Sheddable;
use crate::schedule::flow_control::FlowControlSpec;

use grant::Grant;
use inner::{Inner, Verdict, Wakeups};
use series::SeriesTable;

pub use collector::GateCollector;
pub use demand::{Demand, DemandOf};
pub use metrics::GateMetrics;
pub use permit::Permit;
pub use status::GateStatus;

/// Time until the end of a request shows in a detector that counts by itself.
const LIVE_GRACE: Duration = Duration::from_millis(10);

/// Time for model servers to end a request and to say so, beside the time that their
/// numbers take to get here.
const SCRAPED_GRACE: Duration = Duration::from_millis(250);

/// Gate that requests wait at.
pub struct Gate {
    evicts: bool,
    clock: Clock,
    /// The queue's time starts here.
    origin: Instant,
    // Guards all of the queue. Held while the queue takes in an event, which is a few
    // microseconds, and never while somebody is woken.
    inner: Mutex<Inner>,
    /// `true` if a request waits; read without the lock.
    somebody_waits: AtomicBool,
    /// Requests that wait at other replicas.
    waiting_elsewhere: AtomicU64,
    /// Wakes the task: something is due earlier than it thinks.
    alarm: Notify,
    /// Notified when the first request begins to wait, here or at another replica.
    demanded: watch::Sender<()>,
    metrics: GateMetrics,
    series: SeriesTable,
}

/// Next steps of the task: when to wake (`None`: nothing is due), and whether a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next {
    wake: Option<Instant>,
    somebody_waits: bool,
}

impl Gate {
    /// A gate before an empty pool. `shows_after` is how long a change takes to show in the
    /// endpoints' readings: their interval and the age at which they count as missing.
    pub fn new(
        spec: &FlowControlSpec,
        clock: Clock,
        shows_after: Duration,
        metrics: GateMetrics,
    ) -> Arc<Self> {
        let FlowControlSpec { rules, detector, .. } = spec;
        let grace = if detector.is_live() { LIVE_GRACE } else { shows_after + SCRAPED_GRACE };
        Arc::new(Self {
            evicts: rules.evicts,
            clock,
            origin: Instant::now(),
            inner: Mutex::new(Inner::new(spec, nanos(grace))),
            somebody_waits: AtomicBool::new(false),
            waiting_elsewhere: AtomicU64::new(0),
            alarm: Notify::new(),
            demanded: watch::Sender::new(()),
            series: SeriesTable::new(&metrics.room),
            metrics,
        })
    }

    /// Lets requests wait by these rules from now on. Those that wait keep their place, and their time
    /// for room; the new limits count for those that come. Eviction stays on or off as it was, and so do
    /// the fairness and ordering policies of bands.
    pub fn reconfigure(&self, spec: &FlowControlSpec) {
        self.during(|inner, now, wakeups| {
            inner.reconfigure(spec, now);
            self.run(inner, now, None, wakeups);
        });
    }

    /// Refuses from now on all requests that would have to wait: the picker is about to stop, and clients that try
    /// again find another one. Those that wait go on.
    pub fn drain(&self) {
        self.during(|inner, _, _| inner.queue.drain());
    }

    /// Refuses all waiting requests, and from now on all that would have to wait: the picker
    /// stops.
    pub fn close(&self) {
        self.during(|inner, now, wakeups| {
            inner.queue.close(now, &mut inner.actions);
            self.collect(inner, None, wakeups);
        });
    }

    /// Refuses requests that wait and have at most this priority until their streams, bodies
    /// and large headers have freed so many bytes, or none is left: the lowest priority first,
    /// of a priority the newest first. They get 429 with the reason
    /// `evicted-queue-pressure`, and counted as `EvictedQueuePressure`. Returns what will be
    /// free once their streams have ended, which is soon after; what comes meanwhile waits as
    /// always.
    pub fn shed(&self, bytes: u64, highest: i32) -> Count {
        let shed = self.during(|inner, now, wakeups| {
            let shed = inner.queue.shed(now, bytes, highest, &mut inner.actions);
            self.collect(inner, None, wakeups);
            shed
        });
        if shed.requests > 0 {
            let Count { requests, bytes } = shed;
            tracing::warn!(requests, bytes, "waiting requests rejected to free memory");
        }
        shed
    }

    /// Removes series that were unused for long.
    pub(super) fn sweep(&self) {
        self.series.sweep(&self.metrics);
    }

    /// A dispatched request shows in the pool's numbers.
    fn booked(&self, ticket: Ticket) {
        self.during(|inner, now, wakeups| {
            inner.queue.booked(now, ticket);
            self.run(inner, now, None, wakeups);
        });
    }

    /// A request is done with, or its client is gone. Returns when.
    fn end(&self, ticket: Ticket, cost: f64) -> Nanos {
        self.during(|inner, now, wakeups| {
            if inner.forget(ticket, cost, now) {
                self.run(inner, now, None, wakeups);
            } else {
                self.collect(inner, None, wakeups);
            }
            now
        })
    }

    /// The pool may have more room.
    fn notify_room(&self) {
        if self.somebody_waits.load(Relaxed) {
            self.during(|inner, now, wakeups| self.run(inner, now, None, wakeups));
        }
    }

    /// Does everything that is due, and returns the next steps of the task. Without a pool it is as it
    /// was.
    fn tick(&self, pool: Option<&Candidates>) -> Next {
        self.during(|inner, now, wakeups| {
            if let Some(pool) = pool {
                inner.set_pool(pool, now);
            }
            inner.queue.advance(now, &mut inner.actions);
            self.run(inner, now, None, wakeups);
            inner.alarm_at = inner.queue.wake_at(now);
            inner.task_listens = inner.queue.waiting().requests > 0;
            let wake = (inner.alarm_at != NEVER).then(|| self.origin + Duration::from_nanos(inner.alarm_at));
            Next { wake, somebody_waits: inner.task_listens }
        })
    }

    /// Lets go as many as fit now.
    fn run(&self, inner: &mut Inner, now: Nanos, own: Option<Ticket>, wakeups: &mut Wakeups) {
        if inner.queue.waiting().requests > 0 {
            let start = std::time::Instant::now();
            let capacity = inner.levels(self.clock.now_ms()).capacity();
            inner.queue.dispatch(now, &capacity, &mut inner.actions);
            self.metrics.cycle.observe(start.elapsed());
        }
        self.collect(inner, own, wakeups);
    }

    /// Sorts out what the queue wants done.
    fn collect(&self, inner: &mut Inner, own: Option<Ticket>, wakeups: &mut Wakeups) {
        let mut actions = std::mem::take(&mut inner.actions);
        for action in actions.drain(..) {
            let (ticket, verdict) = match action {
                Action::Dispatch { ticket, spread } => {
                    let revocation = inner.revocations.get(&ticket).cloned();
                    (ticket, Verdict::Go(Grant { spread, revocation }))
                }
                Action::Reject { ticket, outcome } => {
                    inner.revocations.remove(&ticket);
                    (ticket, Verdict::No(outcome))
                }
                Action::Evict { ticket, priority } => {
                    self.metrics.revoked(priority);
                    wakeups.revoked.extend(inner.revocations.remove(&ticket));
                    continue;
                }
                Action::Reclaimed(after) => {
                    self.metrics.confirmed.inc();
                    self.metrics.confirmation.observe(Duration::from_nanos(after).as_secs_f64());
                    continue;
                }
                Action::NotReclaimed => {
                    self.metrics.timed_out.inc();
                    continue;
                }
            };
            if own == Some(ticket) {
                wakeups.own = Some(verdict);
            } else if let Some(sender) = inner.take_waiter(ticket) {
                wakeups.verdicts.push((sender, verdict));
            }
        }
        inner.actions = actions;
    }

    /// Does something with the lock, then wakes whom that concerns.
    fn during<T>(&self, event: impl FnOnce(&mut Inner, Nanos, &mut Wakeups) -> T) -> T {
        let mut wakeups = Wakeups::default();
        let result = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.now();
            let result = event(&mut inner, now, &mut wakeups);
            let somebody_waits = inner.queue.waiting().requests > 0;
            let somebody_waited = self.somebody_waits.swap(somebody_waits, Relaxed);
            wakeups.waiting_begins = somebody_waits && !somebody_waited;
            wakeups.rings |= somebody_waits && !inner.task_listens;
            let wake = inner.queue.wake_at(now);
            wakeups.rings |= wake < inner.alarm_at;
            if wakeups.rings {
                (inner.alarm_at, inner.task_listens) = (wake, somebody_waits);
            }
            result
        };
        for (sender, verdict) in wakeups.verdicts {
            // Who is gone takes its request back when its future is dropped.
            let _ = sender.send(verdict);
        }
        wakeups.revoked.iter().for_each(|revocation| revocation.revoke());
        if wakeups.rings {
            self.alarm.notify_one();
        }
        if wakeups.waiting_begins {
            self.demanded.send_replace(());
        }
        result
    }

    /// Time on the queue's clock.
    fn now(&self) -> Nanos {
        nanos(self.origin.elapsed())
    }
}

impl Sheddable for Gate {
    fn shed(&self, bytes: u64, highest: i32) -> u64 {
        Self::shed(self, bytes, highest).bytes
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Gate")
            .field("detector", &inner.detector_name)
            .field("waiting", &inner.queue.waiting())
            .field("in_flight", &inner.queue.in_flight())
            .finish_non_exhaustive()
    }
}
