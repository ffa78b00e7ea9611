//! Assumed content of the endpoints' prefix caches. It outlives a configuration.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use usher_core::endpoints::{Endpoint, Snapshot};
use usher_core::memory::Budget;
use usher_core::prefix::share::Fingerprint;
use usher_core::prefix::{Blocks, IndexWriter, Limits, PrefixIndex};
use usher_plugin::Persistent;

use super::capacity::Capacities;

/// The index of prefixes, the writer that fills it, and the learned capacities.
#[derive(Debug)]
pub struct PrefixCaches {
    index: Arc<PrefixIndex>,
    writer: Arc<IndexWriter>,
    capacities: Capacities,
    /// Fingerprint of the blocks that the latest configuration has hashed.
    // Taken while a configuration is built, and by who shares with other replicas.
    fingerprint: Mutex<Option<Fingerprint>>,
    /// Blocks of requests under way, and how many they may be.
    kept: Arc<AtomicUsize>,
    most_kept: usize,
}

/// Blocks of requests under way that are kept at most: 8 MiB of hashes.
const MOST_KEPT: usize = 1 << 20;

/// Share of the index's memory that they take at most.
const KEPT_SHARE: usize = 8;

impl PrefixCaches {
    /// An empty index within these limits.
    ///
    /// # Errors
    /// `io::Error` if the system can't start another thread.
    pub fn start(limits: Limits) -> io::Result<Self> {
        let index = Arc::new(PrefixIndex::new(limits));
        Ok(Self::new(IndexWriter::start(Arc::clone(&index))?, index, MOST_KEPT))
    }

    /// An empty index that counts against a memory budget, within its share of that.
    ///
    /// # Errors
    /// `io::Error` if the system can't start another thread.
    pub fn start_within(budget: &Arc<Budget>) -> io::Result<Self> {
        let index = Arc::new(PrefixIndex::new(Limits::of_bytes(share(budget))));
        let writer = IndexWriter::start_within(Arc::clone(&index), Arc::clone(budget))?;
        Ok(Self::new(writer, index, most_kept(budget)))
    }

    /// Caches without a thread, for simulations; see [`IndexWriter::inline`].
    pub fn inline(budget: &Arc<Budget>) -> Self {
        let index = Arc::new(PrefixIndex::new(Limits::of_bytes(share(budget))));
        let writer = IndexWriter::inline(Arc::clone(&index), Arc::clone(budget));
        Self::new(writer, index, most_kept(budget))
    }

    fn new(writer: IndexWriter, index: Arc<PrefixIndex>, most_kept: usize) -> Self {
        Self {
            writer: Arc::new(writer),
            index,
            capacities: Capacities::default(),
            fingerprint: Mutex::default(),
            kept: Arc::default(),
            most_kept,
        }
    }

    /// Sets how blocks are hashed from now on.
    pub(super) fn set_fingerprint(&self, fingerprint: Fingerprint) {
        *self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner) = Some(fingerprint);
    }

    /// Fingerprint of the blocks and writer of the index, for an exchange with other replicas. `None` before a producer
    /// uses it.
    pub fn shared(&self) -> Option<(Fingerprint, Arc<IndexWriter>)> {
        let fingerprint = *self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner);
        Some((fingerprint?, Arc::clone(&self.writer)))
    }

    /// The index.
    pub fn index(&self) -> &Arc<PrefixIndex> {
        &self.index
    }

    /// Learned shares of the endpoints' capacities.
    pub(super) fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    /// An endpoint that holds `capacity` blocks gets these. Never waits: they are found a
    /// moment later.
    pub fn learn(&self, endpoint: &Arc<Endpoint>, blocks: &Arc<Blocks>, capacity: usize) {
        self.writer.push(Arc::clone(endpoint), Arc::clone(blocks), capacity);
    }

    /// Keeps the blocks of a request under way. `None` where those of others take all the room:
    /// streams are many, and prompts long.
    pub(super) fn keep(&self, blocks: Arc<Blocks>) -> Option<KeptBlocks> {
        let kept = KeptBlocks { kept: Arc::clone(&self.kept), blocks };
        let len = kept.blocks.len();
        // Counts first: what is dropped is taken off again.
        (self.kept.fetch_add(len, Relaxed).saturating_add(len) <= self.most_kept).then_some(kept)
    }

    /// Waits until everything that was learned before is found.
    pub fn flush(&self) {
        self.writer.flush();
    }

    /// Requests that were not learned, as too many waited.
    pub fn dropped(&self) -> u64 {
        self.writer.counts().dropped
    }
}

/// Blocks of a request under way, which count until this is dropped.
#[derive(Debug)]
pub(super) struct KeptBlocks {
    kept: Arc<AtomicUsize>,
    blocks: Arc<Blocks>,
}

impl KeptBlocks {
    pub(super) fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }
}

impl Drop for KeptBlocks {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.blocks.len(), Relaxed);
    }
}

/// Bytes of the index within a budget.
fn share(budget: &Budget) -> usize {
    usize::try_from(budget.prefix_index()).unwrap_or(usize::MAX)
}

fn most_kept(budget: &Budget) -> usize {
    (share(budget) / KEPT_SHARE / size_of::<u64>()).min(MOST_KEPT)
}

impl Persistent for PrefixCaches {
    fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        self.writer.sweep(snapshot, now_ms);
        self.capacities.sweep(snapshot);
        for endpoint in snapshot.endpoints() {
            endpoint.load().set_cached_blocks(self.index.held(endpoint) as u64);
        }
    }

    fn settle(&self) {
        self.flush();
    }
}
