//! Cost of a disaggregated request: one endpoint prefills, another decodes.
//!
//! Each endpoint contributes a part, and the KV transfer between them adds to TTFT. A pair's cost
//! is the sum, so parts are computed once per endpoint, not per pair.

use usher_core::endpoints::Endpoint;

use super::cost::{Cost, Pool, Speed, State, TokenCounts};
use super::table::{Reported, Table};

/// Cost at the prefill endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillPart {
    /// Part of the cost.
    pub cost: Cost,
    /// Seconds until the prompt is computed.
    pub computed: f64,
}

/// Cost at the decode endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePart {
    /// Part of the cost, if another endpoint prefills.
    pub cost: Cost,
    /// Cost of the whole request there.
    pub whole: Cost,
    /// Learned duration of KV transfers to it, as a multiple of the configured one.
    pub factor: f64,
    /// Seconds for which its link is busy with other transfers.
    pub busy: f64,
}

impl Table<'_> {
    /// Rate of prompts at an endpoint.
    pub fn own(&self, endpoint: &Endpoint, urgency: f64) -> Pool {
        let Some(backlog) = self.known(endpoint) else { return Pool::new(0.0, 0.0, urgency) };
        let (arrivals, tokens) = backlog.arrivals().rates(self.now());
        Pool::new(arrivals, tokens * backlog.speed().per_token, urgency)
    }

    /// Cost of prefill there for another endpoint. `urgency`: weight of a second
    /// before the first token.
    pub fn prefill_part(
        &self,
        endpoint: &Endpoint,
        counts: &TokenCounts,
        urgency: f64,
        at: &Reported,
    ) -> PrefillPart {
        self.prefill_part_of(endpoint, &self.look(endpoint, counts.prompt, at), counts, urgency)
    }

    #[inline]
    pub(super) fn prefill_part_of(
        &self,
        endpoint: &Endpoint,
        (state, speed): &(State, Speed),
        counts: &TokenCounts,
        urgency: f64,
    ) -> PrefillPart {
        let own = self.own(endpoint, urgency);
        let computed = speed.first_token(state, counts.uncached);
        PrefillPart { cost: speed.prefill_cost(state, counts, &own), computed }
    }

    /// Cost of decoding there after another endpoint's prefill, and of the whole request there.
    pub fn decode_part(
        &self,
        endpoint: &Endpoint,
        counts: &TokenCounts,
        urgency: f64,
        at: &Reported,
    ) -> DecodePart {
        self.decode_part_of(endpoint, &self.look(endpoint, counts.prompt, at), counts, urgency)
    }

    #[inline]
    pub(super) fn decode_part_of(
        &self,
        endpoint: &Endpoint,
        (state, speed): &(State, Speed),
        counts: &TokenCounts,
        urgency: f64,
    ) -> DecodePart {
        let own = self.own(endpoint, urgency);
        let (factor, busy) = self
            .known(endpoint)
            .map_or((1.0, 0.0), |backlog| (backlog.link().factor(), backlog.link().busy(self.now())));
        let (prompt, cost) =
            (speed.prefill_cost(state, counts, &own), speed.decode_cost(state, counts, &own));
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
