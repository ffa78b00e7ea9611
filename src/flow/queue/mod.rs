//! Flow control as a state machine, without I/O and without a clock: which requests wait, and
//! which goes next. Events go in with the time at which they happen, [`Action`]s come out; when
//! something is due though nothing happens, [`Queue::wake_at`] says so.
//!
//! ```text
//! enqueue ─▶ waiting ─▶ granted ─▶ booked ─▶ ended
//!               └▶ expired, cancelled
//! ```
//!
//! A request waits in the band of its priority, in its flow. [`Queue::dispatch`] lets go as
//! many as the pool has room for: from the highest band down, each up to its ceiling; within
//! a band by its fairness policy, within a flow by its ordering policy. A band that has
//! reached its ceiling blocks those below it. What was let go counts as granted until it
//! shows in the pool's own numbers.
//!
//! Every request that was taken in has one end: it is dispatched, refused, or taken back.

mod arrival;
mod band;
mod capacity;
mod count;
mod dispatch;
mod evictions;
mod expiry;
mod fairness;
mod flows;
mod line;
mod outcome;
mod rank;
mod recovery;
mod replicas;
mod requests;
mod service;
mod shed;
mod time;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::schedule::flow_control::{BandRules, FlowControlRules, UsageLimit};

use band::Bands;
use evictions::Evictions;
use expiry::Expiry;
use rank::Rank;
use recovery::Recovery;
use requests::{Held, Requests, Stage};

pub use arrival::Arrival;
pub use capacity::Capacity;
pub use count::Count;
pub use outcome::Outcome;
pub use requests::Ticket;
pub use service::{ServedElsewhere, busiest};
pub use time::{NEVER, Nanos, nanos};

/// Action for the caller to take, or event for it to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let it go.
    Dispatch {
        /// The request.
        ticket: Ticket,
        /// `true` if it belongs to a crowd that waited for endpoints: they are to get equal shares.
        spread: bool,
    },
    /// Refuse it. Its ticket is not known any more.
    Reject {
        /// The request.
        ticket: Ticket,
        /// Reason.
        outcome: Outcome,
    },
    /// End it: it runs, and others need the room.
    Evict {
        /// The request.
        ticket: Ticket,
        /// Priority of the request.
        priority: i32,
    },
    /// A revoked request has ended, so long after.
    Reclaimed(Nanos),
    /// A revoked request has not ended, and isn't waited for.
    NotReclaimed,
}

/// Requests that wait in a band, and how many may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandLoad {
    /// Priority of the band.
    pub priority: i32,
    /// Number and bytes of the requests that wait.
    pub waiting: Count,
    /// The most that may.
    pub limit: Count,
}

/// The requests that wait, and what is known of those that left.
#[derive(Debug)]
pub struct Queue {
    bands: Bands,
    default_band: BandRules,
    default_negative_band: BandRules,
    usage_limit: UsageLimit,
    limit: Count,
    requests: Requests,
    waiting: Count,
    granted: Count,
    in_flight: u64,
    /// Ends of requests that were charged to a flow.
    charged: u64,
    expiry: Expiry,
    recovery: Recovery,
    evictions: Option<Evictions>,
    sequence: u64,
    /// The tick in which a soft ceiling last let a request through, plus one.
    soft_tick: u64,
    /// Time at which a soft ceiling opens for a waiting request.
    soft_opens: Nanos,
    /// Requests that come no longer wait.
    is_draining: bool,
    /// Waiting requests that came since the drain began.
    newcomers: Vec<Ticket>,
    is_closed: bool,
}

impl Queue {
    /// An empty queue before an empty pool. `grace` is how long the end of a request takes
    /// to show in the pool's numbers.
    pub fn new(rules: &FlowControlRules, grace: Nanos) -> Self {
        Self {
            bands: Bands::new(&rules.bands),
            default_band: rules.default_band.clone(),
            default_negative_band: rules.default_negative_band.clone(),
            usage_limit: rules.usage_limit.clone(),
            limit: limit(rules),
            requests: Requests::default(),
            waiting: Count::default(),
            granted: Count::default(),
            in_flight: 0,
            charged: 0,
            expiry: Expiry::new(rules.no_endpoint_ttl.map_or(NEVER, nanos)),
            recovery: Recovery::default(),
            evictions: rules.evicts.then(|| Evictions::new(grace)),
            sequence: 0,
            soft_tick: 0,
            soft_opens: NEVER,
            is_draining: false,
            newcomers: Vec::new(),
            is_closed: false,
        }
    }

    /// Takes other rules. Those that wait stay where they are, also where there are more of them than
    /// the new limits allow, and keep the longest wait for room with which they came. Whether running
    /// requests are evicted, and in which order the requests of a band go, stays as it was. Call
    /// [`dispatch`](Self::dispatch) after it.
    pub fn reconfigure(&mut self, now: Nanos, rules: &FlowControlRules) {
        self.limit = limit(rules);
        self.default_band = rules.default_band.clone();
        self.default_negative_band = rules.default_negative_band.clone();
        self.usage_limit = rules.usage_limit.clone();
        self.bands.reconfigure(rules, now);
        self.expiry.set_no_endpoint_ttl(rules.no_endpoint_ttl.map_or(NEVER, nanos), &mut self.requests);
    }

    /// A request begins to wait: in a closed queue, and in one that drains unless it has waited before, until
    /// the next [`dispatch`](Self::dispatch).
    ///
    /// # Errors
    /// `Outcome` of a request that finds no room to wait.
    pub fn enqueue(&mut self, now: Nanos, arrival: &Arrival<'_>) -> Result<Ticket, Outcome> {
        let full = if self.recovery.is_empty_pool() {
            Outcome::RejectedNoEndpoints
        } else {
            Outcome::RejectedCapacity
        };
        let Arrival { flow, priority, bytes, beside, since, .. } = *arrival;
        if !self.waiting.has_room(bytes, self.limit.requests, self.limit.bytes) {
            return Err(full);
        }
        let default = if priority < 0 { &self.default_negative_band } else { &self.default_band };
        let band = self.bands.get_or_make(priority, default, now).ok_or(full)?;
        if !band.has_room(bytes) {
            return Err(full);
        }
        let slot = self.requests.next().ok_or(full)?;
        let rank = Rank::of(band.rules.ordering, arrival, self.sequence);
        self.sequence += 1;
        let flow = band.push(flow, rank, slot, since, bytes, now);
        let ttl = arrival.ttl.unwrap_or(NEVER);
        let mut held =
            Held { priority, flow, bytes, beside, rank, since, ttl, expires: NEVER, stage: Stage::Waiting };
        self.expiry.insert(slot, &mut held);
        self.waiting += Count::one(bytes);
        let ticket = self.requests.insert(held);
        if self.is_draining && since == now {
            self.newcomers.push(ticket);
        }
        Ok(ticket)
    }

    /// Requests of these priorities may come, besides those of the bands that rules list.
    /// Call [`dispatch`](Self::dispatch) after it: ceilings may depend on which bands there are.
    pub fn know(&mut self, now: Nanos, priorities: &BTreeSet<i32>) {
        let (default, negative) = (&self.default_band, &self.default_negative_band);
        let rules = |priority| if priority < 0 { negative.clone() } else { default.clone() };
        self.bands.know(priorities, rules, now);
    }

    /// The client of a request went away, or its response is complete. What it got, `cost`, is
    /// charged to its flow: prompt tokens and twice the generated ones. Returns whether others
    /// may go for that: not when it waited, and others of its band still do.
    pub fn end(&mut self, now: Nanos, ticket: Ticket, cost: f64, actions: &mut Vec<Action>) -> bool {
        let Some(held) = self.requests.remove(ticket) else { return false };
        match held.stage {
            Stage::Waiting => {
                self.expiry.remove(ticket.slot, &held);
                self.waiting -= Count::one(held.bytes);
                return self.bands.get(held.priority).is_some_and(|band| {
                    band.remove(held.flow, held.rank, held.bytes, now);
                    // It may have been in the way of those below.
                    band.waiting.requests == 0
                });
            }
            Stage::Granted => self.granted -= Count::one(held.bytes),
            Stage::Booked => {}
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(evictions) = &mut self.evictions
            && let Some(after) = evictions.ended(ticket, now)
        {
            actions.push(Action::Reclaimed(after));
        }
        if let Some(band) = self.bands.get(held.priority) {
            band.served(held.flow, cost, now);
            self.charged += u64::from(band.remembers());
        }
        true
    }

    /// The room that a request takes shows in the pool's numbers from now on.
    pub fn booked(&mut self, now: Nanos, ticket: Ticket) {
        let Some(held) = self.requests.get_mut(ticket) else { return };
        if held.stage == Stage::Granted {
            held.stage = Stage::Booked;
            let (bytes, priority) = (held.bytes, held.priority);
            self.granted -= Count::one(bytes);
            if let Some(evictions) = &mut self.evictions {
                evictions.started(ticket, priority, now);
            }
        }
    }

    /// The pool's endpoints have changed; there are so many now.
    pub fn set_endpoints(&mut self, now: Nanos, endpoints: usize) {
        if self.recovery.change(now, endpoints, self.waiting.requests > 0) {
            self.expiry.change(now, endpoints == 0, &mut self.requests);
        }
    }

    /// Expires overdue requests and moves due evictions on. Call [`dispatch`](Self::dispatch) after it.
    pub fn advance(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let outcome =
            if self.recovery.is_empty_pool() { Outcome::EvictedNoEndpoints } else { Outcome::EvictedTtl };
        while let Some(slot) = self.expiry.pop(now) {
            self.refuse(now, slot, outcome, actions);
        }
        if let Some(evictions) = &mut self.evictions {
            let given_up = evictions.give_up(now);
            actions.extend((0..given_up).map(|_| Action::NotReclaimed));
        }
        self.bands.sweep(now);
    }

    /// Refuses from now on all requests that would begin to wait. Those that wait stay.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Refuses all waiting requests, and from now on all that would have to wait.
    pub fn close(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        self.is_closed = true;
        self.refuse_waiting(now, Outcome::EvictedOther, actions);
    }

    fn refuse_waiting(&mut self, now: Nanos, outcome: Outcome, actions: &mut Vec<Action>) {
        let slots: Vec<u32> = self.requests.waiting().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.refuse_at(now, slot, outcome, actions);
        }
    }

    /// Refuses the waiting request at a place.
    fn refuse_at(&mut self, now: Nanos, slot: u32, outcome: Outcome, actions: &mut Vec<Action>) {
        if let Some((_, held)) = self.requests.at(slot) {
            self.expiry.remove(slot, held);
        }
        self.refuse(now, slot, outcome, actions);
    }

    /// Time at which [`advance`](Self::advance) has work without another event.
    pub fn wake_at(&self, now: Nanos) -> Nanos {
        let somebody_waits = self.waiting.requests > 0;
        let settled = if somebody_waits && self.recovery.until > now { self.recovery.until } else { NEVER };
        // Whoever it would have opened for may be gone.
        let soft_opens = if somebody_waits { self.soft_opens } else { NEVER };
        let evictions = self.evictions.as_ref().map_or(NEVER, |evictions| evictions.next(now));
        [self.expiry.next(), settled, soft_opens, evictions, self.bands.next_sweep()]
            .into_iter()
            .fold(NEVER, Nanos::min)
    }

    /// Number and bytes of the requests that wait.
    pub fn waiting(&self) -> Count {
        self.waiting
    }

    /// The most that may wait; `u64::MAX`: no limit.
    pub fn limit(&self) -> Count {
        self.limit
    }

    /// Requests that were let go and don't show in the pool's numbers yet.
    pub fn granted(&self) -> Count {
        self.granted
    }

    /// Requests that were let go and have not ended.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The bands, the highest priority first.
    pub fn bands(&self) -> impl Iterator<Item = BandLoad> {
        self.bands.iter().map(|band| BandLoad {
            priority: band.priority,
            waiting: band.waiting,
            limit: Count { requests: band.rules.max_requests, bytes: band.rules.max_bytes },
        })
    }

    /// Flows that are kept.
    pub fn flows(&self) -> usize {
        self.bands.iter().map(band::Band::flows).sum()
    }

    /// Running requests that were revoked and have not ended, and how many the last decision
    /// asked for.
    pub fn evicting(&self) -> (u64, u64) {
        self.evictions.as_ref().map_or((0, 0), |evictions| (evictions.pending(), evictions.target))
    }

    /// Ends the wait of a request that is not among the ends of waits any more.
    fn refuse(&mut self, now: Nanos, slot: u32, outcome: Outcome, actions: &mut Vec<Action>) {
        let Some((ticket, _)) = self.requests.at(slot) else { return };
        let Some(held) = self.requests.remove(ticket) else { return };
        self.waiting -= Count::one(held.bytes);
        if let Some(band) = self.bands.get(held.priority) {
            band.remove(held.flow, held.rank, held.bytes, now);
        }
        actions.push(Action::Reject { ticket, outcome });
    }
}

/// The most that may wait, all bands together.
fn limit(rules: &FlowControlRules) -> Count {
    Count { requests: rules.max_requests.unwrap_or(u64::MAX), bytes: rules.max_bytes.unwrap_or(u64::MAX) }
}
