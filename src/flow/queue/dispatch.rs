//! Dispatches requests while there is room: bands from the highest down, each up to its ceiling.

use super::capacity::EPSILON;
use super::evictions::Demand;
use super::requests::Stage;
use super::{Action, Capacity, Count, NEVER, Nanos, Outcome, Queue};
use crate::schedule::flow_control::Ceiling;

/// The unit in which a soft ceiling opens and closes: llm-d-router's cycle.
const TICK: Nanos = 1_000_000;

/// Result of a walk over the bands, from the highest down.
enum Next {
    /// The band at this place.
    From(usize),
    /// The band at this place is at its ceiling.
    Blocked(usize),
    /// No band has requests.
    Nobody,
}

impl Queue {
    /// Lets go as many as the pool has room for. When a band with requests is blocked, and
    /// evictions are on, running requests of lower priority may have to end. Those for whom a
    /// closed queue has no room are refused, and who comes to one that drains and finds none.
    pub fn dispatch(&mut self, now: Nanos, capacity: &Capacity, actions: &mut Vec<Action>) {
        if !self.newcomers.is_empty() {
            // Nothing that runs ends for them. Once they are refused, they are in nobody's way.
            self.let_go(now, capacity, false, actions);
            self.refuse_newcomers(now, actions);
        }
        // Nobody waits in a closed queue for what would end.
        self.let_go(now, capacity, !self.is_closed, actions);
        if self.is_closed && self.waiting.requests > 0 {
            self.refuse_waiting(now, Outcome::RejectedOther, actions);
        }
    }

    /// Refuses those that came to a queue that drains and would wait for more than a moment.
    fn refuse_newcomers(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let requests = &mut self.requests;
        self.newcomers
            .retain(|ticket| requests.get_mut(*ticket).is_some_and(|held| held.stage == Stage::Waiting));
        // Endpoints have just come, and all that wait go soon or not at all.
        if self.recovery.is_settling(now) {
            return;
        }
        // A soft ceiling opens for one request within a moment, for another one later.
        let stay = u64::from(self.soft_opens != NEVER);
        while self.waiting.requests > stay
            && let Some(last) = self.newcomers.pop()
        {
            self.refuse_at(now, last.slot, Outcome::RejectedOther, actions);
        }
    }

    fn let_go(&mut self, now: Nanos, capacity: &Capacity, may_evict: bool, actions: &mut Vec<Action>) {
        self.soft_opens = NEVER;
        if self.waiting.requests == 0 || !self.recovery.is_open(now) {
            return;
        }
        loop {
            let saturation = capacity.saturation(self.granted);
            match self.next_band(now, saturation) {
                Next::From(rank) => {
                    if !self.grant(now, rank, actions) {
                        break;
                    }
                }
                Next::Blocked(rank) => {
                    if may_evict {
                        self.evict(now, rank, saturation, actions);
                    }
                    break;
                }
                Next::Nobody => break,
            }
        }
    }

    /// The band that goes next, or is in the way.
    fn next_band(&mut self, now: Nanos, saturation: f64) -> Next {
        let tick = now / TICK;
        for rank in 0..self.bands.len() {
            let Some(position) = self.bands.position(rank) else { break };
            let ceiling = self.usage_limit.ceiling(position, saturation);
            let is_open = match ceiling {
                Ceiling::Below(ceiling) => saturation + EPSILON < ceiling,
                Ceiling::OneIn(period) => tick.is_multiple_of(period) && self.soft_tick != tick + 1,
            };
            if !is_open {
                if let Ceiling::OneIn(period) = ceiling {
                    self.soft_opens = (tick / period + 1).saturating_mul(period).saturating_mul(TICK);
                }
                return Next::Blocked(rank);
            }
            if self.bands.at(rank).is_some_and(|band| band.waiting.requests > 0) {
                if let Ceiling::OneIn(_) = ceiling {
                    self.soft_tick = tick + 1;
                }
                return Next::From(rank);
            }
        }
        Next::Nobody
    }

    /// Lets the next request of a band go; false: there was none.
    fn grant(&mut self, now: Nanos, rank: usize, actions: &mut Vec<Action>) -> bool {
        let Some(band) = self.bands.at(rank) else { return false };
        let Some((ticket, held)) = band.pop().and_then(|slot| self.requests.at(slot)) else { return false };
        held.stage = Stage::Granted;
        self.expiry.remove(ticket.slot, held);
        band.left(held.flow.index, held.bytes, now);
        let count = Count::one(held.bytes);
        self.waiting -= count;
        self.granted += count;
        self.in_flight += 1;
        let spread = self.recovery.waited_for_endpoints(held.since);
        actions.push(Action::Dispatch { ticket, spread });
        true
    }

    /// Chooses running requests to end, for the highest band from `rank` on that is blocked
    /// below a ceiling of its own and has requests.
    fn evict(&mut self, now: Nanos, rank: usize, saturation: f64, actions: &mut Vec<Action>) {
        let Some(evictions) = &mut self.evictions else { return };
        let blocked = (rank..self.bands.len()).find_map(|rank| {
            let position = self.bands.position(rank)?;
            let Ceiling::Below(ceiling) = self.usage_limit.ceiling(position, saturation) else { return None };
            let has_requests = self.bands.at(rank)?.waiting.requests > 0;
            (has_requests && ceiling > 0.0).then_some((position.priority, ceiling))
        });
        let Some((priority, ceiling)) = blocked else { return };
        let demand = Demand { priority, ceiling, saturation, in_flight: self.in_flight };
        let victims = evictions.decide(now, &demand).into_iter();
        actions.extend(victims.map(|(ticket, priority)| Action::Evict { ticket, priority }));
    }
}
