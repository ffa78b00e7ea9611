//! Which endpoint holds which blocks.

mod exchange;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::endpoints::{Endpoint, Slot, Snapshot, View};

use super::Blocks;

pub use exchange::{Export, Held, Imported, Mark};

/// How much a [`PrefixIndex`] may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries over all endpoints: a block at an endpoint is one. An entry takes 32 bytes
    /// at most, so this bounds the memory, too.
    pub entries: usize,
    /// Blocks that an endpoint of which only others told is taken to hold.
    pub capacity: usize,
    /// Blocks added last that are remembered for [`PrefixIndex::export_since`], 8 bytes
    /// each; 0 where nobody asks.
    pub recent: usize,
}

impl Limits {
    /// Bytes that an entry takes at most.
    pub const BYTES_PER_ENTRY: usize = 32;

    /// As many entries as fit into so many bytes; no export.
    pub fn of_bytes(bytes: usize) -> Self {
        Self { entries: bytes / Self::BYTES_PER_ENTRY, ..Self::default() }
    }
}

impl Default for Limits {
    /// 16 million entries, half a GiB when it is full: 500 endpoints with as many blocks as
    /// the peer takes an endpoint to hold. No export.
    fn default() -> Self {
        Self { entries: 1 << 24, capacity: 31_250, recent: 0 }
    }
}

/// Which endpoint holds which blocks, as far as can be told from what was sent to it.
///
/// Each endpoint keeps the blocks that were added last, up to its capacity. Looking blocks
/// up changes nothing.
///
/// An endpoint is known by its slot. The index keeps a clone of it until the endpoint's
/// last entry is gone, so whoever gets its number next finds nothing under it.
pub struct PrefixIndex {
    limits: Limits,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    endpoints: BTreeMap<u32, Holder>,
    holders: HashMap<u64, BTreeSet<u32>>,
    clock: u64,
    entries: usize,
    exchange: exchange::State,
}

struct Holder {
    _slot: Arc<Slot>,
    id: Arc<str>,
    capacity: usize,
    /// By block: when it was added last, and who says so.
    blocks: HashMap<u64, (u64, u16)>,
    order: BTreeMap<u64, u64>,
}

/// The bit of what was added here, and not imported.
const OWN: u16 = 1;

impl PrefixIndex {
    /// An empty index.
    pub fn new(limits: Limits) -> Self {
        Self { limits, inner: Mutex::default() }
    }

    /// How many leading blocks each candidate holds without a gap from the first block of a
    /// prompt, summed over the prompts. `matched` gets one number per endpoint of the
    /// snapshot, by its position; 0 for what is no candidate.
    pub fn find(&self, blocks: &Blocks, candidates: View<'_>, matched: &mut Vec<u32>) {
        let inner = self.lock();
        let slots = candidates.snapshot().slots();
        matched.clear();
        matched.resize(slots.len(), 0);
        for prompt in blocks.prompts() {
            let mut running = candidates.indices().to_vec();
            for hash in prompt {
                let Some(holders) = inner.holders.get(hash) else { break };
                running.retain(|&position| holders.contains(&slots[position as usize]));
                if running.is_empty() {
                    break;
                }
                running.iter().for_each(|&position| matched[position as usize] += 1);
            }
        }
    }

    /// An endpoint gets these blocks. All of them become its most recent ones, the last of
    /// them the most recent of all, and it keeps the `capacity` most recent.
    ///
    /// When the index is full, the endpoint's own oldest blocks make room; where it has none
    /// but these, the oldest of the endpoint with the most.
    pub fn add(&self, endpoint: &Endpoint, hashes: &[u64], capacity: usize) {
        let mut inner = self.lock();
        inner.holder(endpoint.slot(), endpoint.id(), capacity).capacity = capacity;
        let new = inner.insert(endpoint.slot().number(), hashes, OWN, self.limits.entries);
        inner.exchange.record(endpoint.id(), &new, self.limits.recent);
    }

    /// Drops everything that an endpoint holds.
    pub fn remove(&self, endpoint: &Endpoint) {
        self.lock().remove(endpoint.slot().number());
    }

    /// Drops the endpoints that are not in the snapshot, and what came from origins that
    /// have not reported for their time. Costs what is dropped, not what is kept.
    pub fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        let mut inner = self.lock();
        let here: HashSet<u32> = snapshot.slots().iter().copied().collect();
        let gone: Vec<u32> = inner.endpoints.keys().copied().filter(|slot| !here.contains(slot)).collect();
        gone.into_iter().for_each(|slot| inner.remove(slot));
        let expired = inner.exchange.expire(now_ms);
        if expired != 0 {
            inner.forget(expired);
        }
    }

    /// Drops blocks of the largest endpoints until the index takes no more than so many
    /// bytes, and gives back what they took. Returns what it takes then.
    pub fn shrink_to(&self, bytes: usize) -> usize {
        let mut inner = self.lock();
        while inner.entries * Limits::BYTES_PER_ENTRY > bytes {
            inner.evict_from_largest();
        }
        inner.entries * Limits::BYTES_PER_ENTRY
    }

    /// Entries: a block at an endpoint is one.
    pub fn entries(&self) -> usize {
        self.lock().entries
    }

    /// Bytes that the index takes, computed from what it has allocated.
    pub fn bytes(&self) -> usize {
        self.lock().entries * Limits::BYTES_PER_ENTRY
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn holder(&mut self, slot: &Arc<Slot>, id: &Arc<str>, capacity: usize) -> &mut Holder {
        self.endpoints.entry(slot.number()).or_insert_with(|| Holder {
            _slot: Arc::clone(slot),
            id: Arc::clone(id),
            capacity,
            blocks: HashMap::new(),
            order: BTreeMap::new(),
        })
    }

    /// Returns the blocks that this source had not told of.
    fn insert(&mut self, slot: u32, hashes: &[u64], source: u16, max: usize) -> Vec<u64> {
        let began = self.clock;
        let mut new = Vec::new();
        for &hash in hashes {
            let Some(holder) = self.endpoints.get_mut(&slot) else { return new };
            let held = holder.blocks.contains_key(&hash);
            if !held && self.entries >= max {
                if holder.order.first_key_value().is_some_and(|(&stamp, _)| stamp <= began) {
                    self.evict(slot);
                } else {
                    self.evict_from_largest();
                }
            }
            let Some(holder) = self.endpoints.get_mut(&slot) else { return new };
            self.clock += 1;
            let (stamp, sources) = holder.blocks.entry(hash).or_insert((0, 0));
            holder.order.remove(stamp);
            *stamp = self.clock;
            holder.order.insert(self.clock, hash);
            if *sources & source == 0 {
                *sources |= source;
                new.push(hash);
            }
            if !held {
                self.entries += 1;
                self.holders.entry(hash).or_default().insert(slot);
            }
            while self.endpoints.get(&slot).is_some_and(|h| h.blocks.len() > h.capacity) {
                self.evict(slot);
            }
        }
        while self.endpoints.get(&slot).is_some_and(|h| h.blocks.len() > h.capacity) {
            self.evict(slot);
        }
        new
    }

    fn evict(&mut self, slot: u32) {
        let Some(holder) = self.endpoints.get_mut(&slot) else { return };
        if let Some((_, hash)) = holder.order.pop_first() {
            holder.blocks.remove(&hash);
            self.let_go(hash, slot);
        }
    }

    fn evict_from_largest(&mut self) {
        let largest =
            self.endpoints.iter().max_by_key(|(slot, h)| (h.blocks.len(), std::cmp::Reverse(**slot)));
        if let Some(slot) = largest.map(|(slot, _)| *slot) {
            self.evict(slot);
        }
    }

    fn let_go(&mut self, hash: u64, slot: u32) {
        self.entries -= 1;
        if let Some(holders) = self.holders.get_mut(&hash) {
            holders.remove(&slot);
            if holders.is_empty() {
                self.holders.remove(&hash);
            }
        }
    }

    fn remove(&mut self, slot: u32) {
        if let Some(holder) = self.endpoints.remove(&slot) {
            holder.blocks.keys().for_each(|&hash| self.let_go(hash, slot));
        }
    }

    /// Drops what only these sources told of.
    fn forget(&mut self, sources: u16) {
        let mut gone = Vec::new();
        for (&slot, holder) in &mut self.endpoints {
            for (&hash, (stamp, told)) in &mut holder.blocks {
                *told &= !sources;
                if *told == 0 {
                    holder.order.remove(stamp);
                    gone.push((slot, hash));
                }
            }
            holder.blocks.retain(|_, (_, told)| *told != 0);
        }
        gone.into_iter().for_each(|(slot, hash)| self.let_go(hash, slot));
    }
}

impl fmt::Debug for PrefixIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixIndex({} entries)", self.entries())
    }
}
