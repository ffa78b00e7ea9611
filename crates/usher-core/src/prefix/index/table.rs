//! Tables that matchers read without a lock: the blocks of a shard and the slots that hold them.

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

/// Content of a place of a table: a block's tag, and the slots that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block(u64);

const _: () = assert!(Tag::BITS + Set::BITS == u64::BITS);

impl Block {
    pub(super) fn new(tag: Tag, set: Set) -> Self {
        Self(tag.bits() << Set::BITS | u64::from(set.bits()))
    }

    /// The content with these bits; `None` for an empty place.
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    /// Bits; never 0, as no set's are.
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

/// Number of times that a matcher which was overtaken looks again. One that is overtaken
/// time after time takes the block as held by nobody.
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

    /// Place of a block, and what stands there.
    pub(super) fn position(&self, tag: Tag) -> Option<(usize, Block)> {
        let at = tag.home(self.blocks.len());
        self.position_from(tag, at, self.blocks.get(at)?.load(Acquire))
    }

    /// The same, where it is known what stands at the block's home.
    fn position_from(&self, tag: Tag, home: usize, mut bits: u64) -> Option<(usize, Block)> {
        let mut at = home;
        loop {
            let block = Block::from_bits(bits)?;
            if block.tag() == tag {
                return Some((at, block));
            }
            at += 1;
            if at == self.blocks.len() {
                at = 0;
            }
            if at == home {
                return None;
            }
            bits = self.blocks.get(at)?.load(Acquire);
        }
    }

    /// Begins to look a block up. Those of several blocks may be begun before the first is
    /// gone on with: then what they read comes from memory at the same time.
    pub(super) fn look_up(&self, tag: Tag) -> LookUp<'_> {
        let version = self.version.load(Acquire);
        let home = self.blocks.get(tag.home(self.blocks.len()));
        LookUp { table: self, tag, version, bits: home.map_or(0, |place| place.load(Acquire)) }
    }

    /// Writes the words of a set as a bit map, from the word `first` of all on.
    fn write(&self, set: Set, first: usize, out: &mut [u64]) {
        let (form, at) = match set.holders() {
            Holders::One(slot) => {
                out.fill(0);
                return mark(slot, first, out);
            }
            Holders::At(form, at) => (form, at),
        };
        let cells = self.cells.get(at..at + form.cells(self.width)).unwrap_or_default();
        if form == Form::Map {
            let cells = cells.get(first..).unwrap_or_default();
            let (known, beyond) = out.split_at_mut(cells.len().min(out.len()));
            known.iter_mut().zip(cells).for_each(|(word, cell)| *word = cell.load(Relaxed));
            beyond.fill(0);
        } else {
            out.fill(0);
            for cell in cells {
                lanes(cell.load(Relaxed)).into_iter().for_each(|slot| mark(slot, first, out));
            }
        }
    }
}

/// A look-up of a block, as far as it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookUp<'a> {
    table: &'a Table,
    tag: Tag,
    version: u64,
    /// Bits at the block's home, and after `find` those at its place; 0 where there is none.
    bits: u64,
}

impl LookUp<'_> {
    /// Bits at the block's home, or at its place once that is found.
    pub(super) fn bits(self) -> u64 {
        self.bits
    }

    /// Goes on to the block. Returns something of its set, so that this comes from memory,
    /// too.
    pub(super) fn find(&mut self) -> u64 {
        let Self { table, tag, bits, .. } = self;
        let found = table.position_from(*tag, tag.home(table.blocks.len()), *bits);
        *bits = found.map_or(0, |(_, block)| block.bits());
        match found.map(|(_, block)| block.set().holders()) {
            Some(Holders::At(_, at)) => table.cells.get(at).map_or(0, |cell| cell.load(Relaxed)),
            _ => 0,
        }
    }

    /// Returns `true` if all these slots hold the block, from the word `first` of all on.
    /// Also `false` if that is not known at once.
    pub(super) fn held_by_all(&self, slots: &[u64], first: usize) -> bool {
        let Self { table, version, bits, .. } = *self;
        let Some(Holders::At(Form::Map, at)) = Block::from_bits(bits).map(|block| block.set().holders())
        else {
            return false;
        };
        let Some(cells) = table.cells.get(at + first..at + first + slots.len()) else { return false };
        let lost = slots.iter().zip(cells).fold(0, |lost, (slots, cell)| lost | slots & !cell.load(Relaxed));
        fence(Acquire);
        lost == 0 && first + slots.len() <= table.width && table.version.load(Relaxed) == version
    }

    /// Writes the slots that hold the block as a bit map into `out`, whose first word is the
    /// `first` of all. They are none where nobody is known to hold it.
    pub(super) fn held(mut self, first: usize, out: &mut [u64]) {
        for _ in 0..ATTEMPTS {
            match Block::from_bits(self.bits) {
                Some(block) => self.table.write(block.set(), first, out),
                None => out.fill(0),
            }
            fence(Acquire);
            if self.table.version.load(Relaxed) == self.version {
                return;
            }
            self = self.table.look_up(self.tag);
            self.find();
        }
        out.fill(0);
    }
}

/// Sets a slot's bit, if it is one of those. That of a free lane never is.
fn mark(slot: u16, first: usize, out: &mut [u64]) {
    let word = usize::from(slot / 64).checked_sub(first);
    if let Some(word) = word.and_then(|word| out.get_mut(word)) {
        *word |= 1 << (slot % 64);
    }
}
