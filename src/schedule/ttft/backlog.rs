//! What one endpoint has yet to compute of the prompts sent there, and what was
//! learned about it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::rate::Rate;

/// A prompt whose first token isn't seen leaves after so many times as long as it should
/// take, as no endpoint is taken to be slower than that …
const PATIENCE: f64 = 10.0;

/// … and not before.
const PATIENCE_AT_LEAST: Duration = Duration::from_secs(10);

/// What remains of the mean time that requests hold a slot after another one.
const KEEP_HOLD: f64 = 0.9;

/// One endpoint's backlog and speed.
#[derive(Debug)]
pub struct Backlog {
    tokens: AtomicI64,
    /// Prompts in the queue.
    queued: AtomicU64,
    /// Tokens of the prompt that is computed now: the one that was sent first.
    head: AtomicU64,
    /// Since when, in nanoseconds of the clock.
    head_since: AtomicU64,
    /// When the next prompt leaves whose first token isn't seen, in nanoseconds of the
    /// clock; at the end of all time while there is none.
    expires: AtomicU64,
    /// Until when, in nanoseconds of the clock, it computes the prompts whose first
    /// token can't be seen, as their answers come in one piece.
    unseen_until: AtomicU64,
    /// Tokens per second, as `f64` bits.
    rate: AtomicU64,
    /// Mean seconds from the first token to the last, as `f64` bits; 0: not known.
    hold: AtomicU64,
    // Taken when a prompt is booked, when it leaves, and about once a second.
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    rate: Rate,
    /// Prompts whose first token hasn't come, in the order in which they were sent.
    queue: VecDeque<Waiting>,
    next: u64,
}

/// A prompt whose first token hasn't come.
#[derive(Debug)]
struct Waiting {
    /// Its own.
    number: u64,
    tokens: u64,
    /// When it leaves, whatever is seen.
    expires: Duration,
}

impl Backlog {
    pub(super) fn new(initial_rate: f64) -> Self {
        Self {
            tokens: AtomicI64::new(0),
            queued: AtomicU64::new(0),
            head: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            expires: AtomicU64::new(u64::MAX),
            unseen_until: AtomicU64::new(0),
            rate: AtomicU64::new(initial_rate.to_bits()),
            hold: AtomicU64::new(0),
            inner: Mutex::new(Inner { rate: Rate::new(initial_rate), queue: VecDeque::new(), next: 0 }),
        }
    }

    /// Tokens of prompts that it has yet to compute.
    pub fn tokens(&self, now: Duration) -> f64 {
        let seen = self.tokens.load(Relaxed).max(0) as f64;
        let since = Duration::from_nanos(self.head_since.load(Relaxed));
        let computed = now.saturating_sub(since).as_secs_f64() * self.rate();
        // No more than one prompt: an endpoint that doesn't answer doesn't look idle.
        let seen = (seen - computed.min(self.head.load(Relaxed) as f64)).max(0.0);
        let until = Duration::from_nanos(self.unseen_until.load(Relaxed));
        seen + until.saturating_sub(now).as_secs_f64() * self.rate()
    }

    /// Tokens that it computes per second.
    pub fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Relaxed))
    }

    /// Mean seconds for which a request holds a slot; 0 while nothing is known.
    pub fn hold(&self) -> f64 {
        f64::from_bits(self.hold.load(Relaxed))
    }

    /// Prompts whose first token will be seen and hasn't come.
    pub fn queued(&self) -> u64 {
        self.queued.load(Relaxed)
    }

    /// Adds a prompt. Returns the number that it has there.
    pub(super) fn add(&self, tokens: u64, now: Duration) -> u64 {
        let mut inner = self.inner();
        let takes = (self.tokens(now) + tokens as f64) / self.rate() * PATIENCE;
        let patience = Duration::try_from_secs_f64(takes).unwrap_or(Duration::MAX);
        let expires = now.saturating_add(patience.max(PATIENCE_AT_LEAST));
        let number = inner.next;
        inner.next += 1;
        inner.queue.push_back(Waiting { number, tokens, expires });
        self.tokens.fetch_add(signed(tokens), Relaxed);
        self.expires.fetch_min(nanos(expires), Relaxed);
        self.changed(&inner, inner.queue.len() == 1, now);
        number
    }

    /// Takes out the prompt of this number, if it is still there.
    pub(super) fn take(&self, number: u64, now: Duration) {
        let mut inner = self.inner();
        let Some(place) = inner.queue.iter().position(|waiting| waiting.number == number) else { return };
        let Some(taken) = inner.queue.remove(place) else { return };
        self.tokens.fetch_sub(signed(taken.tokens), Relaxed);
        self.changed(&inner, place == 0, now);
    }

    /// Takes out the prompts whose first token should have been seen long ago: the gateway
    /// doesn't show it, or there is none.
    pub(super) fn expire(&self, now: Duration) {
        if nanos(now) < self.expires.load(Relaxed) {
            return;
        }
        let mut inner = self.inner();
        let head = inner.queue.front().map(|waiting| waiting.number);
        inner.queue.retain(|waiting| {
            let stays = waiting.expires > now;
            if !stays {
                self.tokens.fetch_sub(signed(waiting.tokens), Relaxed);
            }
            stays
        });
        let next = inner.queue.iter().map(|waiting| waiting.expires).min();
        self.expires.store(next.map_or(u64::MAX, nanos), Relaxed);
        self.changed(&inner, inner.queue.front().map(|waiting| waiting.number) != head, now);
    }

    /// The queue has changed, perhaps at its head.
    fn changed(&self, inner: &Inner, head: bool, now: Duration) {
        self.queued.store(inner.queue.len() as u64, Relaxed);
        if head {
            self.begin(inner, now);
        }
    }

    /// The first prompt in the queue is computed from now on.
    fn begin(&self, inner: &Inner, now: Duration) {
        self.head.store(inner.queue.front().map_or(0, |waiting| waiting.tokens), Relaxed);
        self.head_since.store(nanos(now), Relaxed);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a prompt whose end nobody will see. Returns how long it takes, and when it
    /// should be computed.
    pub(super) fn add_unseen(&self, tokens: u64, now: Duration) -> (Duration, Duration) {
        let (now, more) = (nanos(now), self.nanos_for(tokens));
        let after = |until: u64| until.max(now).saturating_add(more);
        let before = self.unseen_until.fetch_update(Relaxed, Relaxed, |until| Some(after(until)));
        (Duration::from_nanos(more), Duration::from_nanos(after(before.unwrap_or(now))))
    }

    /// Takes out what is left of such a prompt, which takes so long and should be computed
    /// at `due`.
    pub(super) fn take_unseen(&self, takes: Duration, due: Duration, now: Duration) {
        let less = nanos(takes.min(due.saturating_sub(now)));
        let _ = self.unseen_until.fetch_update(Relaxed, Relaxed, |until| Some(until.saturating_sub(less)));
    }

    fn nanos_for(&self, tokens: u64) -> u64 {
        // Saturates, as casts from floats do.
        (tokens as f64 / self.rate() * 1e9) as u64
    }

    /// A first token came. The rate stays within `bounds`.
    pub(super) fn first_token(&self, tokens: u64, sent: Duration, now: Duration, bounds: (f64, f64)) {
        let rate = &mut self.inner().rate;
        rate.first_token(tokens, sent, now);
        rate.shift_to(rate.value().clamp(bounds.0, bounds.1));
        self.rate.store(rate.value().to_bits(), Relaxed);
    }

    pub(super) fn finished(&self, held: Duration) {
        let held = held.as_secs_f64();
        let _ = self.hold.fetch_update(Relaxed, Relaxed, |bits| {
            let mean = f64::from_bits(bits);
            let next = if mean > 0.0 { mean * KEEP_HOLD + held * (1.0 - KEEP_HOLD) } else { held };
            Some(next.to_bits())
        });
    }

    /// The learned rate; `None` before the first sample.
    pub(super) fn learned(&self) -> Option<f64> {
        let rate = self.inner().rate;
        rate.is_learned().then(|| rate.value())
    }

    /// If it was taken to be as fast as `before` at first, it is `now` instead.
    pub(super) fn expect(&self, before: f64, now: f64) {
        let rate = &mut self.inner().rate;
        rate.expect(before, now);
        self.rate.store(rate.value().to_bits(), Relaxed);
    }

    /// Takes the rate nearer to the pool's: all of the way where nothing was learned,
    /// a share of it where nothing was learned since `idle_since`, and into
    /// `bounds` anyway.
    pub(super) fn drift(&self, pool: f64, share: f64, idle_since: Duration, bounds: (f64, f64)) {
        let rate = &mut self.inner().rate;
        let value = rate.value();
        let next = if !rate.is_learned() {
            pool
        } else if rate.last_token() < idle_since {
            value * (pool / value).powf(share)
        } else {
            value
        };
        let next = next.clamp(bounds.0, bounds.1);
        if next != value {
            rate.shift_to(next);
            self.rate.store(rate.value().to_bits(), Relaxed);
        }
    }
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
