//! A request that was let go, until it is done.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::Gate;
use super::grant::{Grant, Revocation};
use crate::flow::queue::{Nanos, Ticket};
use crate::request::usage::Usage;

/// Bytes of a request's body for a token, where the number is unknown.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Room in the pool for one request. Dropping it gives the room back.
#[derive(Debug)]
pub struct Permit {
    gate: Arc<Gate>,
    ticket: Ticket,
    since: Nanos,
    bytes: u64,
    spread: bool,
    /// Service that the request got, in tokens; 0 until it is placed.
    cost: f64,
    /// `None`: it is never given up.
    revocation: Option<Arc<Revocation>>,
}

impl Permit {
    pub(super) fn new(gate: &Arc<Gate>, ticket: Ticket, since: Nanos, bytes: u64, grant: Grant) -> Self {
        let Grant { spread, revocation } = grant;
        Self { gate: Arc::clone(gate), ticket, since, bytes, spread, cost: 0.0, revocation }
    }

    /// Since when the request waited.
    pub(in crate::flow) fn since(&self) -> Nanos {
        self.since
    }

    /// Returns `true` if it belongs to a crowd that waited for endpoints, which are to get equal shares.
    pub(in crate::flow) fn spreads(&self) -> bool {
        self.spread
    }

    /// The request has its endpoint, and what it takes shows in the pool.
    pub(in crate::flow) fn placed(&mut self) {
        self.cost = self.bytes as f64 / BYTES_PER_TOKEN;
        self.gate.booked(self.ticket);
    }

    /// Raises the cost to that of these bytes, of a body that was not known at the booking.
    pub(in crate::flow) fn relayed(&mut self, bytes: usize) {
        self.cost = self.cost.max(bytes as f64 / BYTES_PER_TOKEN);
    }

    /// Some of what it takes was given back before its end.
    pub(in crate::flow) fn lighter(&self) {
        self.gate.notify_room();
    }

    /// The response ended after so many `seen` tokens, or was cut off. Generated tokens count twice, as
    /// in llm-d-router. Where a response doesn't say what it used, or didn't come to it, what was seen of
    /// it does: a flow that hides its usage or hangs up must not go before all others for it.
    pub(in crate::flow) fn used(&mut self, usage: &Usage, seen: u64, is_complete: bool) {
        let Usage { prompt_tokens, completion_tokens, .. } = *usage;
        let says = is_complete && (prompt_tokens.is_some() || completion_tokens.is_some());
        let generated = completion_tokens.unwrap_or(0).max(if says { 0 } else { seen }) as f64;
        self.cost = prompt_tokens.map_or(self.cost, |tokens| tokens as f64) + 2.0 * generated;
    }

    /// Ready when the request is given up for another.
    pub(in crate::flow) fn poll_revoked(&self, context: &mut Context<'_>) -> Poll<()> {
        self.revocation.as_ref().map_or(Poll::Pending, |revocation| revocation.poll(context))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.end(self.ticket, self.cost);
    }
}
