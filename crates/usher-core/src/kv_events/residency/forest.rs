//! Blocks as trees of sequences, and which keys follow from them.

use std::collections::HashSet;
use std::hint::black_box;
use std::num::NonZeroU16;

use smallvec::SmallVec;

use crate::kv_events::cache_kind::CacheKind;

use super::blocks::{At, Block, Blocks, List, NONE, SourceId};
use super::by_hash::ByHash;
use super::numbers::ByNumber;
use super::tier::Tier;

/// Change of what a source holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The source.
    pub source: SourceId,
    /// Key of a block of ours.
    pub key: u64,
    /// First tier in which the source holds all of the block from now on; `None`: it doesn't any more.
    pub tier: Option<Tier>,
}

/// State of a source, without its blocks.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) epoch: u64,
    /// `true` if no event was left out since the last reset or clear.
    pub(super) complete: bool,
    /// Tokens of the engine's blocks, as published last.
    pub(super) block_size: u16,
    /// Attention of KV cache groups, as far as known.
    pub(super) groups: ByNumber<u8, CacheKind>,
    /// Stores that wait for their parent.
    pub(super) waiting: usize,
    /// Blocks that were held and given up for want of room, ever.
    pub(super) evicted: u64,
    by_hash: ByHash,
    /// Blocks whose hash is another block's now. They have children.
    replaced: HashSet<At>,
    /// Keys of our blocks that end inside of a block of the engine, in their order.
    inner: ByNumber<At, Box<[u64]>>,
    /// Children of blocks that end inside of one of ours.
    children: ByNumber<At, SmallVec<[At; 2]>>,
}

/// State of a block, without its hash.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) key: u64,
    pub(super) parent: At,
    /// Tokens of our block that come before it.
    pub(super) offset: u16,
    pub(super) size: u16,
    /// Keys of our blocks that end inside of it.
    pub(super) inner: SmallVec<[u64; 4]>,
}

/// The blocks of all sources.
///
/// A block of ours is held when all blocks of the engine that it has a part of are. Its key is that of the last of
/// them; the others are its ancestors, as far as they end inside of it.
#[derive(Debug)]
pub(super) struct Forest {
    block_tokens: NonZeroU16,
    pub(super) blocks: Blocks,
    pub(super) sources: ByNumber<SourceId, Source>,
    held: usize,
    inner_keys: usize,
    /// Blocks whose parent ends inside of one of ours.
    inner_children: usize,
}

/// Blocks that are read before they are changed.
pub(super) const AHEAD: usize = 32;

/// Bytes of a block beside itself: its row.
const ROW_BYTES: usize = row_bytes(size_of::<At>());
/// Bytes of a row of keys inside of a block, beside these.
const INNER_BYTES: usize = row_bytes(size_of::<(At, Box<[u64]>)>()) + 8;
/// Bytes of a row of children.
const CHILDREN_BYTES: usize = row_bytes(size_of::<(At, SmallVec<[At; 2]>)>());

/// Bytes that a row of this size takes in a table that was just doubled: of eight places seven were taken, and each
/// has a byte more.
const fn row_bytes(row: usize) -> usize {
    ((row + 1) * 2 * 8).div_ceil(7)
}

impl Forest {
    pub(super) fn new(block_tokens: NonZeroU16) -> Self {
        Self {
            block_tokens,
            blocks: Blocks::new(),
            sources: ByNumber::default(),
            held: 0,
            inner_keys: 0,
            inner_children: 0,
        }
    }

    /// Blocks that some source holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Blocks that are only remembered.
    pub(super) fn remembered(&self) -> usize {
        self.blocks.len() - self.held
    }

    /// Bytes that the blocks take.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() * (size_of::<Block>() + ROW_BYTES)
            + self.inner_keys * (size_of::<u64>() + INNER_BYTES)
            + self.inner_children * CHILDREN_BYTES
    }

    /// Bytes that were taken for them.
    pub(super) fn allocated(&self) -> usize {
        self.bytes().max(self.blocks.bytes() + self.blocks.len() * ROW_BYTES)
    }

    /// The block with a hash.
    pub(super) fn find(&self, source: SourceId, hash: u64) -> Option<At> {
        self.sources.get(&source)?.by_hash.get(hash, &self.blocks)
    }

    /// Reads what changes of the blocks with these hashes will read. It does nothing else: what is read of several
    /// comes from memory at the same time, and the changes, one after the other, need not wait for it.
    pub(super) fn touch(&self, source: SourceId, hashes: impl Iterator<Item = u64>) {
        let Some(known) = self.sources.get(&source) else { return };
        let found: SmallVec<[At; AHEAD]> =
            hashes.filter_map(|hash| known.by_hash.get(hash, &self.blocks)).collect();
        self.blocks.touch(&found);
    }

    /// Prefetches memory for inserting so many blocks.
    pub(super) fn touch_free(&self, count: usize) {
        self.blocks.touch_free(count.min(AHEAD));
    }

    /// Prefetches memory for forgetting so many unheld blocks.
    pub(super) fn touch_remembered(&self, count: usize) {
        let mut next = SmallVec::<[At; AHEAD]>::new();
        for tail in self.blocks.coldest_first(List::Remembered) {
            // Their parents follow, as far as nothing else keeps them.
            let mut at = tail;
            while at != NONE && next.len() < count.min(AHEAD) {
                let block = self.blocks.get(at);
                if block.children > 1 || block.holds.best().is_some() {
                    break;
                }
                next.push(at);
                at = block.parent;
            }
            if next.len() >= count.min(AHEAD) {
                break;
            }
        }
        let rows = next.iter().filter_map(|at| {
            let block = self.blocks.get(*at);
            self.sources.get(&block.source)?.by_hash.get(block.hash, &self.blocks)
        });
        black_box(rows.fold(0, |all, at| all ^ at));
    }

    /// Number of blocks of a source, remembered ones included.
    pub(super) fn count(&self, source: SourceId) -> usize {
        self.sources.get(&source).map_or(0, |source| source.by_hash.len())
    }

    /// Number of tokens of the block of ours that a block ends in.
    pub(super) fn end(&self, at: At) -> u16 {
        let block = self.blocks.get(at);
        self.end_of(block.offset, block.size)
    }

    fn end_of(&self, offset: u16, size: u16) -> u16 {
        ((u32::from(offset) + u32::from(size)) % u32::from(self.block_tokens.get())) as u16
    }

    /// An unheld block whose place is not known.
    pub(super) fn insert(&mut self, source: SourceId, hash: u64) -> At {
        let at = self.blocks.insert(Block::new(source, hash));
        if let Some(source) = self.sources.get_mut(&source) {
            source.by_hash.insert(at, &self.blocks);
        }
        at
    }

    /// Finds or makes the block with a hash at a place. Returns whether its place was not known before. A block that
    /// was at another place is gone.
    pub(super) fn place<S: FnMut(Change)>(
        &mut self,
        source: SourceId,
        hash: u64,
        place: Place,
        sink: &mut S,
    ) -> (At, bool) {
        let at = match self.find(source, hash) {
            Some(at) => {
                let block = self.blocks.get(at);
                if (block.key, block.offset, block.size) == (place.key, place.offset, place.size) {
                    return (at, false);
                }
                if block.size > 0 {
                    self.replace(source, at, sink);
                    self.insert(source, hash)
                } else {
                    at
                }
            }
            None => self.insert(source, hash),
        };
        let ends_inside = place.parent != NONE && self.end(place.parent) != 0;
        if place.parent != NONE {
            self.blocks.get_mut(place.parent).children += 1;
            self.blocks.unlink(place.parent);
        }
        if (ends_inside || !place.inner.is_empty())
            && let Some(source) = self.sources.get_mut(&source)
        {
            if ends_inside {
                source.children.entry(place.parent).or_default().push(at);
                self.inner_children += 1;
            }
            if !place.inner.is_empty() {
                self.inner_keys += place.inner.len();
                source.inner.insert(at, place.inner.into_boxed_slice());
            }
        }
        let block = self.blocks.get_mut(at);
        // Its keys follow from its place only now.
        let holds = std::mem::take(&mut block.holds);
        (block.key, block.parent, block.offset, block.size) =
            (place.key, place.parent, place.offset, place.size);
        if holds.best().is_some() {
            self.held -= 1;
            self.change(at, |block| block.holds = holds, sink);
        }
        (at, true)
    }

    /// Takes a block's hash away, and that it is held.
    fn replace<S: FnMut(Change)>(&mut self, source: SourceId, at: At, sink: &mut S) {
        self.change(at, |block| block.holds = Default::default(), sink);
        if let Some(source) = self.sources.get_mut(&source) {
            source.by_hash.remove(at, &self.blocks);
            source.replaced.insert(at);
        }
        self.settle(at, false);
    }

    /// Changes which copies there are of a block, and reports what follows to `sink`.
    pub(super) fn change<S: FnMut(Change)>(&mut self, at: At, change: impl FnOnce(&mut Block), sink: &mut S) {
        let block = self.blocks.get_mut(at);
        let before = block.holds.best();
        change(block);
        let (after, source, key) = (block.holds.best(), block.source, block.key);
        let (offset, size) = (block.offset, block.size);
        if before == after {
            return;
        }
        self.held = self.held + usize::from(after.is_some()) - usize::from(before.is_some());
        if size == 0 {
            return;
        }
        let inner = self.sources.get(&source).and_then(|source| source.inner.get(&at));
        let ends = inner.into_iter().flatten().copied().chain((self.end(at) == 0).then_some(key));
        let mut report = |key, tier| sink(Change { source, key, tier });
        if offset == 0 && self.end(at) == 0 {
            return ends.into_iter().for_each(|key| report(key, after));
        }
        ends.skip(1).for_each(|key| report(key, after));
        for (key, end) in self.depending(at) {
            let (before, after) =
                (self.tier_of_first(end, Some((at, before))), self.tier_of_first(end, None));
            if before != after {
                report(key, after);
            }
        }
    }

    /// A copy more of a block.
    pub(super) fn hold<S: FnMut(Change)>(
        &mut self,
        at: At,
        tier: Tier,
        group: u8,
        reused: bool,
        sink: &mut S,
    ) {
        self.change(at, |block| block.holds.add(tier, group, reused), sink);
        self.settle(at, true);
    }

    /// Keys of the blocks of ours that begin before or in a block and end in it or behind it, but for those that are
    /// all in it; each with the block that it ends in.
    fn depending(&self, at: At) -> SmallVec<[(u64, At); 4]> {
        let mut found = SmallVec::new();
        let source = self.sources.get(&self.blocks.get(at).source);
        let mut to_see: SmallVec<[At; 8]> = SmallVec::from_slice(&[at]);
        while let Some(next) = to_see.pop() {
            let first = self.first_key(next);
            found.extend(first.map(|key| (key, next)));
            if next == at || first.is_none() {
                let children = source.and_then(|source| source.children.get(&next));
                to_see.extend(children.into_iter().flatten().copied());
            }
        }
        found
    }

    /// Key of the first block of ours that ends in a block.
    fn first_key(&self, at: At) -> Option<u64> {
        let block = self.blocks.get(at);
        let inner = self.sources.get(&block.source).and_then(|source| source.inner.get(&at)?.first());
        inner.copied().or_else(|| (self.end(at) == 0).then_some(block.key))
    }

    /// Tier in which the first block of ours that ends in a block is as a whole, now or when one part was in another.
    fn tier_of_first(&self, mut at: At, other: Option<(At, Option<Tier>)>) -> Option<Tier> {
        let best = |at| match other {
            Some((changed, tier)) if changed == at => tier,
            _ => self.blocks.get(at).holds.best(),
        };
        let mut tier = best(at)?;
        let mut missing = self.blocks.get(at).offset;
        while missing > 0 {
            at = self.blocks.get(at).parent;
            if at == NONE {
                return None;
            }
            tier = tier.max(best(at)?);
            missing = missing.saturating_sub(self.blocks.get(at).size);
        }
        Some(tier)
    }

    /// Puts a block into the list that it belongs to.
    pub(super) fn settle(&mut self, at: At, hot: bool) {
        let block = self.blocks.get(at);
        if block.children > 0 || block.size == 0 {
            return self.blocks.unlink(at);
        }
        let list = if block.holds.best().is_some() { List::Held } else { List::Remembered };
        self.blocks.link(at, list, hot);
    }

    /// Gives up the coldest block: one that is only remembered, or else one that is held. `false` if there is none.
    pub(super) fn evict<S: FnMut(Change)>(&mut self, sink: &mut S) -> bool {
        if self.evict_remembered() {
            return true;
        }
        let Some(at) = self.blocks.coldest(List::Held) else { return false };
        self.change(at, |block| block.holds = Default::default(), sink);
        let source = self.blocks.get(at).source;
        if let Some(source) = self.sources.get_mut(&source) {
            source.complete = false;
            source.evicted += 1;
        }
        self.remove(at);
        true
    }

    /// Gives up the block that was remembered longest.
    pub(super) fn evict_remembered(&mut self) -> bool {
        let oldest = self.blocks.coldest(List::Remembered);
        oldest.inspect(|at| self.remove(*at)).is_some()
    }

    /// Forgets an unheld block without children, or one whose place is not known.
    pub(super) fn remove(&mut self, at: At) {
        let block = self.blocks.get(at);
        let (id, parent) = (block.source, block.parent);
        self.held -= usize::from(block.holds.best().is_some());
        let ends_inside = parent != NONE && self.end(parent) != 0;
        if let Some(source) = self.sources.get_mut(&id) {
            if source.replaced.is_empty() || !source.replaced.remove(&at) {
                source.by_hash.remove(at, &self.blocks);
            }
            if !source.inner.is_empty() {
                self.inner_keys -= source.inner.remove(&at).map_or(0, |inner| inner.len());
            }
            if ends_inside && let Some(children) = source.children.get_mut(&parent) {
                let before = children.len();
                children.retain(|child| *child != at);
                self.inner_children -= before - children.len();
                if children.is_empty() {
                    source.children.remove(&parent);
                }
            }
        }
        self.blocks.remove(at);
        if parent != NONE {
            let parent_block = self.blocks.get_mut(parent);
            parent_block.children -= 1;
            if parent_block.children == 0 {
                self.settle(parent, false);
            }
        }
    }

    /// Drops all blocks of a source.
    pub(super) fn clear<S: FnMut(Change)>(&mut self, id: SourceId, sink: &mut S) {
        let Some(mut source) = self.sources.remove(&id) else { return };
        let by_hash = std::mem::take(&mut source.by_hash);
        let replaced = std::mem::take(&mut source.replaced);
        let inner = std::mem::take(&mut source.inner);
        let children = std::mem::take(&mut source.children);
        self.inner_children -= children.values().map(|children| children.len()).sum::<usize>();
        for at in by_hash.iter() {
            let block = self.blocks.get(at);
            let (key, best) = (block.key, block.holds.best());
            self.held -= usize::from(best.is_some());
            if best.is_none() || block.size == 0 {
                continue;
            }
            let inner = inner.get(&at).map_or(&[] as &[u64], |inner| inner);
            let mut keys = inner.iter().copied().chain((self.end(at) == 0).then_some(key));
            // Held only with the parts before it.
            if block.offset != 0 && self.tier_of_first(at, None).is_none() {
                keys.next();
            }
            keys.for_each(|key| sink(Change { source: id, key, tier: None }));
        }
        by_hash.iter().chain(replaced).for_each(|at| self.blocks.remove(at));
        self.inner_keys -= inner.values().map(|inner| inner.len()).sum::<usize>();
        self.sources.insert(id, source);
    }

    /// All blocks of a source that have a hash.
    pub(super) fn all(&self, source: SourceId) -> Vec<At> {
        self.sources.get(&source).map_or_else(Vec::new, |source| source.by_hash.iter().collect())
    }
}
