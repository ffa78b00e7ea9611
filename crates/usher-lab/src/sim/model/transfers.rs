//! Prompts on their way from another engine.
//!
//! Transfers have their links to themselves, or share what the engine can take in evenly
//! ([`shared_link`](crate::sim::EngineConfig::shared_link)): processor sharing. That is
//! computed on a clock that goes as fast as each transfer does, as fair queueing has it
//! (Parekh and Gallager 1993): a transfer is there when this clock has gone on by the time that
//! it takes alone.

use std::time::Duration;

use super::job::Job;
use crate::sim::link::Transfer;

/// Bits after the point of the sharing clock's nanoseconds: rounding stays below one of them.
const FRACTION: u32 = 32;

/// A request with its blocks, whose prompt is on its way.
#[derive(Debug)]
pub(super) struct Receiving {
    // `computed` is what was in the prefix cache.
    pub(super) job: Job,
    pub(super) transfer: Transfer,
    // On the sharing clock.
    pub(super) ends: u128,
    // Whether its prompt is there, and waits for the next step.
    pub(super) there: bool,
}

impl Receiving {
    /// The transfer of a prompt begins.
    pub(super) fn new(job: Job, transfer: Transfer, clock: &SharingClock) -> Self {
        let mut receiving = Self { job, transfer, ends: clock.shows, there: false };
        receiving.ends += transfer.time(receiving.tokens()).as_nanos() << FRACTION;
        receiving
    }

    // Tokens that come over the link.
    pub(super) fn tokens(&self) -> u32 {
        self.job.request.prompt_tokens.saturating_sub(self.job.computed)
    }
}

/// Clock of the transfers: nanoseconds times 2^[`FRACTION`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SharingClock {
    shows: u128,
    // Engine's time at which it shows that.
    at: Duration,
}

impl SharingClock {
    // When it shows `then`, while it goes at 1/`sharing` of real time.
    pub(super) fn reaches(&self, then: u128, sharing: usize) -> Duration {
        let left = then.saturating_sub(self.shows).saturating_mul(sharing as u128);
        let nanos = left.div_ceil(1 << FRACTION);
        self.at.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    pub(super) fn go_on(&mut self, until: Duration, sharing: usize) {
        let passed = until.saturating_sub(self.at).as_nanos() << FRACTION;
        self.shows += passed / sharing as u128;
        self.at = self.at.max(until);
    }
}
