//! The cost of a choice, a function of numbers: the delay of the request itself and the
//! delay that it puts on others.
//!
//! An endpoint computes prompts one after the other and decodes all other requests beside
//! them. With `u` tokens to compute for this request and `q` before it, `n` requests there
//! with `k` tokens in the cache, `x` tokens of its own in the cache, `o` tokens of its response
//! expected, and the times that [`Speed`] has, a request costs
//!
//! ```text
//! first token   w·t             t = c + d·n + (q + u)·τ + wait for a slot
//! its response  o·(a + b·(n + 1) + e·(k + x))
//! others        o·(b + e·x)·n                 they decode beside its response
//!               u·σ·n/2                       their steps wait for its prompt
//!               u·τ·λ·(v + u·τ)/(1 − ρ)       they come behind its prompt
//! ```
//!
//! - The last line is what a job of length `u·τ` adds to the waiting of others in a queue with
//!   arrivals at random, first come first served: those that come in the busy period that
//!   begins with `v + u·τ` of work, which lasts `1/(1 − ρ)` times as long (Kleinrock 1975, the
//!   busy period of M/G/1), wait that much longer. They go where they wait the least, so `v` is
//!   the wait there, and the price of uncached tokens is the same everywhere. It rises with
//!   utilization.
//! - Where one endpoint computes the prompt and another one decodes, each has its own lines:
//!   [`Speed::prefill_cost`] and [`Speed::decode_cost`].
//! - `w` weighs a second before the first token against a second of the response:
//!   `2·√(mean response / mean first token)`. The root is the geometric mean of 1, which counts all
//!   seconds alike, and of the ratio, which counts relative delays alike.
//! - The factors 2 in `w` and 1/2 of the steps that wait are not derived: of 1, 1.5, 2 and 3, and of
//!   1, 1/2 and 1/3, they did best for first tokens without slower responses, in `usher replay --suite`
//!   on one of its two engine models. So did a third: of a prompt that should be computed in part, half of
//!   that counts.
//! - `v` is the time for the tokens before a prompt and for a slot, at the endpoint where that is
//!   the least.

/// Highest utilization that counts: beyond it no estimate is good.
const MOST_BUSY: f64 = 0.9;

/// Share that counts of the time for which the steps of others wait for a prompt.
const STALL: f64 = 0.5;

/// Times of an endpoint, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// To a first token when nothing is computed and nothing runs: `c`.
    pub first: f64,
    /// More of that per request there: `d`.
    pub first_per_request: f64,
    /// Per prompt token: `τ`.
    pub per_token: f64,
    /// Duration of a step that decodes: `a`.
    pub step: f64,
    /// More of that per request in it: `b`.
    pub step_per_request: f64,
    /// More of that per token in the cache of those requests: `e`.
    pub step_per_cached: f64,
    /// More of that per prompt token computed in it: `σ`.
    pub step_per_computed: f64,
    /// From one token of a response to the next, with all that comes between.
    pub per_output: PerOutput,
}

/// Time per output token, as a decision foresees it, in seconds. Steps whose conditions are
/// known take what [`Speed`] says; prompts that come while a response is decoded, and how the
/// batch changes, are means of what was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerOutput {
    /// Without any request there.
    pub base: f64,
    /// More of it per request there.
    pub per_request: f64,
    /// More of it per token in the cache of those requests.
    pub per_cached: f64,
}

impl PerOutput {
    /// All of it so many times as long.
    #[must_use]
    #[inline]
    pub fn times(self, factor: f64) -> Self {
        let Self { base, per_request, per_cached } = self;
        Self { base: base * factor, per_request: per_request * factor, per_cached: per_cached * factor }
    }
}

/// An endpoint as a decision sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct State {
    /// Seconds to compute the prompt tokens before those of a new request: `q·τ`.
    pub queued: f64,
    /// Requests there, from their booking on.
    pub requests: f64,
    /// Tokens in the cache of requests under way.
    pub cached: f64,
    /// Seconds until there is a slot, where they are short.
    pub slot_wait: f64,
    /// Requests of these whose prompt is yet to be computed here.
    pub prompts: f64,
}

/// Token counts of a request at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenCounts {
    /// Prompt tokens that the endpoint has to compute.
    pub uncached: f64,
    /// Tokens of the prompt.
    pub prompt: f64,
    /// Tokens of the response that are expected.
    pub output: f64,
}

/// The pool as a decision sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pool {
    /// Requests per second and endpoint: `λ`.
    pub arrivals: f64,
    /// Share of the time in which endpoints compute prompts: `ρ`.
    pub busy: f64,
    /// Weight of a second before the first token, of a second of a response being 1: `w`.
    pub urgency: f64,
    /// Requests that a job of a second adds its length to, for each second of work that is there
    /// before it: `λ/(1 − ρ)`.
    behind: f64,
}

impl Pool {
    /// A pool to which so many requests come per second and endpoint, `λ`, whose endpoints compute
    /// prompts for a share `busy` of the time, and where a second before the first token weighs
    /// `urgency` seconds of a response.
    pub fn new(arrivals: f64, busy: f64, urgency: f64) -> Self {
        Self { arrivals, busy, urgency, behind: arrivals / (1.0 - busy.clamp(0.0, MOST_BUSY)) }
    }
}

impl Default for Pool {
    /// An idle one.
    fn default() -> Self {
        Self::new(0.0, 0.0, 1.0)
    }
}

/// Parts of the cost of a choice, in seconds of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Until the first token, weighted.
    pub first: f64,
    /// From the first token to the last.
    pub response: f64,
    /// Delay of others, all of them together, but for the next part.
    pub others: f64,
    /// Seconds that a prompt waits there before it is computed.
    pub wait: f64,
    /// Delay of those who come behind its prompt, for each second that prompts wait where they
    /// wait the least.
    pub per_wait: f64,
}

impl Cost {
    /// Sum of the parts where some endpoint has no queue.
    #[inline]
    pub fn total(&self) -> f64 {
        self.first + self.response + self.others
    }

    /// Sum of the parts where prompts wait so many seconds at least.
    #[inline]
    pub fn behind(&self, wait: f64) -> f64 {
        self.total() + self.per_wait * wait
    }
}

impl State {
    /// Requests and tokens in the cache with those of a request that goes there.
    pub(super) fn beside(&self, counts: &TokenCounts) -> (f64, f64) {
        (self.requests + 1.0, self.cached + counts.prompt + counts.output / 2.0)
    }
}

impl Speed {
    /// Seconds that a prompt waits for those before it, and for a slot.
    #[inline]
    pub fn wait(&self, state: &State) -> f64 {
        state.queued + state.slot_wait
    }

    /// Seconds to the first token.
    #[inline]
    pub fn first_token(&self, state: &State, uncached: f64) -> f64 {
        self.first + self.first_per_request * state.requests + uncached * self.per_token + self.wait(state)
    }

    /// Seconds of a step that decodes for so many requests with so many tokens cached.
    #[inline]
    pub fn step(&self, requests: f64, cached: f64) -> f64 {
        self.step + self.step_per_request * requests + self.step_per_cached * cached
    }

    /// Mean seconds from one token of the request's response to the next.
    pub fn per_output_token(&self, state: &State, counts: &TokenCounts) -> f64 {
        let PerOutput { base, per_request, per_cached } = self.per_output;
        let (requests, cached) = state.beside(counts);
        base + per_request * requests + per_cached * cached
    }

    /// The cost of a request there; see the formulas above.
    pub fn cost(&self, state: &State, counts: &TokenCounts, pool: &Pool) -> Cost {
        let first = self.first_token(state, counts.uncached);
        let (response, beside) = self.decoding(state, counts);
        let stalled = counts.uncached * self.step_per_computed * state.requests * STALL;
        let prompt = counts.uncached * self.per_token;
        let per_wait = prompt * pool.behind;
        let others = beside + stalled + per_wait * prompt;
        Cost { first: pool.urgency * first, response, others, wait: self.wait(state), per_wait }
    }

    /// The part of an endpoint that computes the prompt, where another one may decode. Only
    /// streams that it decodes itself wait for the prompt. `own`: what comes there.
    pub fn prefill_cost(&self, state: &State, counts: &TokenCounts, own: &Pool) -> Cost {
        let first = self.first_token(state, counts.uncached);
        let decoding = (state.requests - state.prompts).max(0.0);
        let stalled = counts.uncached * self.step_per_computed * decoding * self.stretch(own);
        let prompt = counts.uncached * self.per_token;
        let per_wait = prompt * own.behind;
        let others = stalled + per_wait * prompt;
        Cost { first: own.urgency * first, response: 0.0, others, wait: self.wait(state), per_wait }
    }

    /// The part of an endpoint that decodes, where another one may compute the prompt.
    pub fn decode_cost(&self, state: &State, counts: &TokenCounts, own: &Pool) -> Cost {
        let ((response, others), stretch) = (self.decoding(state, counts), self.stretch(own));
        let first = own.urgency * state.slot_wait;
        Cost {
            first,
            response: response * stretch,
            others: others * stretch,
            wait: state.slot_wait,
            per_wait: 0.0,
        }
    }

    /// Times that decoding takes longer for the prompts that come meanwhile. In a second there
    /// are `r` tokens to compute, which take `σ·r` of it; and so in every second more.
    fn stretch(&self, own: &Pool) -> f64 {
        let share = own.busy * self.step_per_computed / self.per_token;
        1.0 / (1.0 - share.clamp(0.0, MOST_BUSY))
    }

    /// Seconds of its response, and what it adds to the responses beside it.
    fn decoding(&self, state: &State, counts: &TokenCounts) -> (f64, f64) {
        let own = counts.prompt + counts.output / 2.0;
        let response = counts.output * self.step(state.requests + 1.0, state.cached + own);
        let beside = counts.output * (self.step_per_request + self.step_per_cached * own) * state.requests;
        (response, beside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Speed = Speed {
        first: 0.01,
        first_per_request: 0.001,
        per_token: 1e-4,
        step: 0.02,
        step_per_request: 1e-4,
        step_per_cached: 1e-7,
        step_per_computed: 5e-5,
        per_output: PerOutput { base: 0.02, per_request: 1e-3, per_cached: 1e-6 },
    };

    #[test]
    fn cost_terms_match_their_formulas() {
        let state = State { queued: 0.1, requests: 10.0, cached: 20_000.0, slot_wait: 0.5, prompts: 7.0 };
        let counts = TokenCounts { uncached: 500.0, prompt: 2000.0, output: 200.0 };
        let pool = Pool::new(2.0, 0.5, 3.0);
        let cost = SPEED.cost(&state, &counts, &pool);
        let first = 0.01 + 0.01 + 0.15 + 0.5;
        assert!((cost.first - 3.0 * first).abs() < 1e-12);
        assert!((cost.response - 200.0 * (0.02 + 0.0011 + 0.00221)).abs() < 1e-9, "{cost:?}");
        let beside = 200.0 * (1e-4 + 2.1e-4) * 10.0;
        let stalled = 500.0 * 5e-5 * 10.0 / 2.0;
        let behind = |wait: f64| 0.05 * 2.0 * (wait + 0.05) / 0.5;
        assert!((cost.others - beside - stalled - behind(0.0)).abs() < 1e-9, "{cost:?}");
        let total = cost.first + cost.response + beside + stalled + behind(0.3);
        assert!((cost.behind(0.3) - total).abs() < 1e-9);
        assert!((cost.wait - 0.6).abs() < 1e-12);
        let prefill = SPEED.prefill_cost(&state, &counts, &pool);
        assert_eq!((prefill.first, prefill.response), (cost.first, 0.0));
        // Prompts take a quarter of the time of those who decode. Three of them do.
        let stretch = 1.0 / (1.0 - 0.25);
        assert!((prefill.others - 500.0 * 5e-5 * 3.0 * stretch - behind(0.0)).abs() < 1e-9, "{prefill:?}");
        assert!((prefill.behind(0.3) - prefill.total() - (behind(0.3) - behind(0.0))).abs() < 1e-9);
        let decode = SPEED.decode_cost(&state, &counts, &pool);
        assert_eq!((decode.first, decode.response), (3.0 * 0.5, cost.response * stretch));
        assert!((decode.others - beside * stretch).abs() < 1e-9, "{decode:?}");
    }

    #[test]
    fn token_time_grows_with_requests_and_cached_tokens() {
        let state = State { requests: 9.0, cached: 20_000.0, ..State::default() };
        let counts = TokenCounts { uncached: 500.0, prompt: 2000.0, output: 200.0 };
        let expected = 0.02 + 1e-3 * 10.0 + 1e-6 * 22_100.0;
        assert!((SPEED.per_output_token(&state, &counts) - expected).abs() < 1e-12);
        let twice = Speed { per_output: SPEED.per_output.times(2.0), ..SPEED };
        assert!((twice.per_output_token(&state, &counts) - 2.0 * expected).abs() < 1e-12);
    }

    #[test]
    fn a_cached_prefix_is_worth_more_where_requests_run() {
        let price = |requests: f64, busy: f64| {
            let state = State { requests, ..State::default() };
            let pool = Pool::new(3.0, busy, 1.0);
            let cost = |uncached| {
                SPEED
                    .cost(&state, &TokenCounts { uncached, prompt: 2000.0, output: 100.0 }, &pool)
                    .behind(0.02)
            };
            cost(2000.0) - cost(16.0)
        };
        assert!(price(20.0, 0.0) > 3.0 * price(0.0, 0.0));
        assert!(price(0.0, 0.85) > 1.5 * price(0.0, 0.0));
        assert!(price(0.0, 1.0).is_finite() && price(0.0, 7.0).is_finite());
    }

    #[test]
    fn long_responses_spread_where_prompts_are_short() {
        let at = |requests| State { requests, ..State::default() };
        let counts = |uncached| TokenCounts { uncached, prompt: 2000.0, output: 1000.0 };
        let pool = Pool::default();
        let holder = SPEED.cost(&at(8.0), &counts(16.0), &pool).total();
        let idle = SPEED.cost(&at(0.0), &counts(2000.0), &pool).total();
        assert!(idle < holder, "{idle} {holder}");
    }
}
