//! Index of the blocks that engines say they hold.

mod find;
mod speculative;
mod status;
mod weights;

use std::fmt;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::endpoints::{Endpoint, Slot, View};
use crate::prefix::Blocks;

use super::key::Key;
use super::set::MAX_SLOTS;
use super::shards::Shards;

use speculative::Speculative;
use status::Statuses;

pub use find::EngineMatch;
pub use status::EngineStatus;
pub use weights::TierWeights;

/// Index of the blocks that engines say they hold, by tier of memory, beside the blocks that they are about to
/// hold by own decisions.
///
/// One writer inserts and removes; the blocks of an endpoint are those that were reported, however many endpoints hold
/// one. Looking blocks up changes nothing and takes no lock. Whoever writes for an endpoint keeps its slot until all
/// of its blocks are removed again. Slots from 65,535 on are not indexed.
#[derive(Default)]
pub struct EngineIndex {
    /// Made when the first block of a tier comes. A block of an endpoint is in one of them.
    tiers: [OnceLock<Shards>; Self::TIERS],
    speculative: Speculative,
    statuses: Statuses,
}

impl EngineIndex {
    /// Tiers at most.
    pub const TIERS: usize = weights::TIERS;

    /// An empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// An endpoint holds a block in this tier, and in no other, from now on; `None`: it doesn't hold it any more.
    /// Blocks in a tier beyond [`EngineIndex::TIERS`] don't count as held.
    pub fn set(&self, slot: &Slot, hash: u64, tier: Option<u8>) {
        let Some(number) = number(slot) else { return };
        let key = Key::of(hash);
        let tier = tier.map(usize::from);
        // The new tier first: whoever looks in between finds the block.
        if let Some(shards) = tier.and_then(|tier| self.tiers.get(tier)) {
            shards.get_or_init(Shards::new).insert(key, number);
        }
        for (other, shards) in self.tiers.iter().enumerate() {
            if Some(other) != tier
                && let Some(shards) = shards.get()
            {
                shards.remove(key, number);
            }
        }
        // Also where it is gone: a decision said that it would be there, and the engine knows better.
        self.speculative.confirm(number, hash);
    }

    /// The same of several blocks, in this order. What is read of them comes from memory at the same time.
    pub fn set_all(&self, changes: &[(&Slot, u64, Option<u8>)]) {
        for shards in self.tiers.iter().filter_map(OnceLock::get) {
            let tables = shards.tables();
            let keys = changes.iter().map(|(_, hash, _)| Key::of(*hash));
            let look_ups = keys.filter_map(|key| Some(tables.get(key.shard())?.look_up(key.tag())));
            let look_ups: SmallVec<[_; 64]> = look_ups.collect();
            black_box(look_ups.into_iter().fold(0, |all, mut look_up| all ^ look_up.find()));
        }
        changes.iter().for_each(|(slot, hash, tier)| self.set(slot, *hash, *tier));
    }

    /// An endpoint is about to hold these blocks, until its engine reports them or this time. Those that find no room are
    /// left out.
    pub fn speculate(&self, endpoint: &Endpoint, blocks: &Arc<Blocks>, now_ms: u64, until_ms: u64) {
        if number(endpoint.slot()).is_some() {
            self.speculative.add(endpoint.slot(), blocks, now_ms, until_ms);
        }
    }

    /// Drops speculative blocks whose time is over.
    pub fn expire(&self, now_ms: u64) {
        self.speculative.expire(now_ms);
    }

    /// Number of speculative blocks.
    pub fn speculative_blocks(&self) -> usize {
        self.speculative.len()
    }

    /// Reports how much of an endpoint's content is known.
    pub fn set_status(&self, slot: &Slot, status: EngineStatus) {
        if let Some(number) = number(slot) {
            self.statuses.set(number, status);
        }
    }

    /// State of the knowledge about an endpoint's cache.
    pub fn status(&self, slot: u32) -> EngineStatus {
        self.statuses.get(slot)
    }

    /// Leading blocks that each candidate holds without a gap from the first block of a prompt, summed over the prompts.
    /// `matched` gets one number per endpoint of the snapshot, by its position; none for what is no candidate.
    pub fn find(
        &self,
        blocks: &Blocks,
        candidates: View<'_>,
        weights: &TierWeights,
        matched: &mut Vec<EngineMatch>,
    ) {
        let tiers: Vec<_> = self
            .tiers
            .iter()
            .zip(0..)
            .filter_map(|(shards, tier)| Some((shards.get()?.tables(), weights.of(tier))))
            .chain(self.speculative.tables().map(|tables| (tables, TierWeights::FULL)))
            .collect();
        find::find(&tiers, blocks, candidates, matched);
    }

    /// The same of speculative blocks alone: all that counts for endpoints whose status is unknown.
    pub fn find_speculative(&self, blocks: &Blocks, candidates: View<'_>, matched: &mut Vec<EngineMatch>) {
        let tiers: Vec<_> =
            self.speculative.tables().map(|tables| (tables, TierWeights::FULL)).into_iter().collect();
        find::find(&tiers, blocks, candidates, matched);
    }

    /// Leading blocks of a prompt that an endpoint's engine reported, in whichever tier, and no speculative ones. Found by
    /// halving: a gap may be overlooked.
    pub fn reported(&self, slot: &Slot, prompt: &[u64]) -> usize {
        let Some(number) = number(slot) else { return 0 };
        prompt.partition_point(|hash| self.is_reported(number, Key::of(*hash)))
    }

    fn is_reported(&self, number: u16, key: Key) -> bool {
        self.tiers.iter().filter_map(OnceLock::get).any(|shards| {
            let tables = shards.tables();
            let Some(table) = tables.get(key.shard()) else { return false };
            let mut look_up = table.look_up(key.tag());
            look_up.find();
            let mut word = [0];
            look_up.held(usize::from(number / 64), &mut word);
            word[0] & 1 << (number % 64) != 0
        })
    }

    /// Bytes that it takes, computed from what it has allocated.
    pub fn bytes(&self) -> usize {
        let tiers = self.tiers.iter().filter_map(OnceLock::get).map(Shards::bytes).sum::<usize>();
        tiers + self.speculative.bytes() + self.statuses.bytes() + size_of::<Self>()
    }
}

/// Number of a slot that is indexed.
fn number(slot: &Slot) -> Option<u16> {
    u16::try_from(slot.number()).ok().filter(|number| *number < MAX_SLOTS)
}

impl fmt::Debug for EngineIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineIndex({} bytes)", self.bytes())
    }
}

#[cfg(test)]
mod tests;
