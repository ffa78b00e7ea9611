//! Running requests that are given up for waiting ones of higher priority.
//!
//! Stop and wait: a few victims are revoked, and the next are chosen only once all of
//! them have ended and what that freed has had time to show.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::capacity::EPSILON;
use super::requests::Ticket;
use super::time::{NEVER, Nanos};

/// Victims of one decision, at most.
const MOST: u64 = 2;

/// A victim that has not ended by then isn't waited for any longer.
pub(super) const CONFIRMATION_TIMEOUT: Nanos = 10_000_000_000;

/// Lowest priority first, then the newest.
type Order = (i32, Reverse<Nanos>, Reverse<u32>);

/// Running requests that may be given up, and those that were chosen to end and have not.
#[derive(Debug)]
pub(super) struct Evictions {
    /// Time for what was freed to show.
    grace: Nanos,
    running: BTreeMap<Order, Ticket>,
    orders: HashMap<Ticket, Order>,
    /// Victims that have not ended, and when they were revoked.
    revoked: HashMap<Ticket, Nanos>,
    /// No decision before.
    not_before: Nanos,
    /// Number that was wanted at the last decision.
    pub(super) target: u64,
}

/// Demand that running requests have to make room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Priority of the band that is blocked.
    pub(super) priority: i32,
    /// Up to where it may fill the pool.
    pub(super) ceiling: f64,
    /// Saturation of the pool.
    pub(super) saturation: f64,
    /// Requests that make it so.
    pub(super) in_flight: u64,
}

impl Evictions {
    pub(super) fn new(grace: Nanos) -> Self {
        Self {
            grace,
            running: BTreeMap::new(),
            orders: HashMap::new(),
            revoked: HashMap::new(),
            not_before: 0,
            target: 0,
        }
    }

    /// A request runs. Only those of a priority below 0 are ever given up.
    pub(super) fn started(&mut self, ticket: Ticket, priority: i32, now: Nanos) {
        if priority < 0 {
            let order = (priority, Reverse(now), Reverse(ticket.slot));
            self.running.insert(order, ticket);
            self.orders.insert(ticket, order);
        }
    }

    /// A request has ended. Returns how long that took since it was revoked, if it was.
    pub(super) fn ended(&mut self, ticket: Ticket, now: Nanos) -> Option<Nanos> {
        if let Some(order) = self.orders.remove(&ticket) {
            self.running.remove(&order);
        }
        let revoked = self.revoked.remove(&ticket)?;
        if self.revoked.is_empty() {
            self.not_before = now.saturating_add(self.grace);
        }
        Some(now.saturating_sub(revoked))
    }

    /// Stops waiting for victims that don't end. Returns how many.
    pub(super) fn give_up(&mut self, now: Nanos) -> u64 {
        let before = self.revoked.len();
        self.revoked.retain(|_, revoked| revoked.saturating_add(CONFIRMATION_TIMEOUT) > now);
        let gone = before - self.revoked.len();
        if gone > 0 && self.revoked.is_empty() {
            self.not_before = now.saturating_add(self.grace);
        }
        gone as u64
    }

    /// Chooses victims.
    pub(super) fn decide(&mut self, now: Nanos, demand: &Demand) -> Vec<(Ticket, i32)> {
        if !self.revoked.is_empty() || now < self.not_before {
            return Vec::new();
        }
        let each = demand.saturation / demand.in_flight.max(1) as f64;
        // Shares are not exact: a hair more than two is two.
        let beyond = ((demand.saturation - demand.ceiling) / each - EPSILON).ceil();
        // Saturates, as casts from floats do; no number becomes 0.
        let wanted = (beyond as u64).clamp(1, MOST);
        self.target = wanted;
        let mut victims = Vec::new();
        while (victims.len() as u64) < wanted
            && let Some((order, ticket)) = self.running.pop_first()
        {
            let (priority, ..) = order;
            if priority >= demand.priority {
                self.running.insert(order, ticket);
                break;
            }
            self.orders.remove(&ticket);
            self.revoked.insert(ticket, now);
            victims.push((ticket, priority));
        }
        victims
    }

    /// Victims that have not ended.
    pub(super) fn pending(&self) -> u64 {
        self.revoked.len() as u64
    }

    /// Time of the next step without another event.
    pub(super) fn next(&self, now: Nanos) -> Nanos {
        let timeout = self.revoked.values().min().map(|revoked| revoked.saturating_add(CONFIRMATION_TIMEOUT));
        let decision = (self.revoked.is_empty() && !self.running.is_empty() && self.not_before > now)
            .then_some(self.not_before);
        timeout.or(decision).unwrap_or(NEVER)
    }
}
