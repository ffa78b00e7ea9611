//! The cost of a request where one endpoint computes its prompt and another one responds.
//!
//! Either endpoint has its part, and the way between them adds to the first token. A pair's
//! cost is the sum, so that parts are worked out once per endpoint, however many pairs there
//! are.

use usher_core::endpoints::Endpoint;

use super::cost::{Ask, Cost, Pool, Speed, State};
use super::table::{Reported, Table};

/// Part of the endpoint that computes the prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillPart {
    /// Its part of the cost.
    pub cost: Cost,
    /// Seconds until the prompt is computed.
    pub computed: f64,
}

/// Part of the endpoint that decodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePart {
    /// Its part of the cost, if another endpoint computes the prompt.
    pub cost: Cost,
    /// The cost of the whole request there.
    pub whole: Cost,
    /// Times that a KV cache takes as long to it as configured.
    pub factor: f64,
    /// Seconds that its link is busy with others.
    pub busy: f64,
}

impl Table<'_> {
    /// Rate of prompts at an endpoint.
    pub fn own(&self, endpoint: &Endpoint, urgency: f64) -> Pool {
        let Some(backlog) = self.known(endpoint) else { return Pool::new(0.0, 0.0, urgency) };
        let (arrivals, tokens) = backlog.arrivals().rates(self.now());
        Pool::new(arrivals, tokens * backlog.speed().per_token, urgency)
    }

    /// The cost of computing a prompt there for another endpoint. `urgency`: weight of a second
    /// before the first token.
    pub fn prefill_part(&self, endpoint: &Endpoint, ask: &Ask, urgency: f64, at: &Reported) -> PrefillPart {
        self.prefill_part_of(endpoint, &self.look(endpoint, ask.prompt, at), ask, urgency)
    }

    #[inline]
    pub(super) fn prefill_part_of(
        &self,
        endpoint: &Endpoint,
        (state, speed): &(State, Speed),
        ask: &Ask,
        urgency: f64,
    ) -> PrefillPart {
        let own = self.own(endpoint, urgency);
        let computed = speed.first_token(state, ask.uncached);
        PrefillPart { cost: speed.prefill_cost(state, ask, &own), computed }
    }

    /// The cost of decoding there what another endpoint has computed, and of doing both.
    pub fn decode_part(&self, endpoint: &Endpoint, ask: &Ask, urgency: f64, at: &Reported) -> DecodePart {
        self.decode_part_of(endpoint, &self.look(endpoint, ask.prompt, at), ask, urgency)
    }

    #[inline]
    pub(super) fn decode_part_of(
        &self,
        endpoint: &Endpoint,
        (state, speed): &(State, Speed),
        ask: &Ask,
        urgency: f64,
    ) -> DecodePart {
        let own = self.own(endpoint, urgency);
        let (factor, busy) = self
            .known(endpoint)
            .map_or((1.0, 0.0), |backlog| (backlog.link().factor(), backlog.link().busy(self.now())));
        let (prompt, cost) = (speed.prefill_cost(state, ask, &own), speed.decode_cost(state, ask, &own));
        let others = prompt.others + cost.others;
        DecodePart { cost, whole: Cost { others, first: prompt.first, ..cost }, factor, busy }
    }

    /// Share of an endpoint's KV cache that is in use when all is there that was sent to it,
    /// where so much is now: 0..=1 and beyond.
    pub fn kv_usage(&self, endpoint: &Endpoint, now: f64) -> f64 {
        let capacity = endpoint.load().kv_capacity();
        if capacity <= 0.0 {
            return now;
        }
        let coming = self.known(endpoint).map_or(0.0, |backlog| backlog.link().tokens());
        now + coming.max(self.unseen_tokens(endpoint.load())) / capacity
    }
}
