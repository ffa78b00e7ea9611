//! Blocks of all sources, in the order in which they are given up.

use std::hint::black_box;

use smallvec::SmallVec;

use super::tier::Tier;

/// Number of a source. None is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub(super) u32);

/// Place of a block.
pub(super) type At = u32;

/// No block: no parent.
pub(super) const NONE: At = At::MAX;

/// A block of an engine, held or remembered.
#[derive(Debug)]
pub(super) struct Block {
    /// The engine's hash.
    pub(super) hash: u64,
    /// Key of the sequence up to its end.
    pub(super) key: u64,
    pub(super) holds: BlockCopies,
    pub(super) parent: At,
    /// Blocks that have this one as their parent.
    pub(super) children: u32,
    colder: At,
    hotter: At,
    pub(super) source: SourceId,
    /// Tokens of the same block of ours that come before its first.
    pub(super) offset: u16,
    /// Tokens; 0 as long as its parent is not known, and so its key.
    pub(super) size: u16,
}

impl Block {
    pub(super) fn new(source: SourceId, hash: u64) -> Self {
        let holds = BlockCopies::default();
        Self {
            hash,
            key: 0,
            holds,
            parent: NONE,
            children: 0,
            colder: 0,
            hotter: 0,
            source,
            offset: 0,
            size: 0,
        }
    }
}

/// Copies of a block: how many in which tier, and of which group.
#[derive(Debug, Default)]
pub(super) struct BlockCopies(SmallVec<[TierCopies; 4]>);

#[derive(Clone, Copy, Debug)]
struct TierCopies {
    tier: Tier,
    group: u8,
    copies: u16,
}

/// Groups and tiers of one block; further ones don't count.
const MAX_HOLDS: usize = 16;

impl BlockCopies {
    /// The first tier with a copy.
    pub(super) fn best(&self) -> Option<Tier> {
        self.0.iter().map(|hold| hold.tier).min()
    }

    /// A copy more, or none more if there is one and `once` is set.
    pub(super) fn add(&mut self, tier: Tier, group: u8, once: bool) {
        let has_room = self.0.len() < MAX_HOLDS;
        match self.0.iter_mut().find(|hold| hold.tier == tier && hold.group == group) {
            Some(_) if once => {}
            Some(hold) => hold.copies = hold.copies.saturating_add(1),
            None if has_room => self.0.push(TierCopies { tier, group, copies: 1 }),
            None => {}
        }
    }

    /// A copy less, of all groups if none is named.
    pub(super) fn remove(&mut self, tier: Tier, group: Option<u8>) {
        self.0.retain(|hold| {
            if hold.tier == tier && group.is_none_or(|group| hold.group == group) {
                hold.copies -= 1;
            }
            hold.copies > 0
        });
    }

    /// No copy in a tier any more.
    pub(super) fn clear(&mut self, tier: Tier) {
        self.0.retain(|hold| hold.tier != tier);
    }
}

/// Blocks in places that stay, and two lists of those without children.
#[derive(Debug)]
pub(super) struct Blocks {
    /// All of the same length, so that none moves as they become more. The first places are the ends of the lists.
    chunks: Vec<Vec<Block>>,
    free: Vec<At>,
    len: usize,
}

const CHUNK: usize = 1024;

/// List of blocks that may be given up, from the coldest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Blocks that are held.
    Held,
    /// Blocks that were held before.
    Remembered,
}

const LISTS: usize = 2;

impl Blocks {
    pub(super) fn new() -> Self {
        let mut blocks = Self { chunks: Vec::new(), free: Vec::new(), len: 0 };
        for _ in 0..LISTS {
            let end = blocks.insert(Block::new(SourceId(u32::MAX), 0));
            blocks.detach(end);
        }
        blocks.len = 0;
        blocks
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that were taken from the heap.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Block>() + self.free.capacity() * size_of::<At>()
    }

    pub(super) fn get(&self, at: At) -> &Block {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    pub(super) fn get_mut(&mut self, at: At) -> &mut Block {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    /// Takes a block, into no list.
    pub(super) fn insert(&mut self, block: Block) -> At {
        self.len += 1;
        let at = match self.free.pop() {
            Some(at) => {
                *self.get_mut(at) = block;
                at
            }
            None => {
                if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
                    self.chunks.push(Vec::with_capacity(CHUNK));
                }
                let before = (self.chunks.len() - 1) * CHUNK;
                // The last chunk has room.
                let Some(chunk) = self.chunks.last_mut() else { return NONE };
                chunk.push(block);
                (before + chunk.len() - 1) as At
            }
        };
        self.detach(at);
        at
    }

    /// Forgets a block that no other has as its parent.
    pub(super) fn remove(&mut self, at: At) {
        self.unlink(at);
        self.get_mut(at).holds = BlockCopies::default();
        self.free.push(at);
        self.len -= 1;
    }

    fn detach(&mut self, at: At) {
        let block = self.get_mut(at);
        (block.colder, block.hotter) = (at, at);
    }

    /// Takes a block out of its list, if it is in one.
    pub(super) fn unlink(&mut self, at: At) {
        let (colder, hotter) = (self.get(at).colder, self.get(at).hotter);
        self.get_mut(colder).hotter = hotter;
        self.get_mut(hotter).colder = colder;
        self.detach(at);
    }

    /// Puts a block at the hot or at the cold end of a list.
    pub(super) fn link(&mut self, at: At, list: List, hot: bool) {
        self.unlink(at);
        let end = list as At;
        let (colder, hotter) = if hot { (self.get(end).colder, end) } else { (end, self.get(end).hotter) };
        let block = self.get_mut(at);
        (block.colder, block.hotter) = (colder, hotter);
        self.get_mut(colder).hotter = at;
        self.get_mut(hotter).colder = at;
    }

    /// The coldest block of a list.
    pub(super) fn coldest(&self, list: List) -> Option<At> {
        self.coldest_first(list).next()
    }

    /// The blocks of a list, from the coldest on.
    pub(super) fn coldest_first(&self, list: List) -> impl Iterator<Item = At> {
        let end = list as At;
        std::iter::successors(Some(self.get(end).hotter), |at| Some(self.get(*at).hotter))
            .take_while(move |at| *at != end)
    }

    /// Reads blocks, and those beside them in their lists.
    pub(super) fn touch(&self, blocks: &[At]) {
        let beside = blocks.iter().flat_map(|at| [self.get(*at).colder, self.get(*at).hotter]);
        let beside: SmallVec<[At; 64]> = beside.collect();
        black_box(beside.iter().fold(0, |all, at| all ^ self.get(*at).hash));
    }

    /// Reads the places that the next blocks will take.
    pub(super) fn touch_free(&self, count: usize) {
        let next = self.free.iter().rev().take(count);
        black_box(next.fold(0, |all, at| all ^ self.get(*at).hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_by_tier_and_group() {
        let mut holds = BlockCopies::default();
        let best = |holds: &BlockCopies| holds.best().map(Tier::number);
        holds.add(Tier::CPU, 0, false);
        holds.add(Tier::GPU, 0, false);
        holds.add(Tier::GPU, 0, false);
        holds.add(Tier::GPU, 0, true);
        holds.add(Tier::GPU, 1, true);
        holds.remove(Tier::GPU, Some(2));
        holds.remove(Tier::GPU, None);
        assert_eq!(best(&holds), Some(0), "one copy of group 0");
        holds.remove(Tier::GPU, Some(0));
        assert_eq!(best(&holds), Some(1));
        holds.clear(Tier::CPU);
        assert_eq!(best(&holds), None);
        (0..40).for_each(|group| holds.add(Tier::GPU, group, false));
        assert_eq!(holds.0.len(), MAX_HOLDS);
    }

    #[test]
    fn lists_go_from_cold_to_hot() {
        let mut blocks = Blocks::new();
        let at: Vec<At> = (0..5).map(|hash| blocks.insert(Block::new(SourceId(0), hash))).collect();
        for (at, hot) in [(at[0], true), (at[1], true), (at[2], false), (at[3], true), (at[4], true)] {
            blocks.link(at, List::Held, hot);
        }
        blocks.link(at[1], List::Held, true);
        blocks.link(at[4], List::Remembered, true);
        blocks.remove(at[3]);
        let mut order = Vec::new();
        while let Some(coldest) = blocks.coldest(List::Held) {
            order.push(blocks.get(coldest).hash);
            blocks.remove(coldest);
        }
        assert_eq!(order, [2, 0, 1]);
        assert_eq!(blocks.coldest(List::Remembered), Some(at[4]));
        assert_eq!(blocks.len(), 1);
        let again = blocks.insert(Block::new(SourceId(0), 9));
        assert!(at.contains(&again), "places are used anew");
    }

    #[test]
    fn a_block_takes_a_line_of_the_cache() {
        assert_eq!(size_of::<Block>(), 64);
    }
}
