//! The KV cache: blocks shared by prefix, evicted least recently used first.

mod known;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use known::Known;

/// Bytes of prompt text that count as one token.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// The chained hashes of the full blocks of a prompt: each covers its own bytes and
/// everything before them. `scope` is what keeps caches apart, the model's name.
pub fn block_hashes(scope: &str, text: &[u8], block_size: u32) -> Vec<u64> {
    let mut parent = xxh3_64(scope.as_bytes());
    text.chunks_exact(block_size.max(1) as usize * BYTES_PER_TOKEN)
        .map(|block| {
            parent = xxh3_64_with_seed(block, parent);
            parent
        })
        .collect()
}

/// The blocks that one request holds. Give it back with [`KvCache::release`].
#[derive(Debug, Default)]
pub struct Lease {
    // In the order of the prompt. These may be held by other requests too.
    shared: Vec<u32>,
    private: u32,
}

impl Lease {
    /// Number of blocks held.
    pub fn len(&self) -> u32 {
        self.shared.len() as u32 + self.private
    }

    /// Returns `true` if no block is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug)]
struct Block {
    hash: u64,
    holders: u32,
    // Neighbours in the list of blocks that nobody holds; only then meaningful.
    older: u32,
    newer: u32,
}

const NONE: u32 = u32::MAX;

/// Hash of blocks whose content was forgotten while requests held them. No other block has it.
const FORGOTTEN: u64 = u64::MAX;

/// Change of what a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvChange {
    /// The block with this hash is there.
    Stored(u64),
    /// The block with this hash is gone.
    Removed(u64),
}

/// A cache of a fixed number of blocks.
///
/// A block is private (its content is not complete, or nobody else can want it),
/// shared (known by its hash and held by requests), idle (known by its hash, held by
/// nobody, evicted when room is needed) or free.
#[derive(Debug)]
pub struct KvCache {
    total: u32,
    private: u32,
    shared: u32,
    idle: u32,
    known: Known,
    blocks: Vec<Block>,
    // Places in `blocks` that are not in use.
    vacant: Vec<u32>,
    oldest: u32,
    newest: u32,
    evictions: u64,
    releases: u64,
    // Changes since they were taken last, where somebody wants them.
    changes: Option<Vec<KvChange>>,
}

impl KvCache {
    /// An empty cache of `total` blocks.
    pub fn new(total: u32) -> Self {
        Self {
            total,
            private: 0,
            shared: 0,
            idle: 0,
            known: Known::default(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            oldest: NONE,
            newest: NONE,
            evictions: 0,
            releases: 0,
            changes: None,
        }
    }

    /// Keeps changes from now on, for [`take_changes`](Self::take_changes).
    pub fn keep_changes(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// Changes since this was called last, in their order.
    pub fn take_changes(&mut self) -> Vec<KvChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Forgets all content, as a restart does, and which changes led there. Requests keep the blocks that they hold,
    /// which match no prefix.
    pub fn forget(&mut self) {
        while self.idle > 0 {
            self.evict_oldest();
        }
        self.known = Known::default();
        self.blocks.iter_mut().for_each(|block| block.hash = FORGOTTEN);
        self.take_changes();
    }

    fn changed(&mut self, change: KvChange) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
    }

    /// Number of blocks.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Blocks held by requests. Idle blocks don't count, as in vLLM's usage.
    pub fn used(&self) -> u32 {
        self.private + self.shared
    }

    /// Unheld blocks that still match a prefix.
    pub fn idle(&self) -> u32 {
        self.idle
    }

    /// `used` by `total`, in 0..=1.
    pub fn usage(&self) -> f64 {
        f64::from(self.used()) / f64::from(self.total.max(1))
    }

    /// Blocks that lost their content to make room, since the start.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Leases given back, since the start. While it is the same, no block became available.
    pub fn releases(&self) -> u64 {
        self.releases
    }

    /// Number of blocks of `hashes` that are present, counted from the first without a gap.
    pub fn matched(&self, hashes: &[u64]) -> usize {
        let mut known = self.known.reader();
        hashes.iter().take_while(|hash| known.get(**hash).is_some()).count()
    }

    /// Takes hold of the present blocks from the start of `hashes`.
    pub fn hold_prefix(&mut self, hashes: &[u64]) -> Lease {
        let mut known = self.known.reader();
        let shared: Vec<u32> = hashes.iter().map_while(|hash| known.get(*hash)).collect();
        for at in &shared {
            if self.blocks[*at as usize].holders == 0 {
                self.unlink(*at);
                self.shared += 1;
            }
            self.blocks[*at as usize].holders += 1;
        }
        Lease { shared, private: 0 }
    }

    /// Adds `count` private blocks to the lease, evicting idle ones if need be.
    /// All or nothing; false when there are not enough.
    pub fn take(&mut self, lease: &mut Lease, count: u32) -> bool {
        if count > self.total - self.used() {
            return false;
        }
        let free = self.total - self.used() - self.idle;
        for _ in free..count {
            self.evict_oldest();
        }
        self.private += count;
        lease.private += count;
        true
    }

    /// Makes a private block of the lease known by its hash. When another request
    /// computed the same block before, this one stays private, as in vLLM.
    pub fn publish(&mut self, lease: &mut Lease, hash: u64) {
        let place = self.vacant.last().copied().unwrap_or(self.blocks.len() as u32);
        if lease.private == 0 || !self.known.insert(hash, place) {
            return;
        }
        lease.private -= 1;
        self.private -= 1;
        self.shared += 1;
        let block = Block { hash, holders: 1, older: NONE, newer: NONE };
        match self.vacant.pop() {
            Some(at) => self.blocks[at as usize] = block,
            None => self.blocks.push(block),
        }
        lease.shared.push(place);
        self.changed(KvChange::Stored(hash));
    }

    /// Gives all blocks of the lease back. Those with a hash become idle, the end of
    /// the prompt first, so that it goes before the beginning, which more can use.
    pub fn release(&mut self, lease: Lease) {
        self.releases += 1;
        self.private -= lease.private;
        for at in lease.shared.into_iter().rev() {
            let block = &mut self.blocks[at as usize];
            block.holders -= 1;
            if block.holders == 0 {
                self.shared -= 1;
                self.link_newest(at);
            }
        }
    }

    fn link_newest(&mut self, at: u32) {
        let block = &mut self.blocks[at as usize];
        block.older = self.newest;
        block.newer = NONE;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.blocks[newest as usize].newer = at,
        }
        self.newest = at;
        self.idle += 1;
    }

    fn unlink(&mut self, at: u32) {
        let Block { older, newer, .. } = self.blocks[at as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        self.idle -= 1;
    }

    fn evict_oldest(&mut self) {
        let at = self.oldest;
        if at == NONE {
            return;
        }
        self.unlink(at);
        let hash = self.blocks[at as usize].hash;
        self.known.remove(hash);
        self.vacant.push(at);
        self.evictions += 1;
        if hash != FORGOTTEN {
            self.changed(KvChange::Removed(hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(cache: &mut KvCache, hashes: &[u64]) -> Lease {
        let mut lease = cache.hold_prefix(hashes);
        let missing = hashes.len() as u32 - lease.len();
        assert!(cache.take(&mut lease, missing));
        for hash in &hashes[hashes.len() - missing as usize..] {
            cache.publish(&mut lease, *hash);
        }
        lease
    }

    #[test]
    fn hashes_chain_and_leave_the_partial_block_out() {
        let one = block_hashes("m", &[b'a'; 100], 16);
        assert_eq!(one.len(), 1);
        let two = block_hashes("m", &[b'a'; 128], 16);
        assert_eq!((two.len(), two[0]), (2, one[0]));
        assert_ne!(two[0], two[1], "equal content after a different prefix");
        assert_ne!(block_hashes("other", &[b'a'; 64], 16), one);
    }

    #[test]
    fn least_recently_used_blocks_are_evicted_tails_first() {
        let mut cache = KvCache::new(4);
        let first = fill(&mut cache, &[1, 2]);
        let second = fill(&mut cache, &[3, 4]);
        cache.release(first);
        cache.release(second);
        assert_eq!((cache.used(), cache.idle()), (0, 4));
        // Using 1,2 again makes 3,4 the oldest.
        let again = cache.hold_prefix(&[1, 2]);
        cache.release(again);
        let mut other = Lease::default();
        assert!(cache.take(&mut other, 1));
        assert_eq!((cache.matched(&[3, 4]), cache.matched(&[1, 2])), (1, 2));
        assert!(cache.take(&mut other, 2));
        assert_eq!((cache.matched(&[3, 4]), cache.matched(&[1, 2])), (0, 1));
        assert_eq!(cache.evictions(), 3);
    }

    #[test]
    fn held_blocks_are_never_evicted() {
        let mut cache = KvCache::new(3);
        let held = fill(&mut cache, &[1, 2]);
        let mut other = Lease::default();
        assert!(!cache.take(&mut other, 2));
        assert!(other.is_empty(), "all or nothing");
        assert!(cache.take(&mut other, 1));
        assert_eq!((cache.matched(&[1, 2]), cache.usage()), (2, 1.0));
        cache.release(held);
        cache.release(other);
    }

    #[test]
    fn recorded_changes_match_the_cache() {
        let mut cache = KvCache::new(3);
        cache.keep_changes();
        let lease = fill(&mut cache, &[1, 2, 3]);
        cache.release(lease);
        let lease = fill(&mut cache, &[1, 4]);
        let [stored, removed]: [fn(u64) -> KvChange; 2] = [KvChange::Stored, KvChange::Removed];
        assert_eq!(cache.take_changes(), [stored(1), stored(2), stored(3), removed(3), stored(4)]);
        assert_eq!(cache.take_changes(), []);
        cache.forget();
        assert_eq!((cache.matched(&[1]), cache.used(), cache.idle()), (0, 2, 0));
        cache.release(lease);
        let all = fill(&mut cache, &[1, 2, 3]);
        assert_eq!(
            cache.take_changes(),
            [stored(1), stored(2), stored(3)],
            "nobody can miss what was forgotten"
        );
        assert_eq!(cache.matched(&[1, 2, 3]), 3);
        cache.release(all);
    }

    #[derive(Debug, Clone)]
    enum Act {
        Start { family: u64, blocks: usize, extra: u32 },
        End(usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let start = (0..5u64, 0..9usize, 0..4u32).prop_map(|(family, blocks, extra)| Act::Start {
            family,
            blocks,
            extra,
        });
        prop::collection::vec(prop_oneof![start, (0..8usize).prop_map(Act::End)], 0..200)
    }

    proptest! {
        #[test]
        fn usage_stays_within_the_total_and_returns_to_zero(acts in acts(), total in 1..24u32) {
            let mut cache = KvCache::new(total);
            let mut leases: Vec<Lease> = Vec::new();
            for act in acts {
                match act {
                    Act::Start { family, blocks, extra } => {
                        let hashes: Vec<u64> = (0..blocks as u64).map(|i| family * 100 + i).collect();
                        let mut lease = cache.hold_prefix(&hashes);
                        let hit = lease.len() as usize;
                        if cache.take(&mut lease, (blocks - hit) as u32 + extra) {
                            for hash in &hashes[hit..] {
                                cache.publish(&mut lease, *hash);
                            }
                            prop_assert_eq!(lease.len(), blocks as u32 + extra);
                            leases.push(lease);
                        } else {
                            cache.release(lease);
                        }
                    }
                    Act::End(at) if at < leases.len() => cache.release(leases.swap_remove(at)),
                    Act::End(_) => {}
                }
                prop_assert!(cache.used() + cache.idle() <= total);
                prop_assert!((0.0..=1.0).contains(&cache.usage()));
                // What nobody shares is counted once, what is shared at most once per holder.
                let held: u32 = leases.iter().map(Lease::len).sum();
                prop_assert!(cache.used() <= held);
            }
            for lease in leases.drain(..) {
                cache.release(lease);
            }
            prop_assert_eq!(cache.used(), 0);
            let mut all = Lease::default();
            prop_assert!(cache.take(&mut all, total), "every block can be had again");
            prop_assert_eq!(cache.idle(), 0);
        }
    }
}
