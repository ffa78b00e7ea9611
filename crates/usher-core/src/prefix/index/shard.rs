//! The writing side of a shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release, fence};

use smallvec::SmallVec;

use super::cells::Cells;
use super::key::Tag;
use super::set::{FREE, Form, Holders, LANES, Set, cell, lanes};
use super::table::{Block, Table};

/// Writer of a [`Table`]: sets of slots by tag. Every method that may make a new table
/// says whether it did.
#[derive(Debug)]
pub(super) struct Shard {
    table: Arc<Table>,
    /// Places of the table that are not empty.
    used: usize,
    cells: Cells,
}

/// Shortage that keeps the table from taking another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    Places,
    /// Consecutive cells, this many.
    Cells(usize),
    /// A bit map of so many cells.
    Width(usize),
}

/// Places of the smallest table that is not empty.
const MIN_PLACES: usize = 16;
/// More members than any list has lanes are in a map.
type Members = SmallVec<[u16; 64]>;

/// The least table in which so many blocks fill no more than four places of five: then one
/// that is there is found at the third place, and the end of others after thirteen.
fn places(blocks: usize) -> usize {
    (blocks * 5).div_ceil(4)
}

/// A little more room, so that a table is not made anew for every block. The less it is,
/// the less memory is empty: an entry has to do with 32 bytes, and this takes 2.5 of them.
fn with_room(count: usize) -> usize {
    count + count / 4
}

/// The same for cells. Sets are begun in a table with many blocks, and making it anew costs
/// all of these.
fn cells_with_room(cells: usize, places: usize) -> usize {
    if cells == 0 { 0 } else { (with_room(cells) + places / 16).min(Set::MAX_CELLS) }
}

impl Shard {
    /// An empty shard, and its table.
    pub(super) fn new() -> Self {
        Self { table: Arc::new(Table::new(0, 0, 1)), used: 0, cells: Cells::default() }
    }

    /// The table that matchers may read from now on.
    pub(super) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// A slot holds a block. `None`: the block has more holders than can be written down.
    /// Otherwise whether there is a new table.
    pub(super) fn insert(&mut self, tag: Tag, slot: u16) -> Option<bool> {
        let mut renewed = false;
        loop {
            let lack = match self.try_insert(tag, slot) {
                Ok(()) => return Some(renewed),
                Err(lack) => lack,
            };
            let (mut room, mut cells, mut width) =
                (self.table.blocks.len(), self.cells.live(), self.table.width);
            match lack {
                Lack::Places => room = with_room(places(self.used + 1)).max(MIN_PLACES),
                Lack::Cells(more) => cells += more,
                Lack::Width(wider) => {
                    cells += self.cells.maps() * (wider - width);
                    width = wider;
                }
            }
            if cells > Set::MAX_CELLS {
                return None;
            }
            self.renew(room, cells_with_room(cells, room), width);
            renewed = true;
        }
    }

    /// A slot holds a block no more. Returns whether there is a new table.
    pub(super) fn remove(&mut self, tag: Tag, slot: u16) -> bool {
        let Some((at, block)) = self.table.position(tag) else { return false };
        match block.set().holders() {
            Holders::One(only) if only == slot => self.clear(at),
            Holders::One(_) => return false,
            Holders::At(form, start) => self.take_out(at, tag, (form, start), slot),
        }
        self.shrink_if_sparse()
    }

    /// Makes the table as small as what it holds allows. Returns whether there is a new one.
    pub(super) fn fit(&mut self) -> bool {
        let (places, cells) = (places(self.used), self.cells.live());
        let smaller = places < self.table.blocks.len() || cells < self.table.cells.len();
        if smaller {
            self.renew(places, cells, self.table.width);
        }
        smaller
    }

    fn try_insert(&mut self, tag: Tag, slot: u16) -> Result<(), Lack> {
        let Some((at, block)) = self.table.position(tag) else {
            if places(self.used + 1) > self.table.blocks.len() {
                return Err(Lack::Places);
            }
            put(&self.table, Block::new(tag, Set::one(slot)));
            self.used += 1;
            return Ok(());
        };
        match block.set().holders() {
            Holders::One(same) if same == slot => Ok(()),
            Holders::One(other) => {
                let set = self.write(&[other, slot])?;
                self.set(at, Block::new(tag, set));
                Ok(())
            }
            Holders::At(Form::Map, start) => {
                let (word, bit) = bit_of(slot);
                if word >= self.table.width {
                    return Err(Lack::Width(word + 1));
                }
                let cell = &self.table.cells[start + word];
                cell.store(cell.load(Relaxed) | bit, Relaxed);
                Ok(())
            }
            Holders::At(form, start) => {
                let members = self.members(form, start);
                if members.contains(&slot) {
                    return Ok(());
                }
                let cells = &self.table.cells[start..start + form.cells(self.table.width)];
                if members.len() < cells.len() * LANES {
                    replace_lane(cells, FREE, slot);
                    return Ok(());
                }
                let mut more = members;
                more.push(slot);
                let set = self.write(&more)?;
                self.set(at, Block::new(tag, set));
                self.free(form, start);
                Ok(())
            }
        }
    }

    /// Takes a slot out of a set of several.
    fn take_out(&mut self, at: usize, tag: Tag, (form, start): (Form, usize), slot: u16) {
        let cells = &self.table.cells[start..start + form.cells(self.table.width)];
        if form == Form::Map {
            let (word, bit) = bit_of(slot);
            let Some(cell) = cells.get(word) else { return };
            cell.store(cell.load(Relaxed) & !bit, Relaxed);
        } else {
            replace_lane(cells, slot, FREE);
        }
        let left = match form {
            Form::Map => cells.iter().map(|cell| cell.load(Relaxed).count_ones() as usize).sum(),
            Form::List(_) => self.members(form, start).len(),
        };
        // Not at once, or a slot that comes and goes would make a new set each time.
        let smaller = Form::of(left + left / 4, self.table.width);
        if left > 1 && smaller.cells(self.table.width) >= cells.len() {
            return;
        }
        let members = self.members(form, start);
        // With too few cells it stays as it is.
        if let Ok(set) = self.write(&members) {
            self.set(at, Block::new(tag, set));
            self.free(form, start);
        }
    }

    /// The slots of a set, in no order.
    fn members(&self, form: Form, start: usize) -> Members {
        let cells = &self.table.cells[start..start + form.cells(self.table.width)];
        let mut members = Members::new();
        for (word, cell) in (0u16..).zip(cells) {
            let mut bits = cell.load(Relaxed);
            if form != Form::Map {
                members.extend(lanes(bits).into_iter().filter(|slot| *slot != FREE));
                continue;
            }
            while bits != 0 {
                members.push(word * 64 + bits.trailing_zeros() as u16);
                bits &= bits - 1;
            }
        }
        members
    }

    /// Writes a set down where no matcher reads it yet.
    fn write(&mut self, members: &[u16]) -> Result<Set, Lack> {
        if let [only] = members {
            return Ok(Set::one(*only));
        }
        let width = self.table.width;
        let form = Form::of(members.len(), width);
        let widest = members.iter().map(|slot| bit_of(*slot).0 + 1).max().unwrap_or(0);
        if form == Form::Map && widest > width {
            return Err(Lack::Width(widest));
        }
        let needed = form.cells(width);
        let start = self.cells.take(form, width, &self.table.cells).ok_or(Lack::Cells(needed))?;
        let cells = &self.table.cells[start..start + needed];
        if form == Form::Map {
            cells.iter().for_each(|cell| cell.store(0, Relaxed));
            for slot in members {
                let (word, bit) = bit_of(*slot);
                cells[word].store(cells[word].load(Relaxed) | bit, Relaxed);
            }
        } else {
            let mut members = members.iter().copied().chain(std::iter::repeat(FREE));
            for place in cells {
                place.store(cell([(); LANES].map(|()| members.next().unwrap_or(FREE))), Relaxed);
            }
        }
        Ok(Set::at(form, start))
    }

    /// Puts another set in a block's place.
    fn set(&self, at: usize, block: Block) {
        self.table.blocks[at].store(block.bits(), Release);
    }

    /// Lets the cells of a set go that no block names any more.
    fn free(&mut self, form: Form, start: usize) {
        raise_version(&self.table);
        self.cells.give(form, start, self.table.width, &self.table.cells);
    }

    /// Empties a place, and closes the gap: blocks behind it that are not at home come up.
    fn clear(&mut self, at: usize) {
        let blocks = &self.table.blocks;
        let (mut gap, mut next) = (at, at);
        loop {
            next = if next + 1 == blocks.len() { 0 } else { next + 1 };
            let Some(block) = Block::from_bits(blocks[next].load(Relaxed)) else { break };
            let home = block.tag().home(blocks.len());
            // Whether the home is behind the gap, on the way around from there to here.
            let stays = if gap <= next { gap < home && home <= next } else { gap < home || home <= next };
            if !stays {
                blocks[gap].store(block.bits(), Release);
                raise_version(&self.table);
                gap = next;
            }
        }
        blocks[gap].store(0, Release);
        self.used -= 1;
    }

    fn shrink_if_sparse(&mut self) -> bool {
        let (room, cells) = (self.table.blocks.len(), self.table.cells.len());
        let sparse = room > 4 * MIN_PLACES && self.used * 2 < room;
        let renews = sparse || cells > cells_with_room(2 * self.cells.live(), room);
        if renews {
            let room = if sparse { with_room(places(self.used)) } else { room };
            self.renew(room, cells_with_room(self.cells.live(), room), self.table.width);
        }
        renews
    }

    /// Makes a new table of this size with the same blocks.
    fn renew(&mut self, places: usize, cells: usize, width: usize) {
        let new = Self {
            table: Arc::new(Table::new(places, cells, width)),
            used: self.used,
            cells: Cells::default(),
        };
        let old = std::mem::replace(self, new);
        for place in &old.table.blocks {
            let Some(block) = Block::from_bits(place.load(Relaxed)) else { continue };
            let set = match block.set().holders() {
                Holders::One(slot) => Set::one(slot),
                Holders::At(form, start) => {
                    // There are as many cells as before at least.
                    let Ok(set) = self.write(&old.members(form, start)) else { continue };
                    set
                }
            };
            put(&self.table, Block::new(block.tag(), set));
        }
    }
}

/// Raises the version, after which the places and cells that were copied may be overwritten.
fn raise_version(table: &Table) {
    table.version.fetch_add(1, AcqRel);
    fence(Release);
}

/// Puts a new block into a table with an empty place.
fn put(table: &Table, block: Block) {
    let home = block.tag().home(table.blocks.len());
    let (before, from) = table.blocks.split_at(home);
    if let Some(place) = from.iter().chain(before).find(|place| place.load(Relaxed) == 0) {
        place.store(block.bits(), Release);
    }
}

/// The cell of a map and the bit in it that stand for a slot.
fn bit_of(slot: u16) -> (usize, u64) {
    (usize::from(slot / 64), 1 << (slot % 64))
}

/// Writes one slot of a list over, if it is there.
fn replace_lane(cells: &[AtomicU64], from: u16, to: u16) {
    for place in cells {
        let mut slots = lanes(place.load(Relaxed));
        if let Some(lane) = slots.iter_mut().find(|lane| **lane == from) {
            *lane = to;
            return place.store(cell(slots), Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
