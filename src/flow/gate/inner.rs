//! The queue behind its lock: what events do to it, and who is notified.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::grant::{Grant, Revocation};
use super::stages::{Levels, Stages};
use crate::endpoints::Candidates;
use crate::flow::queue::{Action, NEVER, Nanos, Outcome, Queue, Ticket, nanos};
use crate::schedule::SaturationDetector;
use crate::schedule::flow_control::FlowControlSpec;

/// The queue, and who waits for what it says.
pub(super) struct Inner {
    pub(super) queue: Queue,
    pub(super) detector: Arc<dyn SaturationDetector>,
    pub(super) detector_name: String,
    /// Longest wait for room of the requests that come; `None`: for ever.
    pub(super) ttl: Option<Nanos>,
    pub(super) stages: Stages,
    /// By the place of a ticket: who waits for it. The ticket is there too, as places are
    /// taken again before everybody has heard of the end of those who had them.
    waiters: Vec<Option<(Ticket, oneshot::Sender<Verdict>)>>,
    pub(super) revocations: HashMap<Ticket, Arc<Revocation>>,
    pub(super) actions: Vec<Action>,
    /// State that the task knows: when it wakes, and whether a request waits.
    pub(super) alarm_at: Nanos,
    pub(super) task_listens: bool,
}

/// Outcome of waiting.
#[derive(Debug)]
pub(super) enum Verdict {
    Go(Grant),
    No(Outcome),
}

/// Waiting requests to wake with their verdicts, and running ones to end.
#[derive(Default)]
pub(super) struct Wakeups {
    pub(super) verdicts: SmallVec<[(oneshot::Sender<Verdict>, Verdict); 1]>,
    pub(super) revoked: SmallVec<[Arc<Revocation>; 2]>,
    /// The verdict on the request whose event it is.
    pub(super) own: Option<Verdict>,
    pub(super) rings: bool,
    /// `true` if no request waited before.
    pub(super) waiting_begins: bool,
}

impl Inner {
    /// Gate without waiting requests. `grace` is how long the end of a request takes to show in the pool's numbers.
    pub(super) fn new(spec: &FlowControlSpec, grace: Nanos) -> Self {
        let FlowControlSpec { rules, detector, detector_name } = spec;
        Self {
            queue: Queue::new(rules, grace),
            detector: Arc::clone(detector),
            detector_name: detector_name.clone(),
            ttl: rules.ttl.map(nanos),
            stages: Stages::default(),
            waiters: Vec::new(),
            revocations: HashMap::new(),
            actions: Vec::new(),
            alarm_at: NEVER,
            task_listens: false,
        }
    }

    pub(super) fn reconfigure(&mut self, spec: &FlowControlSpec, now: Nanos) {
        let FlowControlSpec { rules, detector, detector_name } = spec;
        self.queue.reconfigure(now, rules);
        self.detector = Arc::clone(detector);
        self.detector_name.clone_from(detector_name);
        self.ttl = rules.ttl.map(nanos);
    }

    /// Load of the pool.
    pub(super) fn levels(&self, now_ms: u64) -> Levels {
        self.stages.levels(&*self.detector, now_ms)
    }

    pub(super) fn set_pool(&mut self, pool: &Candidates, now: Nanos) {
        let before = self.stages.endpoints();
        if self.stages.set(pool) {
            let (endpoints, waiting) = (self.stages.endpoints(), self.queue.waiting().requests);
            self.queue.set_endpoints(now, endpoints);
            if before > 0 && endpoints == 0 {
                tracing::info!("pool is empty: requests wait for an endpoint");
            } else if before == 0 && waiting > 0 {
                tracing::info!(endpoints, waiting, "endpoints came up: dispatching waiting requests");
            }
        }
    }

    /// Registers the receiver of the verdict on a request.
    pub(super) fn wait(&mut self, ticket: Ticket, sender: oneshot::Sender<Verdict>) {
        if self.waiters.len() <= ticket.index() {
            self.waiters.resize_with(ticket.index() + 1, || None);
        }
        if let Some(place) = self.waiters.get_mut(ticket.index()) {
            *place = Some((ticket, sender));
        }
    }

    /// Takes out the sender that waits for the verdict on this request, and on no later one in its place.
    pub(super) fn take_waiter(&mut self, ticket: Ticket) -> Option<oneshot::Sender<Verdict>> {
        let place = self.waiters.get_mut(ticket.index())?;
        place.take_if(|(of, _)| *of == ticket).map(|(_, sender)| sender)
    }

    pub(super) fn know(&mut self, ticket: Ticket, revocation: Option<&Arc<Revocation>>) {
        if let Some(revocation) = revocation {
            self.revocations.insert(ticket, Arc::clone(revocation));
        }
    }

    /// Forgets a request. Returns `true` if others may go for that.
    pub(super) fn forget(&mut self, ticket: Ticket, cost: f64, now: Nanos) -> bool {
        let frees = self.queue.end(now, ticket, cost, &mut self.actions);
        if !self.revocations.is_empty() {
            self.revocations.remove(&ticket);
        }
        self.take_waiter(ticket);
        frees
    }
}
