//! The side of a recording that threads which decide see.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;

use usher_core::memory::Budget;

use super::message::{Decided, Ended, Message};

/// Messages that wait for the writer at most.
pub(super) const QUEUE: usize = 8192;

/// Bytes of decisions that wait for the writer at most, without a memory budget.
const QUEUE_BYTES: u64 = 8 << 20;

/// Numbers of a recording since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Lines that were written.
    pub lines: AtomicU64,
    /// Bytes of them.
    pub bytes: AtomicU64,
    /// Lines of requests that were not written: the queue was full, or the file could not be written.
    pub dropped: AtomicU64,
    /// Writes, and openings of a file, that failed.
    pub errors: AtomicU64,
}

/// Takes decisions for a recording. Nothing here waits.
#[derive(Debug)]
pub struct Recorder {
    queue: SyncSender<Message>,
    /// Bytes of decisions in the queue.
    queued: Arc<AtomicU64>,
    most_queued: u64,
    next: AtomicU64,
    counts: Arc<Counts>,
    budget: Arc<Budget>,
    /// Keyed by a secret of this process.
    hasher: RandomState,
}

impl Recorder {
    pub(super) fn new(
        queue: SyncSender<Message>,
        queued: Arc<AtomicU64>,
        counts: Arc<Counts>,
        budget: Arc<Budget>,
    ) -> Self {
        let most_queued = budget.limit().map_or(QUEUE_BYTES, |limit| (limit / 32).min(QUEUE_BYTES));
        let (next, hasher) = (AtomicU64::new(0), RandomState::new());
        Self { queue, queued, most_queued, next, counts, budget, hasher }
    }

    /// Counts of the recorder.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Hash of a name, under a secret of this process.
    pub fn hash(&self, name: &str) -> u64 {
        self.hasher.hash_one(name)
    }

    /// Records a decision. Returns what follows the response of a request that was sent on; `None` if it was refused, or
    /// has no room.
    pub fn decided(self: &Arc<Self>, decided: Box<Decided>) -> Option<UnderWay> {
        let (bytes, is_refused) = (decided.size(), decided.refused.is_some());
        let queued = self.queued.fetch_add(bytes, Relaxed);
        if queued + bytes > self.most_queued || self.budget.is_tight() {
            self.drop_one(bytes);
            return None;
        }
        let number = self.next.fetch_add(1, Relaxed);
        let alive = Arc::new(());
        let message = Message::Decided { number, decided, alive: Arc::downgrade(&alive), bytes };
        if self.queue.try_send(message).is_err() {
            self.drop_one(bytes);
            return None;
        }
        (!is_refused).then(|| UnderWay { recorder: Arc::clone(self), number, _alive: alive })
    }

    fn drop_one(&self, bytes: u64) {
        self.queued.fetch_sub(bytes, Relaxed);
        self.counts.dropped.fetch_add(1, Relaxed);
    }

    /// Wakes the writer; one with a full queue is awake.
    pub(super) fn wake(&self) {
        let _ = self.queue.try_send(Message::Wake);
    }
}

/// A recorded request whose response isn't complete.
#[derive(Debug)]
pub struct UnderWay {
    recorder: Arc<Recorder>,
    number: u64,
    /// Notifies the writer that an end may still come.
    _alive: Arc<()>,
}

impl UnderWay {
    /// The request has ended. Where the queue is full, the writer finds out that nothing more comes, and counts a dropped
    /// line.
    pub fn ended(self, ended: Ended) {
        let message = Message::Ended { number: self.number, ended: Box::new(ended) };
        let _ = self.recorder.queue.try_send(message);
    }
}
