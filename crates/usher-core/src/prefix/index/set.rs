//! Encoding of the slots that hold a block.

/// The slots that hold a block: one of them, or where more of them are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set(u32);

/// Contents of a [`Set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holders {
    /// A single slot.
    One(u16),
    /// Several: in this form, from this cell on.
    At(Form, usize),
}

/// Encoding of more than one slot in cells of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Four slots to a cell, in 2 to the power of so many cells. Free lanes are [`FREE`].
    List(u8),
    /// A bit for every slot, in as many cells as the table says.
    Map,
}

/// A lane of a list that holds no slot.
pub(super) const FREE: u16 = u16::MAX;
/// The number of the first slot that can't be written down.
pub(super) const MAX_SLOTS: u16 = FREE;
/// Slots in a cell of a list.
pub(super) const LANES: usize = 4;
/// Forms of sets, to number them.
pub(super) const FORMS: usize = LISTS as usize + 1;
/// Lists of 1, 2, 4, 8 and 16 cells. A map is smaller than a longer list, in pools in which
/// so many endpoints share a block.
const LISTS: u8 = 5;

const INDEX_BITS: u32 = 23;
const ONE: u32 = 1;
const FIRST_LIST: u32 = 2;
const MAP: u32 = FIRST_LIST + LISTS as u32;

impl Set {
    /// Bits of a set.
    pub(super) const BITS: u32 = INDEX_BITS + 3;
    /// Cells that a table may have.
    pub(super) const MAX_CELLS: usize = 1 << INDEX_BITS;

    /// A single slot.
    pub(super) fn one(slot: u16) -> Self {
        Self(ONE << INDEX_BITS | u32::from(slot))
    }

    /// Several, from a cell below [`Set::MAX_CELLS`] on.
    pub(super) fn at(form: Form, cell: usize) -> Self {
        let kind = match form {
            Form::List(power) => FIRST_LIST + u32::from(power),
            Form::Map => MAP,
        };
        Self(kind << INDEX_BITS | cell as u32)
    }

    /// The set with these bits, which are some set's.
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Bits; never 0.
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// Contents: the slot, or where the slots are written.
    pub(super) fn holders(self) -> Holders {
        let index = self.0 & ((1 << INDEX_BITS) - 1);
        match self.0 >> INDEX_BITS {
            ..=ONE => Holders::One(index as u16),
            kind @ FIRST_LIST..MAP => Holders::At(Form::List((kind - FIRST_LIST) as u8), index as usize),
            MAP.. => Holders::At(Form::Map, index as usize),
        }
    }
}

impl Form {
    /// The smallest form for so many slots, where a map takes `width` cells.
    pub(super) fn of(slots: usize, width: usize) -> Self {
        let list = (0..LISTS).map(Self::List).find(|list| slots <= list.cells(width) * LANES);
        list.filter(|list| list.cells(width) < width).unwrap_or(Self::Map)
    }

    /// Cells that it takes.
    pub(super) fn cells(self, width: usize) -> usize {
        match self {
            Self::List(power) => 1 << power,
            Self::Map => width,
        }
    }

    /// Number, below [`FORMS`].
    pub(super) fn number(self) -> usize {
        match self {
            Self::List(power) => power as usize,
            Self::Map => LISTS as usize,
        }
    }
}

/// The slots in a cell of a list.
pub(super) fn lanes(cell: u64) -> [u16; LANES] {
    [cell as u16, (cell >> 16) as u16, (cell >> 32) as u16, (cell >> 48) as u16]
}

/// The cell of a list with these slots.
pub(super) fn cell(lanes: [u16; LANES]) -> u64 {
    lanes.into_iter().rev().fold(0, |cell, lane| cell << 16 | u64::from(lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_returns_its_members() {
        assert_eq!(Set::one(0).holders(), Holders::One(0));
        assert_eq!(Set::one(FREE).holders(), Holders::One(FREE));
        for form in (0..LISTS).map(Form::List).chain([Form::Map]) {
            for at in [0, 1, Set::MAX_CELLS - 1] {
                let set = Set::at(form, at);
                assert_eq!(set.holders(), Holders::At(form, at));
                assert_eq!(Set::from_bits(set.bits()), set);
                assert!(set.bits() != 0 && set.bits() >> Set::BITS == 0);
            }
        }
        assert_eq!(lanes(cell([1, 2, 3, FREE])), [1, 2, 3, FREE]);
    }

    #[test]
    fn set_uses_its_smallest_representation() {
        // slots, width, form
        let table = [
            (2, 1, Form::Map),
            (4, 2, Form::List(0)),
            (5, 2, Form::Map),
            (5, 16, Form::List(1)),
            (17, 16, Form::List(3)),
            (33, 16, Form::Map),
            (33, 17, Form::List(4)),
            (64, 64, Form::List(4)),
            (65, 64, Form::Map),
        ];
        for (slots, width, form) in table {
            assert_eq!(Form::of(slots, width), form, "{slots} {width}");
        }
    }
}
