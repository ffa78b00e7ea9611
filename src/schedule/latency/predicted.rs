//! Times that were predicted for one request when it was decided, compared with those that
//! it took.

use super::backlog::Backlog;
use super::cost::{Ask, Pool, Speed, State};

/// Predictions for one request at one endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Predicted {
    /// Load of the endpoint, 0..=1; see [`Backlog::load`].
    load: f64,
    /// Seconds to the first token.
    first: f64,
    /// Mean seconds from one token to the next.
    step: f64,
}

impl Predicted {
    /// Predictions for a request that meets this state.
    pub(super) fn new(backlog: &Backlog, state: &State, speed: &Speed, ask: &Ask, pool: &Pool) -> Self {
        Self {
            load: backlog.load(state.requests),
            first: speed.first_token(state, ask.uncached),
            step: speed.per_output_token(state, ask, pool),
        }
    }

    /// The first token took so many seconds.
    pub(super) fn first_token(&self, backlog: &Backlog, seconds: f64) {
        backlog.group().first_residuals().record(self.load, self.first, seconds);
    }

    /// Tokens came every so many seconds, on average.
    pub(super) fn steps(&self, backlog: &Backlog, seconds: f64) {
        backlog.group().step_residuals().record(self.load, self.step, seconds);
    }
}
