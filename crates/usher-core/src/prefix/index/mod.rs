//! Index of the blocks that endpoints hold.

mod cells;
mod engine;
mod export;
mod find;
mod holders;
mod import;
mod key;
mod limits;
mod recent;
mod set;
mod shard;
mod shards;
mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoints::{Endpoint, Snapshot, View};

use super::Blocks;

use holders::{Holder, Holders};

pub use engine::{EngineIndex, EngineMatch, EngineStatus, TierWeights};
pub use export::{Export, Held, Mark};
pub use import::Imported;
pub use limits::Limits;

/// Index of the blocks that endpoints hold, as far as can be told from what was sent to it.
///
/// Each endpoint keeps the blocks that were added last, up to its capacity; of those that were
/// added together the first ones. Looking blocks
/// up changes nothing, and takes no lock: it never waits for somebody who adds.
///
/// An endpoint is known by its slot. The index keeps a clone of it until the endpoint is
/// removed with all its entries, so whoever gets its number next finds nothing under it.
/// Slots from 65,535 on are not indexed.
pub struct PrefixIndex {
    holders: Holders,
    ring: export::Ring,
    origins: import::Origins,
}

impl PrefixIndex {
    /// Origins whose blocks are known at a time. Others are refused until one expires.
    pub const MAX_ORIGINS: usize = import::Origins::MAX;

    /// An empty index.
    pub fn new(limits: Limits) -> Self {
        Self {
            holders: Holders::new(limits),
            ring: export::Ring::new(limits.recent),
            origins: import::Origins::default(),
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
        let mut new = Vec::new();
        self.holders.add(endpoint, hashes, recent::OWN, Some(capacity), |hash| {
            if self.ring.is_used() {
                new.push(hash);
            }
        });
        self.ring.record(endpoint.identity(), &new);
    }

    /// Blocks that an endpoint holds.
    pub fn held(&self, endpoint: &Endpoint) -> usize {
        self.holders.get(endpoint.slot()).map_or(0, |holder| holder.len())
    }

    /// Drops everything that an endpoint holds.
    pub fn remove(&self, endpoint: &Endpoint) {
        self.holders.drop_all(self.holders.get(endpoint.slot()));
    }

    /// Drops the endpoints that are not in the snapshot, and what came from origins that
    /// have not reported for their time. An endpoint costs what it holds, an origin one look
    /// at everything.
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

    /// Mark of now: what is added from here on comes with
    /// [`export_since`](Self::export_since) this mark.
    pub fn mark(&self) -> Mark {
        self.ring.mark()
    }

    /// Blocks that this process added since a mark, but no more than `max_blocks`; the rest comes
    /// with the next export. What was imported is not exported.
    ///
    /// Only what an endpoint did not hold yet is told, so an import takes the new blocks of a
    /// prompt for more recent than those before them that were told earlier. What an endpoint
    /// lost is not told: whoever imports has a capacity of its own. The last [`Limits::recent`]
    /// blocks are remembered; it costs each prompt that is added one lock and a copy of what was
    /// new of it.
    pub fn export_since(&self, mark: Mark, max_blocks: usize) -> Export {
        self.ring.since(mark, max_blocks)
    }

    /// Everything that this process added and that is still held, endpoint by endpoint, each
    /// from its most recent block to its oldest: in this order an import adds them. The mark is
    /// where to go on.
    ///
    /// A hash may differ from the one that was added; it stands for the same block.
    pub fn export_all(&self, visit: impl FnMut(Held)) -> Mark {
        let mark = self.mark();
        export::all(&self.holders, visit);
        mark
    }

    /// Takes what another process exported. It counts as if it had been added here, until
    /// the origin has not reported for `ttl`: an import without blocks is a report, too.
    /// The endpoints are found in the snapshot by their identities.
    ///
    /// Costs nothing without imports, and two bytes for each place of the imported endpoints with them.
    pub fn import(
        &self,
        origin: &str,
        held: &[Held],
        snapshot: &Snapshot,
        now_ms: u64,
        ttl: Duration,
    ) -> Imported {
        self.origins.import(&self.holders, origin, held, snapshot, now_ms, ttl)
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
        self.holders.bytes() + self.ring.bytes() + size_of::<Self>()
    }
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
