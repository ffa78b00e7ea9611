//! Times that were predicted for one request when it was decided, compared with those that
//! it took.

use std::time::Duration;

use super::accuracy::{Accuracy, COVERED};
use super::backlog::Backlog;
use super::cost::{Speed, State, TokenCounts};
use super::residuals::Residuals;

/// Predictions for one request at one endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Predicted {
    /// To the first token.
    first: Time,
    /// Mean from one token to the next.
    step: Time,
    /// Requests there, and their tokens in the cache, with its own.
    beside: (f64, f64),
}

/// A time in seconds, and what it should exceed once in ten times, by what predictions at such
/// a load erred before.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time {
    /// Load of the endpoint, 0..=1; see [`Backlog::load`].
    load: f64,
    expected: f64,
    bound: f64,
}

/// Accuracy of both times, over all endpoints.
#[derive(Debug, Default)]
pub(super) struct Accuracies {
    pub(super) first: Accuracy,
    pub(super) step: Accuracy,
}

impl Predicted {
    /// Predictions for a request that meets this state.
    pub(super) fn new(backlog: &Backlog, state: &State, speed: &Speed, counts: &TokenCounts) -> Self {
        let load = backlog.load(state.requests);
        let time = |expected: f64, residuals: &Residuals| Time {
            load,
            expected,
            bound: expected * residuals.quantile(load, COVERED),
        };
        let group = backlog.group();
        Self {
            first: time(speed.first_token(state, counts.uncached), group.first_residuals()),
            step: time(speed.per_output_token(state, counts), group.step_residuals()),
            beside: state.beside(counts),
        }
    }

    /// Prediction for a request that another endpoint, with `prefill`'s prediction, prefills.
    pub(super) fn after(self, prefill: &Self) -> Self {
        Self { first: prefill.first, ..self }
    }

    /// The first token took so many seconds.
    pub(super) fn first_token(&self, backlog: &Backlog, all: &Accuracies, seconds: f64) {
        self.first.compare(seconds, backlog.group().first_residuals(), &all.first);
    }

    /// Tokens came every so many seconds, on average.
    pub(super) fn steps(&self, backlog: &Backlog, all: &Accuracies, seconds: f64, now: Duration) {
        self.step.compare(seconds, backlog.group().step_residuals(), &all.step);
        let (requests, cached) = self.beside;
        backlog.responded(requests, cached, seconds, now);
    }
}

impl Time {
    fn compare(&self, seconds: f64, residuals: &Residuals, accuracy: &Accuracy) {
        accuracy.record(self.load, self.expected, self.bound, seconds);
        residuals.record(self.load, self.expected, seconds);
    }
}
