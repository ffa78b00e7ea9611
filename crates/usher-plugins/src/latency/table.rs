//! The model as one decision reads it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use usher_core::endpoints::{Endpoint, Load};
use usher_plugin::LatencyEstimate;

use super::backlog::Backlog;
use super::cost::{Cost, Pool, Speed, State, TokenCounts};
use super::group::Group;
use super::model::{Entry, Model};
use super::residuals::Residuals;
use super::time::nanos;

/// KV cache usage from which on it counts as full.
const FULL: f64 = 0.95;

/// The model as one decision reads it.
#[derive(Debug)]
pub struct Table<'a> {
    entries: Guard<Arc<Vec<Option<Entry>>>>,
    pub(super) model: &'a Model,
    now: Duration,
    now_nanos: u64,
    mean_uncached: f64,
    mean_prompt: f64,
}

/// An endpoint's own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reported {
    /// Requests waiting there.
    pub waiting: f64,
    /// Requests running there.
    pub running: f64,
    /// Share of its KV cache in use, 0..=1; `None`: it doesn't say.
    pub kv_usage: Option<f64>,
}

impl Model {
    /// The model as it is now.
    pub fn read(&self) -> Table<'_> {
        let now = self.clock.elapsed();
        Table {
            entries: self.entries.load(),
            model: self,
            now,
            now_nanos: nanos(now),
            mean_uncached: self.traffic.mean_uncached.get(),
            mean_prompt: self.traffic.mean_prompt.get(),
        }
    }
}

impl Table<'_> {
    /// Seconds until the first token of a request of which the endpoint has to compute so
    /// many tokens.
    pub fn ttft(&self, endpoint: &Endpoint, uncached: u64, reported: &Reported) -> f64 {
        let (state, speed) = self.look(endpoint, uncached as f64, reported);
        speed.first_token(&state, uncached as f64)
    }

    /// Seconds until the endpoint has a slot, and room in its KV cache, for another request with
    /// a prompt of so many tokens; 0 while it has.
    pub fn slot_wait(&self, endpoint: &Endpoint, prompt: u64, reported: &Reported) -> f64 {
        self.look(endpoint, prompt as f64, reported).0.slot_wait
    }

    /// The cost of a request at an endpoint.
    pub fn cost(&self, endpoint: &Endpoint, counts: &TokenCounts, pool: &Pool, reported: &Reported) -> Cost {
        let (state, speed) = self.look(endpoint, counts.prompt, reported);
        speed.cost(&state, counts, pool)
    }

    /// Mean seconds from one token of the response to the next at an endpoint.
    pub fn tpot(&self, endpoint: &Endpoint, counts: &TokenCounts, reported: &Reported) -> f64 {
        let (state, speed) = self.look(endpoint, counts.prompt, reported);
        speed.per_output_token(&state, counts)
    }

    /// Times that are expected of a request at an endpoint, with their parts.
    pub fn estimate(
        &self,
        endpoint: &Endpoint,
        counts: &TokenCounts,
        reported: &Reported,
    ) -> LatencyEstimate {
        let (state, speed) = self.look(endpoint, counts.prompt, reported);
        let first_token = speed.first_token(&state, counts.uncached);
        LatencyEstimate {
            first_token,
            slot_wait: state.slot_wait,
            queued: state.queued,
            prefill: first_token - state.slot_wait - state.queued,
            per_token: speed.per_output_token(&state, counts),
            uncached_tokens: counts.uncached,
        }
    }

    /// Share of its capacity that an endpoint's requests take, 0..=1; the load of
    /// [`Residuals`].
    pub fn load(&self, endpoint: &Endpoint, reported: &Reported) -> f64 {
        self.load_of(endpoint, &self.look(endpoint, 0.0, reported).0)
    }

    pub(super) fn load_of(&self, endpoint: &Endpoint, state: &State) -> f64 {
        self.known(endpoint).map_or(0.0, |backlog| backlog.load(state.requests))
    }

    /// Measured over predicted times per output token, of endpoints as fast as this one.
    pub fn tpot_residuals(&self, endpoint: &Endpoint) -> &Residuals {
        self.group(endpoint).step_residuals()
    }

    /// The endpoint's group; the first of all while nothing was sent there.
    pub(super) fn group(&self, endpoint: &Endpoint) -> &Group {
        self.known(endpoint).map_or(&**self.model.groups.first(), Backlog::group)
    }

    /// Weight of a second before a first token, of a second of a response being 1.
    #[inline]
    pub fn urgency(&self) -> f64 {
        self.model.urgency()
    }

    /// A pool of so many endpoints.
    pub fn pool(&self, endpoints: usize) -> Pool {
        let (requests, seconds) = self.model.traffic.arrivals.rates(self.now);
        let endpoints = endpoints.max(1) as f64;
        Pool::new(requests / endpoints, seconds / endpoints, self.urgency())
    }

    /// An endpoint's state, for a request with a prompt of so many tokens, and its speed.
    // Both are fifteen numbers: written to memory and read again they cost a tenth of a decision.
    #[inline(always)]
    pub(super) fn look(&self, endpoint: &Endpoint, prompt: f64, reported: &Reported) -> (State, Speed) {
        let Reported { waiting, running, kv_usage } = *reported;
        let load = endpoint.load();
        let made;
        let backlog = match self.known(endpoint) {
            Some(backlog) => backlog,
            None => {
                // The first look at it; from now on it has the speed of its group.
                made = self.model.backlog(endpoint);
                &made
            }
        };
        let (speed, hold) = (backlog.speed(), backlog.hold());
        let prompts = backlog.queued() as f64;
        // An endpoint that only computes prompts for others' responses has none of its own in
        // flight.
        let own = (load.in_flight() as f64).max(prompts);
        let unseen = load.unseen() as f64;
        // Other replicas may have said more than its last page shows.
        let requests = (waiting + running + unseen).max(own + load.others() as f64);
        let seen = (own - unseen).max(0.0);
        // Of ours that its numbers show, those without a first token may be among the waiting.
        let ours = (prompts - unseen).max(0.0);
        let of_others = (waiting + running - seen).min(waiting - ours).max(0.0);
        let coming = backlog.link().tokens().max(self.unseen_tokens(load));
        let cached = self.cached(load, kv_usage, requests, coming);
        let full = kv_usage.is_some_and(|usage| usage >= FULL);
        let capacity = load.kv_capacity() * FULL;
        let short = if kv_usage.is_some() && capacity > 0.0 && cached > 0.0 {
            let needed = ((requests - running) * self.mean_prompt - coming).max(0.0) + prompt;
            // Tokens leave at the rate at which requests end, as long as it stays full.
            let over = cached + needed - capacity;
            // Nearly always there is room: a division costs as much as all the rest of it.
            let pages = if over > 0.0 { over / cached } else { 0.0 };
            ahead(requests, running, backlog.slots(), false).max(pages)
        } else {
            ahead(requests, running, backlog.slots(), full)
        };
        // Where some have waited for long already, all may. That pages miss requests is no reason
        // alone: some engines change their gauges once a second, and what is in flight counts.
        let slot_wait = (short + load.overdue() as f64) * hold;
        let queued = backlog.seconds(speed.per_token, self.now_nanos)
            + of_others * self.mean_uncached * speed.per_token;
        // What pages miss takes a first token's time each at least.
        let queued = queued + load.unreported() as f64 * speed.first;
        (State { queued, requests, cached, slot_wait, prompts }, speed)
    }

    /// Tokens in the cache of requests under way, with those that aren't there yet.
    fn cached(&self, load: &Load, kv_usage: Option<f64>, requests: f64, coming: f64) -> f64 {
        let capacity = load.kv_capacity();
        match kv_usage.filter(|_| capacity > 0.0) {
            Some(usage) => usage * capacity + coming,
            None => requests * self.mean_prompt,
        }
    }

    /// Tokens of the prompts that an endpoint's numbers don't show yet.
    #[inline]
    pub(super) fn unseen_tokens(&self, load: &Load) -> f64 {
        load.unseen() as f64 * self.mean_prompt
    }

    /// Learned speed of an endpoint; `None` where nothing was learned.
    pub fn learned(&self, endpoint: &Endpoint) -> Option<Speed> {
        let entry = self.entries.get(endpoint.slot().number() as usize)?.as_ref()?;
        (entry.backlog.group().samples() > 0).then(|| entry.backlog.speed())
    }

    #[inline]
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    #[inline]
    pub(super) fn known(&self, endpoint: &Endpoint) -> Option<&Backlog> {
        let entry = self.entries.get(endpoint.slot().number() as usize)?.as_ref()?;
        if entry.backlog.expires() <= self.now_nanos {
            entry.backlog.expire(self.now);
        }
        Some(&entry.backlog)
    }
}

/// Requests that have to end before there is a slot, or room in a full KV cache, by those that
/// run: a share of them.
fn ahead(requests: f64, running: f64, slots: f64, full: bool) -> f64 {
    let ahead = if requests >= slots {
        requests - slots + 1.0
    } else if full {
        (requests - running).max(0.0) + 1.0
    } else {
        return 0.0;
    };
    ahead / running.max(1.0)
}
