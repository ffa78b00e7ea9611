//! The ring of records.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use usher_core::memory::{Budget, Kind, Reservation};

use super::outcome::Outcome;
use super::pace::{Sampler, Slowness};
use super::record::{DecisionRecord, Held, Kept};

/// Bytes of memory for each record of the capacity, on average. A decision among ten endpoints takes one
/// kilobyte, the largest some ten.
const EACH: u64 = 4 << 10;

/// Bytes by which the reserved memory grows.
const CHUNK: u64 = 64 << 10;

/// Seconds of ordinary decisions that the ring holds above the rate from which on they are sampled.
const WINDOW: f64 = 48.0;

/// The last decisions. Above a rate of a 64th of its capacity per second ordinary decisions are sampled. A quarter
/// of the capacity is for those that were refused, failed or slow, which are kept longer.
#[derive(Debug)]
pub struct Records {
    pool: Box<str>,
    capacity: usize,
    max_bytes: u64,
    /// Bytes of all records, with those that only a stream holds.
    live: Arc<AtomicU64>,
    // Guards the queues, the numbers and the pace; held for some moves of pointers.
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// In the order of the decisions.
    recent: VecDeque<Arc<DecisionRecord>>,
    /// Refused, failed and slow ones.
    notable: VecDeque<Arc<DecisionRecord>>,
    decisions: u64,
    changes: u64,
    sampled_out: u64,
    ordinary: Sampler,
    refused: Sampler,
    slowness: Slowness,
    reservation: Reservation,
}

/// Numbers of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Records that it has room for.
    pub capacity: usize,
    /// Records that are kept.
    pub kept: usize,
    /// Decisions since the start.
    pub decisions: u64,
    /// Decisions that were not kept, as there were too many.
    pub sampled_out: u64,
    /// Number of the last change.
    pub sequence: u64,
    /// Time of the oldest kept decision, in milliseconds since 1970.
    pub since_unix_ms: Option<u64>,
}

impl Records {
    /// A ring for so many records of a pool, whose bytes count against this budget.
    pub fn new(pool: &str, capacity: usize, budget: &Arc<Budget>) -> Self {
        let share = budget.limit().map_or(u64::MAX, |limit| limit / 16);
        let per_second = (capacity as f64 * 0.75 / WINDOW).max(1.0);
        Self {
            pool: pool.into(),
            capacity: capacity.max(1),
            max_bytes: (capacity as u64).saturating_mul(EACH).max(CHUNK).min(share),
            live: Arc::default(),
            inner: Mutex::new(Inner {
                recent: VecDeque::new(),
                notable: VecDeque::new(),
                decisions: 0,
                changes: 0,
                sampled_out: 0,
                ordinary: Sampler::new(per_second),
                refused: Sampler::new(per_second),
                slowness: Slowness::default(),
                reservation: Reservation::new(budget, Kind::Records),
            }),
        }
    }

    /// Name of the pool.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// All records, in the order of the decisions, and the numbers of the ring.
    pub fn read(&self) -> (Vec<Arc<DecisionRecord>>, Summary) {
        let inner = self.inner();
        let mut all: Vec<_> = inner.notable.iter().chain(&inner.recent).cloned().collect();
        let summary = Summary {
            capacity: self.capacity,
            kept: all.len(),
            decisions: inner.decisions,
            sampled_out: inner.sampled_out,
            sequence: inner.changes,
            since_unix_ms: None,
        };
        drop(inner);
        all.sort_unstable_by_key(|record| record.number);
        let since_unix_ms = all.first().map(|record| record.unix_ms);
        (all, Summary { since_unix_ms, ..summary })
    }

    /// Takes a record in. One that is sampled out is left to its stream, as it may yet fail or be slow.
    pub(super) fn push(&self, mut record: DecisionRecord, now: Instant) -> Option<Kept> {
        let size = record.size();
        let is_refused = record.refusal.is_some();
        let mut inner = self.inner();
        inner.decisions += 1;
        record.number = inner.decisions;
        let sampler = if is_refused { &mut inner.refused } else { &mut inner.ordinary };
        let is_sampled = sampler.take(now);
        if !is_sampled && (is_refused || self.live.load(Relaxed) + size > self.max_bytes) {
            inner.sampled_out += 1;
            return None;
        }
        record.held = Held::new(&self.live, size);
        if !is_sampled {
            return Some(Kept::Alone(Arc::new(record)));
        }
        let record = Arc::new(record);
        let kept = Kept::InRing(Arc::downgrade(&record));
        inner.change(&record);
        if is_refused {
            inner.notable.push_back(record)
        } else {
            inner.recent.push_back(record)
        }
        let evicted = self.make_room(&mut inner);
        drop(inner);
        drop(evicted);
        Some(kept)
    }

    /// A request has ended.
    pub(super) fn end(&self, kept: &Kept, outcome: Outcome) {
        let (record, is_alone) = match kept {
            Kept::InRing(record) => (record.upgrade(), false),
            Kept::Alone(record) => (Some(Arc::clone(record)), true),
        };
        let mut inner = self.inner();
        let is_slow = outcome.first_token.is_some_and(|seconds| inner.slowness.is_slow(seconds));
        let Some(record) = record else { return };
        record.is_slow.store(is_slow, Relaxed);
        if record.outcome.set(outcome).is_err() {
            return;
        }
        if !is_alone {
            inner.change(&record);
        } else if record.is_notable() {
            inner.change(&record);
            inner.notable.push_back(record);
            let evicted = self.make_room(&mut inner);
            drop(inner);
            drop(evicted);
        } else {
            inner.sampled_out += 1;
        }
    }

    /// Takes records out until the rest fits. They are dropped without the lock.
    fn make_room(&self, inner: &mut Inner) -> Vec<Arc<DecisionRecord>> {
        let mut live = self.live.load(Relaxed);
        let wanted = live.next_multiple_of(CHUNK).min(self.max_bytes);
        // Nobody makes room for records: where memory is tight, there are fewer.
        let _ = inner.reservation.grow_to(wanted, || None);
        let limit = inner.reservation.bytes();
        let mut evicted = Vec::new();
        loop {
            let is_full = inner.recent.len() + inner.notable.len() > self.capacity || live > limit;
            if !is_full && inner.notable.len() <= self.capacity.div_ceil(4) {
                return evicted;
            }
            let has_too_many = inner.notable.len() > self.capacity.div_ceil(4) || inner.recent.is_empty();
            let next = if has_too_many { inner.notable.pop_front() } else { inner.recent.pop_front() };
            let Some(record) = next else { return evicted };
            if !has_too_many && record.is_notable() {
                inner.notable.push_back(record);
                continue;
            }
            live = live.saturating_sub(record.held.bytes());
            evicted.push(record);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn change(&mut self, record: &DecisionRecord) {
        self.changes += 1;
        record.sequence.store(self.changes, Relaxed);
    }
}
