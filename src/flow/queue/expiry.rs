//! Expiry of waiting requests.
//!
//! Two regimes: with endpoints a request waits for room, without it waits for an endpoint, and each has its
//! own longest wait. A change of regime restarts all waits, as what they waited for has changed.

use std::collections::BTreeSet;

use super::requests::{Held, Requests};
use super::time::{NEVER, Nanos};

/// The ends of all waits, in their order.
#[derive(Debug)]
pub(super) struct Expiry {
    ends: BTreeSet<(Nanos, u32)>,
    /// Time at which the regime began.
    since: Nanos,
    is_empty_pool: bool,
    /// The longest wait for an endpoint; [`NEVER`]: for ever.
    no_endpoint_ttl: Nanos,
}

impl Expiry {
    /// Deadlines of an empty pool without waiting requests.
    pub(super) fn new(no_endpoint_ttl: Nanos) -> Self {
        Self { ends: BTreeSet::new(), since: 0, is_empty_pool: true, no_endpoint_ttl }
    }

    /// A request waits. Notes in it when that ends.
    pub(super) fn insert(&mut self, slot: u32, held: &mut Held) {
        held.expires = self.end_of(held);
        if held.expires != NEVER {
            self.ends.insert((held.expires, slot));
        }
    }

    /// A request waits no more.
    pub(super) fn remove(&mut self, slot: u32, held: &Held) {
        if held.expires != NEVER {
            self.ends.remove(&(held.expires, slot));
        }
    }

    /// The pool has become empty, or isn't any more.
    pub(super) fn change(&mut self, now: Nanos, is_empty_pool: bool, requests: &mut Requests) {
        (self.since, self.is_empty_pool) = (now, is_empty_pool);
        self.arrange(requests);
    }

    /// The longest wait for an endpoint is another from now on, also for those that wait.
    pub(super) fn set_no_endpoint_ttl(&mut self, ttl: Nanos, requests: &mut Requests) {
        if self.no_endpoint_ttl != ttl {
            self.no_endpoint_ttl = ttl;
            self.arrange(requests);
        }
    }

    fn arrange(&mut self, requests: &mut Requests) {
        self.ends.clear();
        for (slot, held) in requests.waiting() {
            held.expires = self.end_of(held);
            if held.expires != NEVER {
                self.ends.insert((held.expires, slot));
            }
        }
    }

    /// The place of a request whose wait has ended by now.
    pub(super) fn pop(&mut self, now: Nanos) -> Option<u32> {
        let (end, slot) = *self.ends.first()?;
        (end <= now).then(|| {
            self.ends.pop_first();
            slot
        })
    }

    /// The next end.
    pub(super) fn next(&self) -> Nanos {
        self.ends.first().map_or(NEVER, |(end, _)| *end)
    }

    fn end_of(&self, held: &Held) -> Nanos {
        let ttl = if self.is_empty_pool { self.no_endpoint_ttl } else { held.ttl };
        held.since.max(self.since).saturating_add(ttl)
    }
}
