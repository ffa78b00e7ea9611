//! Assumed content of the endpoints' prefix caches. It outlives a configuration.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use usher_core::endpoints::{Endpoint, Snapshot};
use usher_core::memory::{Budget, IndexShare};
use usher_core::prefix::share::Fingerprint;
use usher_core::prefix::{Blocks, IndexWriter, Limits, PrefixIndex};
use usher_plugin::{Persistent, State};

use super::capacity::Capacities;

/// The index of prefixes, the writer that fills it, and the learned capacities.
#[derive(Debug)]
pub struct PrefixCaches {
    index: Arc<PrefixIndex>,
    writer: Arc<IndexWriter>,
    /// Learned by all that had the plugin's name: they are the same for blocks of any size.
    capacities: Arc<Capacities>,
    /// Fingerprint of the blocks; `None`: it is not shared.
    fingerprint: Option<Fingerprint>,
    /// Held for as long as the index is, which counts there.
    _share: Option<Arc<Share>>,
    /// Producers that use it: of the configuration that runs, and of one that is built.
    producers: AtomicUsize,
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
        let writer = IndexWriter::start(Arc::clone(&index))?;
        Ok(Self::new((index, writer), Arc::default(), None, MOST_KEPT))
    }

    /// The caches of the producer of this name, as blocks of this fingerprint. Hashes of another one stand for other
    /// blocks, so that it has caches of its own. They count against the memory budget of the state.
    ///
    /// # Errors
    /// `io::Error` if the system can't start another thread.
    pub(super) fn of(state: &State, name: &str, fingerprint: Fingerprint) -> io::Result<Arc<Self>> {
        let capacities = state.of(name, Capacities::default);
        let budget = state.budget();
        let counted = state.of(name, || Share(IndexWriter::share(budget)));
        state.try_of(&format!("{name} {fingerprint}"), || {
            let index = Arc::new(PrefixIndex::new(Limits::of_bytes(share(budget))));
            // A clock that is stopped is that of a simulation, or of a trial.
            let within = Arc::clone(&counted.0);
            let writer = match state.clock().is_stopped() {
                true => IndexWriter::inline(Arc::clone(&index), within),
                false => IndexWriter::start_within(Arc::clone(&index), within)?,
            };
            let new = Self::new((index, writer), capacities, Some(fingerprint), most_kept(budget));
            Ok(Self { _share: Some(counted), ..new })
        })
    }

    fn new(
        (index, writer): (Arc<PrefixIndex>, IndexWriter),
        capacities: Arc<Capacities>,
        fingerprint: Option<Fingerprint>,
        most_kept: usize,
    ) -> Self {
        Self {
            writer: Arc::new(writer),
            index,
            capacities,
            fingerprint,
            producers: AtomicUsize::new(0),
            _share: None,
            kept: Arc::default(),
            most_kept,
        }
    }

    /// A producer begins to use it.
    pub(super) fn joined(&self) {
        self.producers.fetch_add(1, Relaxed);
    }

    /// A producer uses it no more. Without any other, what is known is dropped with the next sweep, though requests that the
    /// producer routed may go on: it would take the room of what takes its place.
    pub(super) fn left(&self) {
        self.producers.fetch_sub(1, Relaxed);
    }

    /// Returns `true` if a producer uses it.
    pub(super) fn is_used(&self) -> bool {
        self.producers.load(Relaxed) > 0
    }

    /// Fingerprint of the blocks and writer of the index, for an exchange with other replicas. `None` if no producer
    /// uses it.
    pub fn shared(&self) -> Option<(Fingerprint, Arc<IndexWriter>)> {
        Some((self.fingerprint.filter(|_| self.is_used())?, Arc::clone(&self.writer)))
    }

    /// The index.
    pub fn index(&self) -> &Arc<PrefixIndex> {
        &self.index
    }

    /// Entries that the index may have.
    pub(super) fn limit(&self) -> usize {
        self.writer.limit()
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

/// Share of the caches of a producer's name in the memory of indexes. Those of another block size take the place of the ones
/// before them: requests under way keep these for as long as they last.
#[derive(Debug)]
struct Share(Arc<IndexShare>);

impl Persistent for Share {
    fn sweep(&self, _: &Snapshot, _: u64) {}
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
        if !self.is_used() {
            return self.writer.clear();
        }
        self.writer.sweep(snapshot, now_ms);
        for endpoint in snapshot.endpoints() {
            endpoint.load().set_cached_blocks(self.index.held(endpoint) as u64);
        }
    }

    fn settle(&self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use usher_core::endpoints::Clock;
    use usher_core::prefix::share::Scheme;

    use super::*;

    #[test]
    fn blocks_of_another_size_take_the_memory_of_those_before() {
        let state = State::within(Clock::stopped(), Arc::new(Budget::new(u64::MAX, 1 << 20)));
        let caches = |name, block_tokens, follows_engines| {
            let block_tokens = NonZeroU32::new(block_tokens).unwrap();
            let scheme = Scheme { producer: ("type", name), block_tokens, follows_engines };
            PrefixCaches::of(&state, name, Fingerprint::of(scheme)).unwrap()
        };
        let before = caches("p", 16, false);
        let limit = before.limit();
        for (block_tokens, follows_engines) in [(32, false), (16, true)] {
            assert_eq!(caches("p", block_tokens, follows_engines).limit(), limit);
        }
        assert_eq!(before.limit(), limit);
        let beside = caches("q", 16, false);
        assert_eq!([before.limit(), beside.limit()], [limit / 2; 2]);
    }
}
