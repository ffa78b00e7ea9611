//! What matchers read, without a lock: the blocks of a shard and who holds them.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, fence};

use super::key::Tag;
use super::set::{Form, Holders, Set, lanes};

/// The blocks of a shard, by their tags, each with the slots that hold it.
///
/// An open table: a block is at its home or behind it, with no empty place between. Only the
/// shard writes, under its lock. It makes a new table when this one is too small or too
/// large; matchers that still look at the old one see what was.
///
/// Blocks move and cells are used anew while matchers look. The shard writes the copy first,
/// then raises the version, and only then overwrites. Whoever reads what was overwritten
/// also reads a higher version than it saw before, and looks again.
#[derive(Debug)]
pub(super) struct Table {
    /// A [`Block`] each; 0 is an empty place.
    pub(super) blocks: Box<[AtomicU64]>,
    /// Sets of more than one slot.
    pub(super) cells: Box<[AtomicU64]>,
    /// Cells of a set that is a bit map.
    pub(super) width: usize,
    pub(super) version: AtomicU64,
}

/// What stands at a place of a table: a block's tag, and who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block(u64);

const _: () = assert!(Tag::BITS + Set::BITS == u64::BITS);

impl Block {
    pub(super) fn new(tag: Tag, set: Set) -> Self {
        Self(tag.bits() << Set::BITS | u64::from(set.bits()))
    }

    /// What stands at a place with these bits; `None` where it is empty.
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    /// Its bits; never 0, as no set's are.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn tag(self) -> Tag {
        Tag::from_bits(self.0 >> Set::BITS)
    }

    pub(super) fn set(self) -> Set {
        Set::from_bits((self.0 & ((1 << Set::BITS) - 1)) as u32)
    }
}

/// How often a matcher that was overtaken looks again. One that is overtaken time after time
/// takes the block as held by nobody.
const ATTEMPTS: usize = 16;

impl Table {
    /// An empty table.
    pub(super) fn new(places: usize, cells: usize, width: usize) -> Self {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { blocks: zeros(places), cells: zeros(cells), width, version: AtomicU64::new(0) }
    }

    /// Bytes on the heap, with the two counts of an `Arc`.
    pub(super) fn bytes(&self) -> usize {
        (self.blocks.len() + self.cells.len() + 2) * size_of::<u64>() + size_of::<Self>()
    }

    /// Where a block is, and what stands there.
    pub(super) fn position(&self, tag: Tag) -> Option<(usize, Block)> {
        let home = tag.home(self.blocks.len());
        let (before, from) = self.blocks.split_at_checked(home)?;
        for (at, place) in (home..).zip(from).chain((0..).zip(before)) {
            let block = Block::from_bits(place.load(Acquire))?;
            if block.tag() == tag {
                return Some((at, block));
            }
        }
        None
    }

    /// Writes the slots that hold a block as a bit map into `out`, whose first word is the
    /// `first` of all; whether anybody is known to hold it.
    pub(super) fn held(&self, tag: Tag, first: usize, out: &mut [u64]) -> bool {
        for _ in 0..ATTEMPTS {
            let version = self.version.load(Acquire);
            let found = self.position(tag);
            if let Some((_, block)) = found {
                self.write(block.set(), first, out);
            }
            fence(Acquire);
            if self.version.load(Relaxed) == version {
                return found.is_some();
            }
        }
        false
    }

    fn write(&self, set: Set, first: usize, out: &mut [u64]) {
        let (form, at) = match set.holders() {
            Holders::One(slot) => {
                out.fill(0);
                return mark(slot, first, out);
            }
            Holders::At(form, at) => (form, at),
        };
        let cells = self.cells.get(at..at + form.cells(self.width)).unwrap_or_default();
        match form {
            Form::List(_) => {
                out.fill(0);
                for cell in cells {
                    lanes(cell.load(Relaxed)).into_iter().for_each(|slot| mark(slot, first, out));
                }
            }
            Form::Map => {
                let mut cells = cells.iter().skip(first);
                for word in out {
                    *word = cells.next().map_or(0, |cell| cell.load(Relaxed));
                }
            }
        }
    }
}

/// Sets a slot's bit, if it is one of those. That of a free lane never is.
fn mark(slot: u16, first: usize, out: &mut [u64]) {
    let word = usize::from(slot / 64).checked_sub(first);
    if let Some(word) = word.and_then(|word| out.get_mut(word)) {
        *word |= 1 << (slot % 64);
    }
}
