//! The ring of records.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use usher_core::memory::{Budget, Kind, Reservation};

use super::notable::NotableRecords;
use super::outcome::{Ending, Outcome};
use super::pace::{MovingQuantile, Sampler};
use super::queue::Queue;
use super::record::{DecisionRecord, Held, KeepReason, RecordRef};

/// Bytes of memory for each record of the capacity, on average. A decision among ten endpoints takes one
/// kilobyte, the largest some ten.
const EACH: u64 = 4 << 10;

/// Bytes by which the reserved memory grows.
const CHUNK: u64 = 64 << 10;

/// Seconds of ordinary decisions that the ring holds above the rate from which on they are sampled.
const WINDOW: f64 = 48.0;

/// Queues of records: recent ones, those under way, and three kinds of notable ones.
const QUEUES: usize = 5;

/// The last decisions. Above a rate of a 64th of its capacity per second ordinary decisions are sampled. A quarter
/// of the capacity is for those that were refused, failed or slow, which are sampled more and kept longer.
#[derive(Debug)]
pub struct Records {
    pool: Box<str>,
    capacity: usize,
    max_bytes: u64,
    budget: Arc<Budget>,
    /// Bytes of all records, with those that only a stream holds.
    live: Arc<AtomicU64>,
    // Guards the queues, the numbers and the pace; held for some moves of pointers.
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// In the order of the decisions.
    recent: Queue,
    /// Records displaced from `recent` while their requests are under way.
    under_way: Queue,
    /// Refused, failed and slow ones.
    notable: NotableRecords,
    /// Bytes of all these.
    bytes: u64,
    decisions: u64,
    changes: u64,
    sampled_out: u64,
    ordinary: Sampler,
    first_tokens: MovingQuantile,
    /// Durations of responses that don't come token by token.
    totals: MovingQuantile,
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
            budget: Arc::clone(budget),
            live: Arc::default(),
            inner: Mutex::new(Inner {
                recent: Queue::default(),
                under_way: Queue::default(),
                bytes: 0,
                notable: NotableRecords::new(capacity.max(1).div_ceil(4), WINDOW),
                decisions: 0,
                changes: 0,
                sampled_out: 0,
                ordinary: Sampler::new(per_second, 2.0 * per_second),
                first_tokens: MovingQuantile::default(),
                totals: MovingQuantile::default(),
                reservation: Reservation::new(budget, Kind::Records),
            }),
        }
    }

    /// Name of the pool.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Numbers of the ring, but for the time of the oldest decision.
    pub fn summary(&self) -> Summary {
        self.inner().summary(self.capacity)
    }

    /// All records, in the order of the decisions, and the numbers of the ring. Requests that end meanwhile wait for
    /// some of the records to be copied, not for all.
    pub fn read(&self) -> (Vec<Arc<DecisionRecord>>, Summary) {
        let summary = self.summary();
        let mut all = Vec::with_capacity(summary.kept);
        for queue in 0..QUEUES {
            let mut next = Some(0);
            while let Some(from) = next {
                next = self.inner().queues()[queue].copy(from, &mut all);
            }
        }
        all.sort_unstable_by_key(|record| record.number);
        all.dedup_by_key(|record| record.number);
        // Later ones are on the next page.
        all.truncate(all.partition_point(|record| record.number <= summary.decisions));
        let since_unix_ms = all.first().map(|record| record.unix_ms);
        (all, Summary { since_unix_ms, ..summary })
    }

    /// Returns `true` if a refusal is to be recorded. One that is sampled out is counted, and costs no record: there
    /// are many where a pool is full.
    pub fn takes_refusal(&self, now: Instant) -> bool {
        let mut inner = self.inner();
        let is_sampled = inner.notable.takes(KeepReason::Refusal, now);
        if !is_sampled {
            inner.decisions += 1;
            inner.sampled_out += 1;
        }
        is_sampled
    }

    /// Takes a record in; refusals are [sampled](Self::takes_refusal) before. One that is sampled out is
    /// left to its stream, as it may yet fail or be slow. `None` of one that somebody else has.
    pub(super) fn push(&self, mut shared: Arc<DecisionRecord>, now: Instant) -> Option<RecordRef> {
        let record = Arc::get_mut(&mut shared)?;
        let size = record.size();
        let is_refused = record.refusal.is_some();
        let mut inner = self.inner();
        inner.decisions += 1;
        record.number = inner.decisions;
        let is_sampled = is_refused || inner.ordinary.take(now);
        if !is_sampled && self.live.load(Relaxed) + size > inner.bytes + self.room(&mut inner) / 4 {
            inner.sampled_out += 1;
            return None;
        }
        record.held = Held::new(&self.live, size);
        if !is_sampled {
            return Some(RecordRef::Alone(shared));
        }
        let record = shared;
        let kept = RecordRef::InRing(Arc::downgrade(&record));
        inner.change(&record);
        inner.bytes += size;
        if is_refused {
            inner.notable.push(KeepReason::Refusal, record)
        } else {
            inner.recent.push_back(record)
        }
        let evicted = self.make_room(&mut inner);
        drop(inner);
        drop(evicted);
        Some(kept)
    }

    /// A request has ended.
    pub(super) fn end(&self, kept: &RecordRef, outcome: Outcome, now: Instant) {
        let (record, is_alone) = match kept {
            RecordRef::InRing(record) => (record.upgrade(), false),
            RecordRef::Alone(record) => (Some(Arc::clone(record)), true),
        };
        let mut inner = self.inner();
        let is_slow = match outcome.first_token {
            Some(seconds) => inner.first_tokens.is_slow(seconds),
            None if outcome.ending == Ending::Complete => inner.totals.is_slow(outcome.total),
            None => false,
        };
        let Some(record) = record else { return };
        record.is_slow.store(is_slow, Relaxed);
        if record.outcome.set(outcome).is_err() {
            return;
        }
        let reason = if record.is_failed() {
            Some(KeepReason::Failure)
        } else {
            is_slow.then_some(KeepReason::Slowness)
        };
        let reason = reason.filter(|reason| inner.notable.takes(*reason, now));
        if !is_alone {
            reason.map(|reason| record.kept_for.set(reason));
            inner.change(&record);
        } else if let Some(reason) = reason {
            inner.change(&record);
            inner.bytes += record.held.bytes();
            inner.notable.push(reason, record);
            let evicted = self.make_room(&mut inner);
            drop(inner);
            drop(evicted);
        } else {
            inner.sampled_out += 1;
        }
    }

    /// Bytes that records may take now.
    fn room(&self, inner: &mut Inner) -> u64 {
        // Three quarters of it are the ring's.
        let used = self.live.load(Relaxed).max(inner.bytes / 3 * 4);
        let wanted = used.saturating_add(CHUNK).next_multiple_of(CHUNK).min(self.max_bytes);
        // Nobody makes room for records: where memory is tight, there are fewer.
        if wanted > inner.reservation.bytes() && !self.budget.is_tight() {
            inner.reservation.set(wanted);
        }
        inner.reservation.bytes()
    }

    /// Takes records out until the rest fits, with a quarter of the bytes for those that only a stream holds. They
    /// are dropped without the lock.
    fn make_room(&self, inner: &mut Inner) -> SmallVec<[Arc<DecisionRecord>; 4]> {
        let room = self.room(inner);
        let most_bytes = room - room / 4;
        let mut evicted = SmallVec::new();
        while let Some(record) = inner.pop_excess(self.capacity, most_bytes) {
            inner.bytes = inner.bytes.saturating_sub(record.held.bytes());
            evicted.push(record);
        }
        evicted
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Records move from one to a later one only: read in this order, none is missed.
    fn queues(&self) -> [&Queue; QUEUES] {
        let [refused, failed, slow] = self.notable.queues();
        [&self.recent, &self.under_way, refused, failed, slow]
    }

    fn len(&self) -> usize {
        self.queues().iter().map(|queue| queue.len()).sum()
    }

    fn summary(&self, capacity: usize) -> Summary {
        Summary {
            capacity,
            kept: self.len(),
            decisions: self.decisions,
            sampled_out: self.sampled_out,
            sequence: self.changes,
            since_unix_ms: None,
        }
    }

    /// The next record to leave, if there are too many.
    fn pop_excess(&mut self, capacity: usize, most_bytes: u64) -> Option<Arc<DecisionRecord>> {
        loop {
            if self.notable.is_over() {
                return self.notable.pop();
            }
            let is_full = self.len() > capacity || self.bytes > most_bytes;
            let has_many_under_way = self.under_way.len() > capacity.div_ceil(8);
            if !is_full && !has_many_under_way {
                return None;
            }
            let from_under_way = has_many_under_way || self.recent.is_empty();
            let next = if from_under_way { self.under_way.pop_front() } else { self.recent.pop_front() };
            let Some(record) = next else { return self.notable.pop() };
            if let Some(reason) = record.kept_for.get().copied() {
                self.notable.push(reason, record);
            } else if !from_under_way && record.is_under_way() {
                self.under_way.push_back(record);
            } else {
                return Some(record);
            }
        }
    }

    fn change(&mut self, record: &DecisionRecord) {
        self.changes += 1;
        record.sequence.store(self.changes, Relaxed);
    }
}
