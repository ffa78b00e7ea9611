//! A place of the list of an endpoint's blocks.

use super::key::Key;

/// A block's key, the places of its neighbours in 24 bits each, and four marks. With a key of 0 it is
/// empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place([u32; 3]);

/// Bits of a link.
const LINK: u32 = 24;
const LINK_MASK: u32 = (1 << LINK) - 1;
/// No neighbour.
pub(super) const NONE: u32 = LINK_MASK;
/// First of the marks' bits, the upper ones of the last word.
const MARKS: u32 = 28;
const MARKS_MASK: u32 = !0 << MARKS;
const _: () = assert!(Key::BITS == u32::BITS + 8 + (MARKS - LINK));

impl Place {
    pub(super) const EMPTY: Self = Self([0; 3]);

    pub(super) fn new(key: Key, marks: u16, newer: u32, older: u32) -> Self {
        let high = (key.bits() >> 32) as u32;
        let marks = u32::from(marks) << MARKS;
        Self([key.bits() as u32, newer | (high & 0xff) << LINK, older | (high >> 8) << LINK | marks])
    }

    /// Bits of the key.
    pub(super) fn bits(self) -> u64 {
        let Self([low, newer, older]) = self;
        u64::from(low) | u64::from(newer >> LINK) << 32 | u64::from((older & !MARKS_MASK) >> LINK) << 40
    }

    pub(super) fn key(self) -> Option<Key> {
        let bits = self.bits();
        (bits != 0).then(|| Key::from_bits(bits))
    }

    pub(super) fn marks(self) -> u16 {
        (self.0[2] >> MARKS) as u16
    }

    pub(super) fn set_marks(&mut self, marks: u16) {
        self.0[2] = self.0[2] & !MARKS_MASK | u32::from(marks) << MARKS;
    }

    pub(super) fn newer(self) -> u32 {
        self.0[1] & LINK_MASK
    }

    pub(super) fn older(self) -> u32 {
        self.0[2] & LINK_MASK
    }

    pub(super) fn set_newer(&mut self, place: u32) {
        self.0[1] = self.0[1] & !LINK_MASK | place;
    }

    pub(super) fn set_older(&mut self, place: u32) {
        self.0[2] = self.0[2] & !LINK_MASK | place;
    }
}
