//! The link over which KV caches come to an endpoint that decodes: what is on its way, and
//! how fast it is.
//!
//! Transfers to one endpoint share its link, so one that begins now ends after all that are
//! on their way. When others begin isn't seen; they count as if each began when it was booked,
//! which makes the same queue, only earlier. How fast the link is follows from first tokens: a transfer began when its
//! prompt should have been computed, or when the one that arrived before it had left the link. What was expected of
//! others has no part in that: expected too long, it would make the link look slow, and the next ones longer.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use usher_core::endpoints::Nearness;
use usher_core::random::mix;
use usher_plugin::{Import, MalformedRecord};

use super::evidence::Known;
use super::fit::Fit;
use super::link_queue::LinkQueue;
use super::time::nanos;
use crate::record::{RecordReader, RecordWriter};

/// Times that a transfer takes as long as configured, and times that a prompt takes as long
/// as predicted, before anything is learned.
const EXPECTED: [f64; 2] = [1.0, 1.0];

/// Standard deviations of the two at first. The speed of prompts is learned elsewhere, so the
/// link has to explain the most of what isn't predicted.
const DEVIATION: [f64; 2] = [0.1, 1.0];

/// Smallest values of the two.
const LEAST: [f64; 2] = [0.5, 0.01];

/// Seconds per token that a KV cache takes between two endpoints alone on their link, by how
/// near they are, as configured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfers {
    per_token: [f64; Nearness::ALL.len()],
    fingerprint: u64,
}

impl Transfers {
    /// Transfers at these bytes per second, of so many bytes per token.
    pub fn new(bytes_per_second: impl Fn(Nearness) -> f64, bytes_per_token: f64) -> Self {
        let per_token = Nearness::ALL.map(|nearness| bytes_per_token / bytes_per_second(nearness));
        let fingerprint = per_token.iter().fold(0, |hash, seconds| mix(hash ^ seconds.to_bits()));
        Self { per_token, fingerprint: fingerprint.max(1) }
    }

    /// A number that other transfers don't have; not 0.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Seconds per token.
    pub fn per_token(&self, nearness: Nearness) -> f64 {
        self.per_token.get(nearness as usize).copied().unwrap_or_default()
    }
}

/// An endpoint's link.
#[derive(Debug)]
pub(super) struct Link {
    /// Until when, in nanoseconds of the clock, it is busy.
    until: AtomicU64,
    /// Tokens of prompts that others compute and that will be in the endpoint's KV cache.
    tokens: AtomicI64,
    /// Times that a transfer takes as long as configured, as `f64` bits.
    factor: AtomicU64,
    // Taken when a transfer is booked, and when it ends.
    queue: Mutex<LinkQueue>,
    // Taken when a first token comes of a prompt that another endpoint computed.
    fit: Mutex<Known<Fit<2>>>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(0),
            tokens: AtomicI64::new(0),
            factor: AtomicU64::new(1f64.to_bits()),
            queue: Mutex::default(),
            fit: Mutex::new(Known::new(Fit::with_deviation(EXPECTED, LEAST, DEVIATION))),
        }
    }
}

impl Link {
    /// Times that a transfer takes as long as configured.
    pub(super) fn factor(&self) -> f64 {
        f64::from_bits(self.factor.load(Relaxed))
    }

    /// Seconds that the transfers still take which are booked there.
    pub(super) fn busy(&self, now: Duration) -> f64 {
        Duration::from_nanos(self.until.load(Relaxed)).saturating_sub(now).as_secs_f64()
    }

    /// Tokens of prompts that are on their way to the endpoint's KV cache.
    pub(super) fn tokens(&self) -> f64 {
        self.tokens.load(Relaxed).max(0) as f64
    }

    /// Books a transfer of so many tokens that takes so long alone. Returns its number, and `true` if others are on the
    /// link whose arrival won't be seen.
    pub(super) fn book(&self, takes: Duration, tokens: i64, is_seen: bool, now: Duration) -> (u64, bool) {
        let mut queue = self.queue();
        let has_unseen = queue.has_unseen(now);
        let number = queue.add(takes, is_seen, now);
        self.until.store(nanos(queue.until()), Relaxed);
        self.tokens.fetch_add(tokens, Relaxed);
        (number, has_unseen)
    }

    /// Removes the rest and the tokens of a transfer that has arrived or never will.
    pub(super) fn remove(&self, number: u64, tokens: i64, now: Duration) {
        let mut queue = self.queue();
        queue.remove(number, now);
        self.until.store(nanos(queue.until()), Relaxed);
        self.tokens.fetch_sub(tokens, Relaxed);
    }

    /// A transfer has arrived now. Returns when the one before it did.
    pub(super) fn arrive(&self, now: Duration) -> Option<Duration> {
        self.queue().arrive(now)
    }

    /// A first token came after so many seconds, where the transfer should have begun after `began`, and moving it
    /// alone takes `alone` as configured.
    pub(super) fn observe(&self, began: f64, alone: f64, seconds: f64, now_ms: u64) {
        let mut fit = self.fit();
        fit.observed(now_ms).observe(&[began, alone], seconds);
        self.factor.store(fit.coefficients()[1].to_bits(), Relaxed);
    }

    /// Transfers that it learned from, and the factor.
    pub(super) fn learned(&self) -> (u64, f64) {
        (self.fit().samples(), self.factor())
    }

    /// Forgets what was learned.
    pub(super) fn forget(&self) {
        let Self { fit, factor, .. } = Self::default();
        *self.fit() = fit.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.factor.store(factor.into_inner(), Relaxed);
    }

    /// Writes what was learned.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        self.fit().write(out, Fit::write);
    }

    /// Reads what another process learned.
    pub(super) fn read(
        &self,
        record: &mut RecordReader<'_>,
        cx: &Import<'_>,
    ) -> Result<Known<Fit<2>>, MalformedRecord> {
        Known::read(record, cx, |record| self.fit().estimate.read(record))
    }

    /// Takes that over if it is known better. Returns whether it is.
    pub(super) fn replace(&self, theirs: Known<Fit<2>>, now_ms: u64) -> bool {
        let mut fit = self.fit();
        let is_better = theirs.replace(&mut fit, now_ms);
        self.factor.store(fit.coefficients()[1].to_bits(), Relaxed);
        is_better
    }

    fn queue(&self) -> MutexGuard<'_, LinkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fit(&self) -> MutexGuard<'_, Known<Fit<2>>> {
        self.fit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
