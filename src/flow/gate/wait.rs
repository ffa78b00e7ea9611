//! A request that waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::series::{Counted, Series};
use super::{Gate, Verdict};
use crate::flow::queue::{Outcome, Ticket};

/// Ready with the verdict. Dropped before, it takes the request back: its client is gone.
#[derive(Debug)]
pub(super) struct Wait {
    gate: Arc<Gate>,
    ticket: Ticket,
    receiver: oneshot::Receiver<Verdict>,
    series: Arc<Series>,
    /// Counts the request as waiting.
    counted: Option<Counted>,
    since: Instant,
    enqueued: Duration,
}

impl Wait {
    pub(super) fn new(
        gate: &Arc<Gate>,
        ticket: Ticket,
        receiver: oneshot::Receiver<Verdict>,
        series: Arc<Series>,
        bytes: u64,
        enqueued: Duration,
    ) -> Self {
        let counted = Some(Counted::new(&series, bytes));
        Self { gate: Arc::clone(gate), ticket, receiver, series, counted, since: Instant::now(), enqueued }
    }

    fn ended(&mut self, outcome: Outcome) {
        self.counted = None;
        let waited = self.since.elapsed();
        tracing::debug!(outcome = outcome.name(), ?waited, "request left the queue");
        self.series.ended(outcome, waited, self.enqueued, &self.gate.metrics);
    }
}

impl Future for Wait {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Verdict> {
        let Poll::Ready(received) = Pin::new(&mut self.receiver).poll(context) else { return Poll::Pending };
        // The gate drops a sender without a word only when it is gone itself.
        let verdict = received.unwrap_or(Verdict::No(Outcome::EvictedOther));
        self.ended(match &verdict {
            Verdict::Go(_) => Outcome::Dispatched,
            Verdict::No(outcome) => *outcome,
        });
        Poll::Ready(verdict)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.counted.is_some() {
            self.ended(Outcome::EvictedContextCancelled);
            // Also when it may go by now, and nobody has heard of it.
            self.gate.end(self.ticket, 0.0);
        }
    }
}
