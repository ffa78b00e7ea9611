//! Puts blocks into the index: many away from the request that they came with, few with it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::endpoints::{Endpoint, Snapshot};
use crate::memory::{Budget, IndexShare, Kind, Reservation};

use super::{Blocks, Limits, PrefixIndex};

/// Counts of an [`IndexWriter`]'s requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexWriterCounts {
    /// Requests that were put into the queue.
    pub queued: u64,
    /// Requests that were dropped, because the queue was full.
    pub dropped: u64,
}

/// The queue in front of a [`PrefixIndex`], and the thread that empties it.
///
/// The owner of the index starts one writer for it and keeps both for as long as the index should learn;
/// both outlive a configuration. The thread is named `prefix-writer`; it ends when the writer is dropped,
/// after what is queued by then.
pub struct IndexWriter {
    way: Way,
    index: Arc<PrefixIndex>,
    share: Arc<IndexShare>,
    shared: Arc<Shared>,
}

/// Blocks of a request up to which the caller adds them: to wake the thread takes longer.
const FEW: usize = 64;

/// Blocks that callers have added after which the thread counts the memory of the index again.
const UNCOUNTED: usize = 4096;

enum Way {
    Thread(SyncSender<Work>),
    // Held for one piece of work; nobody waits where nothing happens at the same time.
    Caller(Mutex<Worker>),
}

/// Carries out work on an index.
struct Worker {
    index: Arc<PrefixIndex>,
    shared: Arc<Shared>,
    share: Arc<IndexShare>,
    held: Reservation,
}

#[derive(Debug, Default)]
struct Shared {
    /// Pieces of work in the queue, and blocks in them.
    works: AtomicUsize,
    blocks: AtomicUsize,
    /// Blocks that callers have added since the memory of the index was counted.
    uncounted: AtomicUsize,
    queued: AtomicU64,
    dropped: AtomicU64,
}

enum Work {
    Add {
        endpoint: Arc<Endpoint>,
        blocks: Arc<Blocks>,
        capacity: usize,
    },
    Sweep {
        slots: Vec<u32>,
        now_ms: u64,
    },
    /// Counts the memory of the index, after callers have added to it.
    Count,
    /// Signals that everything before it is done.
    Flush(SyncSender<()>),
}

impl IndexWriter {
    /// Requests that wait at most.
    pub const MAX_REQUESTS: usize = 4096;
    /// Blocks that wait at most, over all requests: 8 MiB of hashes.
    pub const MAX_BLOCKS: usize = 1 << 20;

    /// Starts the thread that adds to `index`.
    ///
    /// # Errors
    /// `io::Error` if the system can't start another thread.
    pub fn start(index: Arc<PrefixIndex>) -> io::Result<Self> {
        Self::start_within(index, Self::share(&Arc::default()))
    }

    /// The same within a memory budget. The index counts there, and doesn't grow while that
    /// has no room for it, or beyond its [share](Self::share) beside other indexes.
    ///
    /// # Errors
    /// `io::Error` if the system can't start another thread.
    pub fn start_within(index: Arc<PrefixIndex>, share: Arc<IndexShare>) -> io::Result<Self> {
        let (queue, work) = sync_channel(Self::MAX_REQUESTS);
        let shared = Arc::new(Shared::default());
        let worker = Worker::new(Arc::clone(&index), Arc::clone(&shared), Arc::clone(&share));
        thread::Builder::new().name("prefix-writer".to_owned()).spawn(move || worker.drain(work))?;
        Ok(Self { way: Way::Thread(queue), index, share, shared })
    }

    /// A writer without a thread: whoever pushes adds, and needs no flush. For simulations,
    /// where changing threads takes longer than adding.
    pub fn inline(index: Arc<PrefixIndex>, share: Arc<IndexShare>) -> Self {
        let shared = Arc::new(Shared::default());
        let worker = Worker::new(Arc::clone(&index), Arc::clone(&shared), Arc::clone(&share));
        Self { way: Way::Caller(Mutex::new(worker)), index, share, shared }
    }

    /// Share of an index in the budget, by the bytes of an entry. One that takes the place of another takes its share, too.
    pub fn share(budget: &Arc<Budget>) -> Arc<IndexShare> {
        Arc::new(IndexShare::new(budget, Limits::BYTES_PER_ENTRY as u32))
    }

    /// An endpoint is sent these blocks, and its cache holds `capacity` of them. A few are added at
    /// once. More cost the same however many they are, and never wait: when the queue is full, the
    /// blocks are dropped and counted. Returns whether they were added or queued.
    pub fn push(&self, endpoint: Arc<Endpoint>, blocks: Arc<Blocks>, capacity: usize) -> bool {
        let len = blocks.len();
        // What was pushed before comes first.
        if len <= FEW && self.shared.works.load(Relaxed) == 0 && matches!(self.way, Way::Thread(_)) {
            add(&self.index, &self.share, &endpoint, &blocks, capacity);
            self.shared.queued.fetch_add(1, Relaxed);
            self.count(len);
            return true;
        }
        let waiting = self.shared.blocks.fetch_add(len, Relaxed);
        let fits = waiting.saturating_add(len) <= Self::MAX_BLOCKS;
        if fits && self.take(Work::Add { endpoint, blocks, capacity }) {
            self.shared.queued.fetch_add(1, Relaxed);
            return true;
        }
        self.shared.blocks.fetch_sub(len, Relaxed);
        self.shared.dropped.fetch_add(1, Relaxed);
        false
    }

    /// Has the caller put blocks into the index that come from elsewhere, about so many: within the budget, where their
    /// memory is counted.
    pub fn import<T>(&self, blocks: usize, import: impl FnOnce(&PrefixIndex) -> T) -> T {
        self.index.may_grow(self.share.may_grow(bytes_of(self.index.entries())));
        let imported = import(&self.index);
        self.count(blocks);
        imported
    }

    /// The index.
    pub fn index(&self) -> &Arc<PrefixIndex> {
        &self.index
    }

    /// Entries that the index may have.
    pub fn limit(&self) -> usize {
        let share = usize::try_from(self.share.bytes()).unwrap_or(usize::MAX);
        self.index.limit().min(share / Limits::BYTES_PER_ENTRY)
    }

    /// Has the memory of the index counted again, after so many blocks more.
    fn count(&self, blocks: usize) {
        if self.shared.uncounted.fetch_add(blocks, Relaxed) + blocks >= UNCOUNTED {
            // Where the queue is full, its work counts.
            let _ = self.take(Work::Count);
        }
    }

    /// Does what [`PrefixIndex::sweep`] says, after what was pushed before: dropping an
    /// endpoint takes some milliseconds. A full queue is left alone; the next sweep finds the
    /// same.
    pub fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        let slots = snapshot.slots().to_vec();
        // See above for when there is no room.
        let _ = self.take(Work::Sweep { slots, now_ms });
    }

    /// Drops everything that was pushed before, unless the queue is full.
    pub fn clear(&self) {
        let _ = self.take(Work::Sweep { slots: Vec::new(), now_ms: 0 });
    }

    /// Waits until everything that was pushed before is in the index. For tests: a request
    /// never waits for it.
    pub fn flush(&self) {
        let Way::Thread(queue) = &self.way else { return };
        let (done, wait) = sync_channel(1);
        self.shared.works.fetch_add(1, Relaxed);
        if queue.send(Work::Flush(done)).is_ok() {
            // An error means that the thread is gone, and with it the queue.
            let _ = wait.recv();
        }
    }

    // False if there is no room in the queue.
    fn take(&self, work: Work) -> bool {
        match &self.way {
            Way::Thread(queue) => {
                self.shared.works.fetch_add(1, Relaxed);
                let is_queued = queue.try_send(work).is_ok();
                if !is_queued {
                    self.shared.works.fetch_sub(1, Relaxed);
                }
                is_queued
            }
            Way::Caller(worker) => {
                worker.lock().unwrap_or_else(PoisonError::into_inner).fill(work);
                true
            }
        }
    }

    /// Requests that were queued and dropped so far.
    pub fn counts(&self) -> IndexWriterCounts {
        IndexWriterCounts {
            queued: self.shared.queued.load(Relaxed),
            dropped: self.shared.dropped.load(Relaxed),
        }
    }
}

impl Worker {
    fn new(index: Arc<PrefixIndex>, shared: Arc<Shared>, share: Arc<IndexShare>) -> Self {
        let held = Reservation::new(share.budget(), Kind::PrefixIndex);
        Self { index, shared, share, held }
    }

    fn drain(mut self, work: Receiver<Work>) {
        for work in work {
            let done = self.fill(work);
            self.shared.works.fetch_sub(1, Relaxed);
            if let Some(done) = done {
                // Whoever asked may not wait any more.
                let _ = done.send(());
            }
        }
    }

    /// Does a piece of work. Returns who waits for it.
    fn fill(&mut self, work: Work) -> Option<SyncSender<()>> {
        let Self { index, shared, share, held } = self;
        let mut waiting = None;
        match work {
            Work::Add { endpoint, blocks, capacity } => {
                add(index, share, &endpoint, &blocks, capacity);
                shared.blocks.fetch_sub(blocks.len(), Relaxed);
            }
            Work::Sweep { slots, now_ms } => index.sweep_slots(slots, now_ms),
            Work::Count => {}
            Work::Flush(done) => waiting = Some(done),
        }
        shared.uncounted.store(0, Relaxed);
        held.set(index.bytes() as u64);
        waiting
    }
}

/// An endpoint has these blocks from now on.
fn add(index: &PrefixIndex, share: &IndexShare, endpoint: &Arc<Endpoint>, blocks: &Blocks, capacity: usize) {
    index.may_grow(share.may_grow(bytes_of(index.entries())));
    // Prompt by prompt: each begins with its most recent block.
    blocks.prompts().for_each(|prompt| index.add(endpoint, prompt, capacity));
}

fn bytes_of(entries: usize) -> u64 {
    entries as u64 * Limits::BYTES_PER_ENTRY as u64
}

impl fmt::Debug for IndexWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IndexWriter").field(&self.counts()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, Store};
    use crate::prefix::Limits;

    fn pool(names: &[&str]) -> (Store, Arc<Snapshot>) {
        let store = Store::default();
        store.replace(names.iter().map(|name| EndpointSpec::new(*name, ([10, 0, 0, 1], 8000))).collect());
        let snapshot = store.snapshot();
        (store, snapshot)
    }

    fn blocks(count: usize) -> Arc<Blocks> {
        Arc::new(Blocks::from_prompts([(0..count as u64).collect::<Vec<_>>()]))
    }

    #[test]
    fn pushed_blocks_are_found_after_a_flush_until_swept() {
        let (store, snapshot) = pool(&["a", "b"]);
        let index = Arc::new(PrefixIndex::new(Limits::default()));
        let writer = IndexWriter::start(Arc::clone(&index)).unwrap();
        let b = &snapshot.endpoints()[1];
        assert!(writer.push(Arc::clone(b), blocks(3), 100));
        writer.flush();
        let mut matched = Vec::new();
        index.find(&blocks(5), snapshot.all().view(), &mut matched);
        assert_eq!(matched, [0, 3]);
        store.replace(vec![b.spec().clone()]);
        writer.sweep(&store.snapshot(), 1);
        writer.flush();
        assert_eq!(index.entries(), 3);
        writer.sweep(&pool(&[]).1, 1);
        writer.flush();
        assert_eq!(index.entries(), 0);
        assert_eq!(writer.counts(), IndexWriterCounts { queued: 1, dropped: 0 });
    }

    #[test]
    fn a_few_blocks_are_found_at_once_and_counted_in_time() {
        let (_store, snapshot) = pool(&["a", "b"]);
        let budget = Arc::new(Budget::default());
        let index = Arc::new(PrefixIndex::new(Limits::default()));
        let writer = IndexWriter::start_within(Arc::clone(&index), IndexWriter::share(&budget)).unwrap();
        for number in 0..2 * (UNCOUNTED / FEW) as u64 {
            writer.flush();
            let hashes =
                (0..FEW as u64).map(|block| (number << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let blocks = Arc::new(Blocks::from_prompts([hashes.collect::<Vec<_>>()]));
            assert!(writer.push(Arc::clone(&snapshot.endpoints()[1]), Arc::clone(&blocks), 1 << 20));
            let mut matched = Vec::new();
            index.find(&blocks, snapshot.all().view(), &mut matched);
            assert_eq!(matched, [0, FEW as u32]);
            while number == (UNCOUNTED / FEW) as u64 && budget.used(Kind::PrefixIndex) == 0 {
                thread::yield_now();
            }
        }
        writer.flush();
        assert_eq!(budget.used(Kind::PrefixIndex), index.bytes() as u64);
    }

    #[test]
    fn an_inline_writer_needs_no_flush() {
        let (_store, snapshot) = pool(&["a", "b"]);
        let index = Arc::new(PrefixIndex::new(Limits::default()));
        let writer = IndexWriter::inline(Arc::clone(&index), IndexWriter::share(&Arc::default()));
        assert!(writer.push(Arc::clone(&snapshot.endpoints()[1]), blocks(3), 100));
        let mut matched = Vec::new();
        index.find(&blocks(5), snapshot.all().view(), &mut matched);
        assert_eq!(matched, [0, 3]);
        writer.sweep(&pool(&[]).1, 1);
        assert_eq!(index.entries(), 0);
        writer.flush();
        assert_eq!(writer.counts(), IndexWriterCounts { queued: 1, dropped: 0 });
    }

    #[test]
    fn index_stops_growing_at_the_memory_budget() {
        let (_, snapshot) = pool(&["a", "b"]);
        let budget = Arc::new(Budget::new(400_000, 200_000));
        let index = Arc::new(PrefixIndex::new(Limits::of_bytes(1 << 20)));
        let writer = IndexWriter::start_within(Arc::clone(&index), IndexWriter::share(&budget)).unwrap();
        let mut number = 0u64;
        let mut add = |times: u64, writer: &IndexWriter| {
            for _ in 0..times {
                number += 1;
                let hashes = (0..100)
                    .map(|block| (number << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15))
                    .collect::<Vec<u64>>();
                let endpoint = &snapshot.endpoints()[number as usize % 2];
                writer.push(Arc::clone(endpoint), Arc::new(Blocks::from_prompts([hashes])), 31_250);
            }
            writer.flush();
            assert_eq!(budget.used(Kind::PrefixIndex), index.bytes() as u64);
        };
        add(30, &writer);
        let (entries, crowded) = (index.entries(), index.crowded_out());
        assert_eq!((entries, crowded), (3000, 0));
        // Bodies have taken the rest.
        let mut bodies = Reservation::new(&budget, Kind::Bodies);
        bodies.grow_to(400_000 - budget.used(Kind::PrefixIndex), || None).unwrap();
        add(30, &writer);
        assert_eq!((index.entries(), index.crowded_out()), (3000, 3000));
        drop(bodies);
        // Its own share is what is left to stop it.
        add(300, &writer);
        assert!(index.entries() > 3000 && index.crowded_out() > 3000);
        assert!((180_000..220_000).contains(&index.bytes()), "{} bytes", index.bytes());
        drop(writer);
        let given_back = || budget.used(Kind::PrefixIndex) == 0;
        while !given_back() {
            thread::yield_now();
        }
    }

    #[test]
    fn index_stops_growing_at_its_share_beside_another() {
        let (_, snapshot) = pool(&["a"]);
        let budget = Arc::new(Budget::new(u64::MAX, 40_000 * Limits::BYTES_PER_ENTRY as u64));
        let index = Arc::new(PrefixIndex::new(Limits::of_bytes(1 << 20)));
        let writer = IndexWriter::inline(Arc::clone(&index), IndexWriter::share(&budget));
        let other = IndexShare::new(&budget, 3 * Limits::BYTES_PER_ENTRY as u32);
        assert_eq!((writer.limit(), other.bytes()), (10_000, 30_000 * Limits::BYTES_PER_ENTRY as u64));
        let mut number = 0u64;
        let mut add = |times: u64| {
            for _ in 0..times {
                number += 1;
                let hashes =
                    (0..100u64).map(|block| (number << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let blocks = Arc::new(Blocks::from_prompts([hashes.collect::<Vec<u64>>()]));
                writer.push(Arc::clone(&snapshot.endpoints()[0]), blocks, 31_250);
            }
            index.entries()
        };
        assert_eq!(add(120), 10_000);
        drop(other);
        assert_eq!(add(20), 12_000, "it has all");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (_, snapshot) = pool(&["a"]);
        let endpoint = &snapshot.endpoints()[0];
        let index = Arc::new(PrefixIndex::new(Limits::default()));
        let writer = IndexWriter::start(Arc::clone(&index)).unwrap();
        let push = |blocks: Arc<Blocks>| writer.push(Arc::clone(endpoint), blocks, 10);
        assert!(!push(blocks(IndexWriter::MAX_BLOCKS + 1)), "too many blocks");
        // The thread waits until somebody takes what it says.
        let (done, wait) = sync_channel(0);
        assert!(writer.take(Work::Flush(done)));
        assert!(push(blocks(IndexWriter::MAX_BLOCKS)));
        assert!(!push(blocks(1)), "too many blocks with those that wait");
        let one = blocks(0);
        let queued =
            1 + (0..2 * IndexWriter::MAX_REQUESTS).take_while(|_| push(Arc::clone(&one))).count() as u64;
        // The thread may not have come to wait yet.
        let full = IndexWriter::MAX_REQUESTS as u64;
        assert!((full - 1..=full).contains(&queued), "{queued}");
        assert_eq!(writer.counts(), IndexWriterCounts { queued, dropped: 3 });
        wait.recv().unwrap();
        writer.flush();
        assert!(push(blocks(10)), "there is room again");
        writer.flush();
        assert_eq!((index.entries(), writer.shared.blocks.load(Relaxed)), (10, 0));
    }
}
