//! A request that waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Gate;
use super::inner::Verdict;
use super::series::Counted;
use crate::flow::queue::{Nanos, Outcome, Ticket};

/// Ready with the verdict. Dropped before, it takes the request back: its client is gone.
#[derive(Debug)]
pub(super) struct Wait {
    gate: Arc<Gate>,
    ticket: Ticket,
    receiver: oneshot::Receiver<Verdict>,
    /// Counts the request as waiting; `None`: its wait is over.
    counted: Option<Counted>,
    since: Nanos,
    enqueued: Duration,
    /// Id of the request, where its end is logged.
    request_id: Option<Box<str>>,
}

impl Wait {
    pub(super) fn new(
        gate: &Arc<Gate>,
        ticket: Ticket,
        receiver: oneshot::Receiver<Verdict>,
        counted: Counted,
        since: Nanos,
        enqueued: Duration,
        request_id: Option<Box<str>>,
    ) -> Self {
        Self { gate: Arc::clone(gate), ticket, receiver, counted: Some(counted), since, enqueued, request_id }
    }

    fn ended(&self, counted: &Counted, outcome: Outcome, now: Nanos) {
        let waited = Duration::from_nanos(now.saturating_sub(self.since));
        let request_id = self.request_id.as_deref();
        tracing::debug!(request_id, outcome = outcome.name(), ?waited, "request left the queue");
        counted.series().ended(outcome, waited, self.enqueued, &self.gate.metrics);
    }
}

impl Future for Wait {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Verdict> {
        let Poll::Ready(received) = Pin::new(&mut self.receiver).poll(context) else { return Poll::Pending };
        // The gate drops a sender without a word only when it is gone itself.
        let verdict = received.unwrap_or(Verdict::No(Outcome::EvictedOther));
        let outcome = match &verdict {
            Verdict::Go(_) => Outcome::Dispatched,
            Verdict::No(outcome) => *outcome,
        };
        if let Some(counted) = self.counted.take() {
            self.ended(&counted, outcome, self.gate.now());
        }
        Poll::Ready(verdict)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(counted) = self.counted.take() {
            // Also when it may go by now, and nobody has heard of it.
            let now = self.gate.end(self.ticket, 0.0);
            self.ended(&counted, Outcome::EvictedContextCancelled, now);
        }
    }
}
