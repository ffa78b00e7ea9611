//! The queue against tables and against a naive reference.

mod dispatching;
mod evicting;
mod expiring;
mod model;
mod shares;

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::schedule::Level;

pub(super) const MS: Nanos = 1_000_000;
pub(super) const S: Nanos = 1000 * MS;

/// A queue before a pool that has room for so many requests, by names.
pub(super) struct Pool {
    pub(super) queue: Queue,
    pub(super) now: Nanos,
    /// Requests that fill the pool.
    pub(super) room: u64,
    /// Requests that the pool shows.
    pub(super) shown: u64,
    /// TTL of what is enqueued.
    pub(super) ttl: Option<Nanos>,
    /// By name; the latest of a name.
    tickets: HashMap<&'static str, Ticket>,
    names: HashMap<Ticket, &'static str>,
}

/// Actions of the queue, by names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) dispatched: Vec<&'static str>,
    pub(super) tickets: Vec<Ticket>,
    pub(super) rejected: Vec<(&'static str, Outcome)>,
    pub(super) evicted: Vec<&'static str>,
    pub(super) reclaimed: Vec<Option<Nanos>>,
    pub(super) spread: bool,
}

impl Pool {
    /// With endpoints, at a time that is not 0.
    pub(super) fn new(rules: &FlowControlRules, room: u64) -> Self {
        let mut queue = Queue::new(rules, 10 * MS);
        queue.set_endpoints(S, 1);
        Self { queue, now: S, room, shown: 0, ttl: None, tickets: HashMap::new(), names: HashMap::new() }
    }

    pub(super) fn arrival(&self, flow: &'static str, priority: i32, bytes: u64) -> Arrival<'static> {
        let (received, since) = (self.now, self.now);
        Arrival { flow, priority, bytes, beside: 0, received, since, ttl: self.ttl, due: None }
    }

    pub(super) fn arrive(&mut self, name: &'static str, arrival: &Arrival<'_>) -> Result<(), Outcome> {
        let ticket = self.queue.enqueue(self.now, arrival)?;
        self.tickets.insert(name, ticket);
        self.names.insert(ticket, name);
        Ok(())
    }

    /// A request of a byte that has to find room to wait in.
    pub(super) fn enqueue(&mut self, name: &'static str, flow: &'static str, priority: i32) {
        self.arrive(name, &self.arrival(flow, priority, 1)).unwrap();
    }

    pub(super) fn capacity(&self) -> Capacity {
        let per_request = 1.0 / self.room as f64;
        Capacity::new([Level { saturation: self.shown as f64 * per_request, per_request, per_byte: 0.0 }])
    }

    /// Lets everything happen that is due, and as many go as there is room for.
    pub(super) fn pump(&mut self) -> Happened {
        let mut actions = Vec::new();
        self.queue.advance(self.now, &mut actions);
        self.queue.dispatch(self.now, &self.capacity(), &mut actions);
        self.happened(actions)
    }

    pub(super) fn dispatched(&mut self) -> Vec<&'static str> {
        self.pump().dispatched
    }

    /// Dispatches all waiting requests one after the other, each after the end of the one before.
    pub(super) fn drain(&mut self) -> Vec<&'static str> {
        let mut order = Vec::new();
        loop {
            let next = self.pump();
            if next.dispatched.is_empty() {
                return order;
            }
            self.end_all(&next);
            order.extend(next.dispatched);
        }
    }

    /// Shows a dispatched request in the pool's load.
    pub(super) fn book(&mut self, name: &str) {
        self.queue.booked(self.now, self.tickets[name]);
        self.shown += 1;
    }

    /// Ends a request: its client is gone, or its response complete.
    pub(super) fn end(&mut self, name: &str, cost: f64) -> Happened {
        let mut actions = Vec::new();
        self.queue.end(self.now, self.tickets[name], cost, &mut actions);
        self.happened(actions)
    }

    /// The end of all that were let go.
    pub(super) fn end_all(&mut self, happened: &Happened) {
        for ticket in &happened.tickets {
            self.queue.end(self.now, *ticket, 0.0, &mut Vec::new());
        }
    }

    /// The end of one that shows in the pool.
    pub(super) fn finish(&mut self, name: &str, cost: f64) -> Happened {
        self.shown -= 1;
        self.end(name, cost)
    }

    pub(super) fn happened(&self, actions: Vec<Action>) -> Happened {
        let name = |ticket| self.names[&ticket];
        let mut happened = Happened::default();
        for action in actions {
            match action {
                Action::Dispatch { ticket, spread } => {
                    happened.dispatched.push(name(ticket));
                    happened.tickets.push(ticket);
                    happened.spread |= spread;
                }
                Action::Reject { ticket, outcome } => happened.rejected.push((name(ticket), outcome)),
                Action::Evict { ticket, .. } => happened.evicted.push(name(ticket)),
                Action::Reclaimed(after) => happened.reclaimed.push(Some(after)),
                Action::NotReclaimed => happened.reclaimed.push(None),
            }
        }
        happened
    }
}
