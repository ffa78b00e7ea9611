//! The queue behind its lock: what events do to it, and who is told of that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Gate;
use super::permit::{Grant, Revocation};
use super::stages::Stages;
use crate::endpoints::Candidates;
use crate::flow::queue::{Action, NEVER, Nanos, Outcome, Queue, Ticket};

/// The queue, and who waits for what it says.
pub(super) struct Inner {
    pub(super) queue: Queue,
    pub(super) stages: Stages,
    /// By the place of a ticket: who waits for it. The ticket is there too, as places are
    /// taken again before everybody has heard of the end of those who had them.
    waiters: Vec<Option<(Ticket, oneshot::Sender<Verdict>)>>,
    revocations: HashMap<Ticket, Arc<Revocation>>,
    pub(super) actions: Vec<Action>,
    /// What the task knows: when it wakes, and whether somebody waits.
    pub(super) alarm_at: Nanos,
    pub(super) task_listens: bool,
}

/// How waiting ended.
#[derive(Debug)]
pub(super) enum Verdict {
    Go(Grant),
    No(Outcome),
}

/// Those to wake, and those to tell to end.
#[derive(Default)]
pub(super) struct Told {
    pub(super) verdicts: SmallVec<[(oneshot::Sender<Verdict>, Verdict); 1]>,
    pub(super) revoked: SmallVec<[Arc<Revocation>; 2]>,
    /// The verdict on the request whose event it is.
    pub(super) own: Option<Verdict>,
    pub(super) rings: bool,
    /// Nobody waited before.
    pub(super) waiting_begins: bool,
}

impl Inner {
    /// Nobody waits.
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            stages: Stages::default(),
            waiters: Vec::new(),
            revocations: HashMap::new(),
            actions: Vec::new(),
            alarm_at: NEVER,
            task_listens: false,
        }
    }

    pub(super) fn set_pool(&mut self, pool: &Candidates, now: Nanos) {
        let before = self.stages.endpoints();
        if self.stages.set(pool) {
            let (endpoints, waiting) = (self.stages.endpoints(), self.queue.waiting().requests);
            self.queue.set_endpoints(now, endpoints);
            if before > 0 && endpoints == 0 {
                tracing::info!("no endpoint is left: requests wait for one");
            } else if before == 0 && waiting > 0 {
                tracing::info!(endpoints, waiting, "endpoints came up: what waits goes there");
            }
        }
    }

    /// Lets go as many as fit now.
    pub(super) fn run(&mut self, gate: &Gate, now: Nanos, own: Option<Ticket>, told: &mut Told) {
        if self.queue.waiting().requests > 0 {
            let start = std::time::Instant::now();
            let capacity = self.stages.levels(&*gate.detector, gate.clock.now_ms()).capacity();
            self.queue.dispatch(now, &capacity, &mut self.actions);
            gate.metrics.cycle.observe(start.elapsed());
        }
        self.tell(gate, own, told);
    }

    /// Sorts out what the queue wants done.
    pub(super) fn tell(&mut self, gate: &Gate, own: Option<Ticket>, told: &mut Told) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            let (ticket, verdict) = match action {
                Action::Dispatch { ticket, spread } => {
                    let revocation = self.revocations.get(&ticket).cloned();
                    (ticket, Verdict::Go(Grant { spread, revocation }))
                }
                Action::Reject { ticket, outcome } => {
                    self.revocations.remove(&ticket);
                    (ticket, Verdict::No(outcome))
                }
                Action::Evict { ticket, priority } => {
                    gate.metrics.revoked(priority);
                    told.revoked.extend(self.revocations.remove(&ticket));
                    continue;
                }
                Action::Reclaimed(after) => {
                    gate.metrics.confirmed.inc();
                    gate.metrics.confirmation.observe(Duration::from_nanos(after).as_secs_f64());
                    continue;
                }
                Action::NotReclaimed => {
                    gate.metrics.timed_out.inc();
                    continue;
                }
            };
            if own == Some(ticket) {
                told.own = Some(verdict);
            } else if let Some(sender) = self.take_waiter(ticket) {
                told.verdicts.push((sender, verdict));
            }
        }
        self.actions = actions;
    }

    /// Somebody waits for the verdict on a request.
    pub(super) fn wait(&mut self, ticket: Ticket, sender: oneshot::Sender<Verdict>) {
        if self.waiters.len() <= ticket.index() {
            self.waiters.resize_with(ticket.index() + 1, || None);
        }
        if let Some(place) = self.waiters.get_mut(ticket.index()) {
            *place = Some((ticket, sender));
        }
    }

    /// Who waits for the verdict on this request, and on no later one in its place.
    fn take_waiter(&mut self, ticket: Ticket) -> Option<oneshot::Sender<Verdict>> {
        let place = self.waiters.get_mut(ticket.index())?;
        place.take_if(|(of, _)| *of == ticket).map(|(_, sender)| sender)
    }

    pub(super) fn know(&mut self, ticket: Ticket, revocation: Option<&Arc<Revocation>>) {
        if let Some(revocation) = revocation {
            self.revocations.insert(ticket, Arc::clone(revocation));
        }
    }

    /// Whether others may go for that.
    pub(super) fn forget(&mut self, ticket: Ticket, cost: f64, now: Nanos) -> bool {
        let frees = self.queue.end(now, ticket, cost, &mut self.actions);
        if !self.revocations.is_empty() {
            self.revocations.remove(&ticket);
        }
        self.take_waiter(ticket);
        frees
    }
}
