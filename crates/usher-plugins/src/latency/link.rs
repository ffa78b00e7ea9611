//! The link over which KV caches come to an endpoint that decodes: what is on its way, and
//! how fast it is.
//!
//! Transfers to one endpoint share its link, so one that begins now ends after all that are
//! on their way. When others begin isn't seen; they count as if each began when it was booked,
//! which makes the same queue, only earlier. How fast the link is follows from first tokens: [`busy_periods`](super::busy_periods).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use usher_core::endpoints::Nearness;
use usher_core::random::mix;
use usher_plugin::{Import, MalformedRecord};

use super::busy_periods::{BusyPeriods, Observed};
use super::evidence::Known;
use super::fit::Fit;
use super::link_queue::LinkQueue;
use super::time::{millis, nanos};
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
    moving: Mutex<Moving>,
    // Taken when a busy period has ended.
    fit: Mutex<Known<Fit<2>>>,
}

/// Transfers that haven't ended.
#[derive(Debug, Default)]
struct Moving {
    queue: LinkQueue,
    periods: BusyPeriods,
}

/// Transfer whose arrival will be seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Seconds that it takes alone, as configured.
    pub(super) alone: f64,
    /// Seconds until its prompt should be computed; `None`: nothing is learned beside it.
    pub(super) computed: Option<f64>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(0),
            tokens: AtomicI64::new(0),
            factor: AtomicU64::new(1f64.to_bits()),
            moving: Mutex::default(),
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

    /// Books a transfer of so many tokens that should take so long alone. Returns its number. `seen`: its arrival will be.
    pub(super) fn book(&self, takes: Duration, tokens: i64, seen: Option<Seen>, now: Duration) -> u64 {
        let mut moving = self.moving();
        // When those leave the link won't be known.
        let has_unseen = moving.queue.has_unseen(now);
        let number = moving.queue.add(takes, seen.is_some(), now);
        match seen {
            // Nothing is moved.
            _ if takes.is_zero() => {}
            Some(Seen { alone, computed }) => {
                let computed = computed.filter(|_| !has_unseen);
                let computed = computed.and_then(|computed| Duration::try_from_secs_f64(computed).ok());
                let begins = computed.map(|computed| now.saturating_add(computed));
                let until = moving.queue.until();
                moving.periods.book(number, begins, alone, until, now);
            }
            None => moving.periods.book_unseen(),
        }
        self.until.store(nanos(moving.queue.until()), Relaxed);
        self.tokens.fetch_add(tokens, Relaxed);
        number
    }

    /// Removes the rest and the tokens of a transfer that has arrived or never will.
    pub(super) fn remove(&self, number: u64, tokens: i64, now: Duration) {
        let mut moving = self.moving();
        moving.periods.leave(number, now);
        moving.queue.remove(number, now);
        self.until.store(nanos(moving.queue.until()), Relaxed);
        self.tokens.fetch_sub(tokens, Relaxed);
    }

    /// A transfer has arrived now.
    pub(super) fn arrive(&self, number: u64, now: Duration) {
        let observed = self.moving().periods.arrive(number, now);
        if let Some(observed) = observed {
            self.observe(&observed, millis(now));
        }
    }

    /// Learns from times of busy periods.
    pub(super) fn observe(&self, &Observed { began, alone, seconds }: &Observed, now_ms: u64) {
        let mut fit = self.fit();
        fit.observed(now_ms).observe(&[began, alone], seconds);
        self.factor.store(fit.coefficients()[1].to_bits(), Relaxed);
    }

    /// Observations of busy periods, and the factor.
    pub(super) fn learned(&self) -> (u64, f64) {
        (self.fit().samples(), self.factor())
    }

    /// Forgets what was learned.
    pub(super) fn forget(&self) {
        self.moving().periods.forget();
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

    fn moving(&self) -> MutexGuard<'_, Moving> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fit(&self) -> MutexGuard<'_, Known<Fit<2>>> {
        self.fit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
