//! What is booked and learned about all endpoints.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use crate::endpoints::{Clock, Endpoint, Slot, Snapshot};
use crate::schedule::Kept;

use super::backlog::Backlog;
use super::booking::{Booked, Work};

/// How often rates are compared with the pool's.
const COMPARE_EVERY: Duration = Duration::from_secs(1);

/// An endpoint whose first tokens are older than this counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// An idle endpoint's rate is half as far from the pool's, on a scale of factors,
/// after this time.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// A rate is at most so many times the pool's median, and at least as small a part of it.
const MOST: f64 = 10.0;

/// What remains of the mean prompt's weight after another one.
const KEEP_MEAN: f64 = 0.98;

/// Backlogs and rates of all endpoints that requests were sent to.
#[derive(Debug)]
pub struct Model {
    clock: Clock,
    /// What endpoints are taken to compute per second before anything is learned, as `f64`
    /// bits.
    initial_rate: AtomicU64,
    entries: ArcSwap<Vec<Option<Entry>>>,
    /// The median of the learned rates, as `f64` bits; before there is one, the initial rate.
    pool_rate: AtomicU64,
    /// Mean tokens to compute of a request, as `f64` bits.
    mean_uncached: AtomicU64,
    // Taken when an endpoint gets its first request, when one goes, and about once a
    // second; guards when rates were compared.
    writer: Mutex<Duration>,
    compared_ns: AtomicU64,
}

/// An endpoint's backlog. Holds its slot, so that the number stays its own.
#[derive(Clone, Debug)]
struct Entry {
    slot: Arc<Slot>,
    backlog: Arc<Backlog>,
}

/// The model as one decision reads it.
#[derive(Debug)]
pub struct Table<'a> {
    entries: Guard<Arc<Vec<Option<Entry>>>>,
    model: &'a Model,
    now: Duration,
}

impl Model {
    /// A model that knows nothing. `initial_rate` is in tokens per second, above 0.
    pub fn new(initial_rate: f64, clock: Clock) -> Self {
        Self {
            clock,
            initial_rate: AtomicU64::new(initial_rate.to_bits()),
            entries: ArcSwap::default(),
            pool_rate: AtomicU64::new(initial_rate.to_bits()),
            mean_uncached: AtomicU64::new(0),
            writer: Mutex::default(),
            compared_ns: AtomicU64::new(0),
        }
    }

    /// From now on endpoints are taken to be this fast before anything is learned, in tokens
    /// per second, above 0: a configuration may say something else than the one before it.
    /// Where nothing was learned, that counts at once; where little was, it counts for as
    /// much as the earlier number did. The others stay as they are, but for those that are
    /// too far from the pool then.
    pub fn starts_at(&self, rate: f64) {
        if self.initial_rate() == rate {
            return;
        }
        let _writing = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let before = f64::from_bits(self.initial_rate.swap(rate.to_bits(), Relaxed));
        let entries = self.entries.load();
        entries.iter().flatten().for_each(|entry| entry.backlog.expect(before, rate));
        self.renew_pool(&entries, 0.0, Duration::ZERO);
    }

    fn initial_rate(&self) -> f64 {
        f64::from_bits(self.initial_rate.load(Relaxed))
    }

    /// What is known now.
    pub fn read(&self) -> Table<'_> {
        Table { entries: self.entries.load(), model: self, now: self.clock.elapsed() }
    }

    /// The clock that bookings are measured with.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Books a request's prompt with the endpoint that computes it, until the first
    /// token is there.
    pub fn book(self: &Arc<Self>, work: &Work<'_>) -> Booked {
        let now = self.clock.elapsed();
        self.note(work.tokens);
        self.compare(now);
        Booked::new(Arc::clone(self), work, now)
    }

    /// The endpoint's backlog; an empty one from its first request on.
    pub(super) fn backlog(&self, endpoint: &Endpoint) -> Arc<Backlog> {
        let number = endpoint.slot().number() as usize;
        if let Some(Some(entry)) = self.entries.load().get(number) {
            return Arc::clone(&entry.backlog);
        }
        let _writing = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = Vec::clone(&self.entries.load());
        if entries.len() <= number {
            entries.resize(number + 1, None);
        }
        let entry = entries[number].get_or_insert_with(|| Entry {
            slot: Arc::clone(endpoint.slot()),
            backlog: Arc::new(Backlog::new(self.pool_rate())),
        });
        let backlog = Arc::clone(&entry.backlog);
        self.entries.store(Arc::new(entries));
        backlog
    }

    /// Between which rates an endpoint's stays.
    pub(super) fn bounds(&self) -> (f64, f64) {
        let pool = self.pool_rate();
        (pool / MOST, pool * MOST)
    }

    fn pool_rate(&self) -> f64 {
        f64::from_bits(self.pool_rate.load(Relaxed))
    }

    fn note(&self, tokens: u64) {
        let _ = self.mean_uncached.fetch_update(Relaxed, Relaxed, |bits| {
            let mean = f64::from_bits(bits);
            let next =
                if bits == 0 { tokens as f64 } else { mean * KEEP_MEAN + tokens as f64 * (1.0 - KEEP_MEAN) };
            Some(next.to_bits())
        });
    }

    /// Compares rates with the pool's, when that has not been done for a while.
    fn compare(&self, now: Duration) {
        let due = Duration::from_nanos(self.compared_ns.load(Relaxed)) + COMPARE_EVERY;
        if now < due {
            return;
        }
        let Ok(mut compared) = self.writer.try_lock() else { return };
        let passed = now.saturating_sub(*compared);
        if passed < COMPARE_EVERY {
            return;
        }
        *compared = now;
        self.compared_ns.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        let share = 1.0 - 0.5f64.powf(passed.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.renew_pool(&self.entries.load(), share, now.saturating_sub(IDLE_AFTER));
    }

    /// Works out how fast the pool is, and takes to it who has learned nothing, and by so
    /// much of the way who has learned nothing since then.
    fn renew_pool(&self, entries: &[Option<Entry>], share: f64, idle_since: Duration) {
        let backlogs = || entries.iter().flatten().map(|entry| &entry.backlog);
        let mut rates: Vec<f64> = backlogs().filter_map(|backlog| backlog.learned()).collect();
        let pool = median(&mut rates).unwrap_or_else(|| self.initial_rate());
        self.pool_rate.store(pool.to_bits(), Relaxed);
        backlogs().for_each(|backlog| backlog.drift(pool, share, idle_since, self.bounds()));
    }
}

impl Table<'_> {
    /// Seconds until the first token of a request of which the endpoint has to compute
    /// so many tokens. `waiting` and `running` are requests in the server, as it
    /// says itself.
    pub fn ttft(&self, endpoint: &Endpoint, uncached: u64, waiting: f64, running: f64) -> f64 {
        let (backlog, rate, queued) = match self.known(endpoint) {
            Some(backlog) => {
                let queued = i64::try_from(backlog.queued()).unwrap_or(i64::MAX);
                (backlog.tokens(self.now), backlog.rate(), queued)
            }
            None => (0.0, self.model.pool_rate(), 0),
        };
        // Who only computes prompts for others' answers has none of its own in flight.
        let own = endpoint.load().in_flight().max(queued) as f64;
        let of_others = (waiting + running - own).min(waiting).max(0.0);
        let of_others = of_others * f64::from_bits(self.model.mean_uncached.load(Relaxed));
        (backlog + of_others + uncached as f64) / rate + self.slot_wait(endpoint, waiting, running)
    }

    /// Seconds until the endpoint has a slot for another request: 0 while none waits for
    /// one, else the mean time between two that become free, for each that waits.
    pub fn slot_wait(&self, endpoint: &Endpoint, waiting: f64, running: f64) -> f64 {
        let hold = self.known(endpoint).map_or(0.0, Backlog::hold);
        if waiting > 0.0 { waiting * hold / running.max(1.0) } else { 0.0 }
    }

    fn known(&self, endpoint: &Endpoint) -> Option<&Backlog> {
        let entry = self.entries.get(endpoint.slot().number() as usize)?.as_ref()?;
        entry.backlog.expire(self.now);
        Some(&entry.backlog)
    }
}

impl Kept for Model {
    fn sweep(&self, snapshot: &Snapshot, _now_ms: u64) {
        let _writing = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let listed: std::collections::HashSet<u32> =
            snapshot.endpoints().iter().map(|endpoint| endpoint.slot().number()).collect();
        let entries = self.entries.load();
        let is_gone =
            |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| !listed.contains(&e.slot.number()));
        if entries.iter().any(is_gone) {
            let kept = entries.iter().map(|entry| entry.clone().filter(|_| !is_gone(entry)));
            self.entries.store(Arc::new(kept.collect()));
        }
    }
}

/// The middle one; of two in the middle the smaller.
fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}
