//! Endpoints of property tests whose model has learned nothing: numbers that they report, and
//! what these come to, worked out again.

use std::ops::RangeInclusive;
use std::sync::Arc;

use proptest::prelude::*;
use usher::endpoints::{Booking, Load};

use crate::support::NOW;

/// Times that are expected before anything is learned, in seconds: to a first token with
/// nothing to compute, and more per request there; a step, and more per request and per
/// token in the cache.
pub(crate) const FIRST: f64 = 0.03;
pub(crate) const FIRST_PER_REQUEST: f64 = 5e-4;
pub(crate) const STEP: f64 = 0.015;
pub(crate) const STEP_PER_REQUEST: f64 = 1.5e-4;
pub(crate) const STEP_PER_CACHED: f64 = 5e-8;

/// Tokens of a response that are expected at first.
pub(crate) const OUTPUT: f64 = 200.0;

/// Numbers of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// Requests that wait and that run, as it says; how full its KV cache is, in tenths.
    pub(crate) waiting: Option<u8>,
    pub(crate) running: Option<u8>,
    pub(crate) kv_usage: Option<u8>,
    /// Requests of ours there, beside those whose prompts are booked, and whether its
    /// numbers show them.
    pub(crate) in_flight: u8,
    pub(crate) is_seen: bool,
    /// Prompts that are booked there, in tokens.
    pub(crate) backlog: Vec<u64>,
}

/// Endpoints with prompts of so many tokens at least, and KV caches that are so many tenths full
/// at most.
pub(crate) fn numbers(prompts: RangeInclusive<u64>, fullest: u8) -> impl Strategy<Value = Numbers> {
    let few = |most: u8| prop_oneof![2 => Just(Some(0u8)), 4 => (0..=most).prop_map(Some), 1 => Just(None)];
    let backlog = prop_oneof![1 => Just(Vec::new()), 2 => proptest::collection::vec(prompts, 0..3)];
    (few(8), few(19), few(fullest), 0u8..4, any::<bool>(), backlog).prop_map(
        |(waiting, running, kv_usage, in_flight, is_seen, backlog)| Numbers {
            waiting,
            running,
            kv_usage,
            in_flight,
            is_seen,
            backlog,
        },
    )
}

impl Numbers {
    /// Lets an endpoint report them, and books requests of ours there.
    pub(crate) fn report(&self, load: &Arc<Load>) -> Vec<Booking> {
        for (gauge, value) in [(&load.waiting, self.waiting), (&load.running, self.running)] {
            value.into_iter().for_each(|value| gauge.set(f64::from(value), NOW));
        }
        self.kv_usage.into_iter().for_each(|tenths| load.kv_usage.set(f64::from(tenths) / 10.0, NOW));
        let held = (0..self.in_flight).map(|_| load.book()).collect();
        if self.is_seen {
            load.seen(load.sent());
        }
        held
    }

    /// Requests that wait and that run, where the longest queue of all is so long.
    pub(crate) fn queue(&self, longest: u8) -> (f64, f64) {
        let waiting = f64::from(self.waiting.unwrap_or(longest));
        let running = self.running.map_or(f64::from(self.in_flight) - waiting, f64::from);
        (waiting, running.max(0.0))
    }

    /// Requests of ours there.
    fn ours(&self) -> f64 {
        f64::from(self.in_flight).max(self.backlog.len() as f64)
    }

    /// Requests of ours that its numbers don't show.
    pub(crate) fn unseen(&self) -> f64 {
        if self.is_seen { 0.0 } else { f64::from(self.in_flight) }
    }

    /// Requests there.
    pub(crate) fn requests(&self, longest: u8) -> f64 {
        let (waiting, running) = self.queue(longest);
        (waiting + running + self.unseen()).max(self.ours())
    }

    /// Prompt tokens to compute there. Of the first prompt `computed` should be done, of which
    /// half counts. `mean`: tokens of a prompt that others sent.
    pub(crate) fn queued(&self, longest: u8, mean: f64, computed: f64) -> f64 {
        let (waiting, running) = self.queue(longest);
        // Those of ours that the numbers show and that have no first token may wait.
        let pending = (self.backlog.len() as f64 - self.unseen()).max(0.0);
        let others = (waiting + running - (self.ours() - self.unseen())).min(waiting - pending).max(0.0);
        let head = self.backlog.first().map_or(0.0, |head| *head as f64);
        self.backlog.iter().sum::<u64>() as f64 - head.min(computed) / 2.0 + others * mean
    }
}

/// The longest queue of these.
pub(crate) fn longest<'a>(all: impl Iterator<Item = &'a Numbers>) -> u8 {
    all.filter_map(|numbers| numbers.waiting).max().unwrap_or(0)
}
