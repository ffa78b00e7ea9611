//! Index of the blocks that endpoints hold.

mod cells;
mod endpoint_blocks;
mod engine;
mod export;
mod find;
mod holders;
mod import;
mod key;
mod limits;
mod lru;
mod matched;
mod place;
mod set;
mod shard;
mod shards;
mod table;
mod updates;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::endpoints::{Endpoint, Snapshot, View};

use super::Blocks;

use holders::{Holder, Holders, Sources};
use lru::{OWN, PUBLISHED};

pub use endpoint_blocks::{EndpointBlocks, EndpointId, OriginId};
pub use engine::{EngineIndex, EngineMatch, EngineStatus, TierWeights};
pub use export::Export;
pub use import::Restored;
pub use limits::Limits;
pub use matched::Matched;
pub use updates::Updates;

/// Index of the blocks that endpoints hold, as far as known from what was sent to it.
///
/// Each endpoint keeps the blocks that were added last, up to its capacity; of those that were
/// added together the first ones. Looking blocks
/// up changes nothing, and takes no lock: it never waits for writers.
///
/// An endpoint is known by its slot. The index keeps a clone of it until the endpoint is
/// removed with all its entries, so whoever gets its number next finds nothing under it.
/// Slots from 65,535 on are not indexed.
pub struct PrefixIndex {
    holders: Holders,
    updates: updates::UpdateQueue,
    origins: import::Origins,
    matched: matched::Counts,
}

impl PrefixIndex {
    /// Origins whose blocks are known at a time. Others are refused until one expires.
    pub const MAX_ORIGINS: usize = import::Origins::MAX;

    /// An empty index.
    pub fn new(limits: Limits) -> Self {
        Self {
            holders: Holders::new(limits),
            updates: updates::UpdateQueue::default(),
            origins: import::Origins::default(),
            matched: matched::Counts::default(),
        }
    }

    /// Number of leading blocks that each candidate holds without a gap from the first
    /// block of a prompt, summed over the prompts. `matched` gets one number per endpoint
    /// of the snapshot, by its position; 0 for what is no candidate.
    pub fn find(&self, blocks: &Blocks, candidates: View<'_>, matched: &mut Vec<u32>) {
        find::find(&self.holders.shards.tables(), blocks, candidates, matched);
    }

    /// Records that an endpoint was sent a prompt of these blocks. All of them become its most
    /// recent ones, the head of the prompt the most recent of all, and the endpoint keeps the
    /// `capacity` most recent. So the tail of a prompt is forgotten before its head, as in the
    /// caches of engines, and of a prompt longer than `capacity` the head is kept. Hashes that
    /// cover the blocks before them make what is kept of any prompt a prefix of it: whoever
    /// adds a block adds those before it, which are more recent then.
    ///
    /// When the index is full, the endpoint's own oldest blocks make room; where it has none
    /// but these, the oldest of the endpoint with the most. An endpoint that has the most itself
    /// gets no more.
    pub fn add(&self, endpoint: &Endpoint, hashes: &[u64], capacity: usize) {
        if !self.updates.is_on() {
            let sources = Sources { held: OWN, new: OWN };
            return self.holders.add(endpoint, hashes, sources, Some(capacity), |_, _| {});
        }
        let may_republish = self.updates.may_republish();
        let held = if may_republish { OWN | PUBLISHED } else { OWN };
        // Parts of the prompt to publish, nearly always its end, and blocks in them that were held.
        let (mut parts, mut again) = (SmallVec::<[Range<usize>; 4]>::new(), 0);
        let (mut matched, mut has_gap) = (Matched::default(), false);
        self.holders.add(
            endpoint,
            hashes,
            Sources { held, new: OWN | PUBLISHED },
            Some(capacity),
            |at, had| {
                match had {
                    Some(had) if !has_gap => matched.count(had),
                    _ => has_gap = true,
                }
                if had.is_some_and(|had| had & PUBLISHED != 0 || !may_republish) {
                    return;
                }
                again += usize::from(had.is_some());
                match parts.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => parts.push(at..at + 1),
                }
            },
        );
        self.matched.add(matched);
        if !parts.is_empty() {
            let parts = parts.into_iter().filter_map(|part| hashes.get(part));
            self.updates.record(EndpointId::of(endpoint), capacity, parts, again);
        }
    }

    /// Blocks that an endpoint holds.
    pub fn held(&self, endpoint: &Endpoint) -> usize {
        self.holders.get(endpoint.slot()).map_or(0, |holder| holder.len())
    }

    /// Drops everything that an endpoint holds.
    pub fn remove(&self, endpoint: &Endpoint) {
        self.holders.drop_all(self.holders.get(endpoint.slot()));
    }

    /// Drops the endpoints that are not in the snapshot, and forgets origins that have not reported for their time. An
    /// endpoint costs what it holds, an origin one look at everything.
    pub fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        self.sweep_slots(snapshot.slots().to_vec(), now_ms);
    }

    /// The same, with the slots of the snapshot.
    pub(super) fn sweep_slots(&self, mut slots: Vec<u32>, now_ms: u64) {
        slots.sort_unstable();
        let gone = |holder: &Arc<Holder>| slots.binary_search(&holder.slot_number()).is_err();
        self.holders.drop_all(self.holders.all().into_iter().filter(gone));
        self.origins.expire(&self.holders, now_ms);
    }

    /// Queues so many of the blocks that are added from now on for
    /// [`take_updates`](Self::take_updates); 0, as at the start: none. A full queue drops its oldest.
    ///
    /// They take 8 bytes each, and 16 more where the one before was another endpoint's.
    pub fn keep_updates(&self, blocks: usize) {
        self.updates.set_room(blocks);
    }

    /// Number of queued blocks, which [`take_updates`](Self::take_updates) returns.
    pub fn pending_updates(&self) -> usize {
        self.updates.len()
    }

    /// Takes up to so many of the blocks that this process added and the stream does not have, the oldest first. They were
    /// not held, or nobody published them since [`republish`](Self::republish). Evictions are not published.
    ///
    /// An import takes the new blocks of a prompt for more recent than those before them that were
    /// published earlier.
    pub fn take_updates(&self, max_blocks: usize) -> Updates {
        self.updates.take(max_blocks)
    }

    /// Lets published blocks be published again at their next use, so that the stream's end has what is in constant
    /// use, and other processes don't evict it as old. Counts for endpoints that got a quarter of their blocks since the
    /// last time. With `anyway` it counts for all, and so many blocks are republished in addition to one for every two
    /// that are new, in the order of use.
    pub fn republish(&self, anyway: Option<usize>) {
        self.updates.republish(anyway.unwrap_or_default());
        let mark = |holder: Arc<Holder>| holder.lock().recent.mark_unpublished(anyway.is_some());
        self.holders.all().into_iter().for_each(mark);
    }

    /// Blocks at the beginning of added prompts that their endpoint held already, since the last time. None unless
    /// [updates are kept](Self::keep_updates).
    pub fn take_matched(&self) -> Matched {
        self.matched.take()
    }

    /// Begins an export of what this process added and is still held: of each endpoint the most
    /// recent, at most so many blocks in all.
    pub fn export(&self, max_blocks: usize) -> Export {
        Export::own(&self.holders, max_blocks)
    }

    /// The same where the stream has lost everything: blocks that were [restored](Self::restore) belong to it, unless
    /// another process has published them since [`republish`](Self::republish). Each process begins with another
    /// endpoint, so that those which export at the same time share the work.
    pub fn export_lost(&self, max_blocks: usize, process: OriginId) -> Export {
        Export::lost(&self.holders, max_blocks, process)
    }

    /// Blocks of the next endpoint of an export, the most recent first. A hash may differ from the one
    /// that was added; it stands for the same block.
    pub fn export_next(&self, export: &mut Export) -> Option<EndpointBlocks> {
        export.next(&self.holders)
    }

    /// Takes the blocks that another process published, as if they had been added here; none: a heartbeat. An origin that
    /// is silent for `ttl` is forgotten, and its blocks count as [restored](Self::restore). Returns whether there was
    /// room for the origin.
    ///
    /// Twelve origins are known apart. When there are more, the others expire together. The endpoints are locked for
    /// some microseconds at a time.
    pub fn import(
        &self,
        origin: OriginId,
        held: &[(Arc<Endpoint>, EndpointBlocks)],
        now_ms: u64,
        ttl: Duration,
    ) -> bool {
        self.origins.import(&self.holders, origin, held, now_ms, ttl)
    }

    /// Takes what was published earlier than all that an endpoint holds: its blocks become the oldest ones,
    /// and those that are held stay where they are. It evicts nothing.
    pub fn restore(&self, endpoint: &Endpoint, held: &EndpointBlocks) -> Restored {
        import::restore(&self.holders, endpoint, held)
    }

    /// Origins that are known.
    pub fn origins(&self) -> usize {
        self.origins.len()
    }

    /// Times that origins have expired whose blocks count as restored since.
    pub fn expiries(&self) -> u64 {
        self.origins.expiries()
    }

    /// Returns `true` if an endpoint holds as much as it may.
    pub fn is_full(&self, endpoint: &Endpoint) -> bool {
        self.holders.get(endpoint.slot()).is_some_and(|holder| {
            let held = holder.lock();
            held.recent.len() >= held.capacity()
        })
    }

    /// Drops blocks of the largest endpoints until the index takes no more than so many
    /// bytes, and gives back what they took. Returns what it takes then: what is left of an
    /// empty index may be more.
    pub fn shrink_to(&self, bytes: usize) -> usize {
        let mut keep = self.entries();
        if self.bytes() <= bytes {
            return self.bytes();
        }
        loop {
            // First what is empty.
            self.holders.shrink_to(keep);
            let (now, entries) = (self.bytes(), self.entries());
            if now <= bytes || entries == 0 {
                return now;
            }
            // What an entry takes depends on who else has its block, so this comes closer
            // step by step.
            let share = bytes as f64 / now as f64;
            keep = ((entries as f64 * share) as usize).min(entries - 1);
        }
    }

    /// Lets it grow from now on, within its limits, or not. Where it may not, what is added
    /// takes the place of older blocks.
    pub fn may_grow(&self, may: bool) {
        self.holders.may_grow(may);
    }

    /// Returns `true` if there may be another entry without evicting one.
    pub fn has_room(&self) -> bool {
        self.holders.has_room()
    }

    /// Entries that there may be within the limits.
    pub fn limit(&self) -> usize {
        self.holders.limit()
    }

    /// Entries: a block at an endpoint is one.
    pub fn entries(&self) -> usize {
        self.holders.entries()
    }

    /// Entries that had to make room since the start though their endpoint was not full: the
    /// whole index was, or was made smaller.
    pub fn crowded_out(&self) -> usize {
        self.holders.crowded_out()
    }

    /// Bytes that the index takes, computed from what it has allocated.
    pub fn bytes(&self) -> usize {
        self.holders.bytes() + self.updates.bytes() + size_of::<Self>()
    }
}

/// The hash that an export has for this one: the same block to every index.
pub(super) fn representative(hash: u64) -> u64 {
    key::Key::of(hash).hash()
}

impl fmt::Debug for PrefixIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixIndex({} entries, {} bytes)", self.entries(), self.bytes())
    }
}

#[cfg(test)]
mod exchange_tests;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod tests;
