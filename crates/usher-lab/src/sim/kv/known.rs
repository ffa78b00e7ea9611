//! Places of blocks by hash.
//!
//! Hashes below [`NUMBERED`] are taken for numbers that somebody counted blocks with, so that
//! those of a prompt are neighbours. They are kept in pages of neighbours: a walk over a prompt
//! stays within a few of them. Hashes proper have an entry each.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes below this are numbers. Real ones are rarely so small, and nothing breaks then.
const NUMBERED: u64 = 1 << 32;

/// Neighbours in a page.
const PAGE: usize = 64;

/// No block has this place.
const NONE: u32 = u32::MAX;

// Keys are hashes already, but those of a trace may be small numbers: one
// multiplication spreads them over all bits.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

type Map<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

#[derive(Debug)]
struct Page {
    places: [u32; PAGE],
    used: usize,
}

/// Places of blocks by hash.
#[derive(Debug, Default)]
pub(super) struct Known {
    pages: Map<Box<Page>>,
    hashed: Map<u32>,
}

// Number of the page, and place in it.
fn split(number: u64) -> (u64, usize) {
    (number / PAGE as u64, (number % PAGE as u64) as usize)
}

impl Known {
    /// Looks up one block after the other.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { known: self, number: u64::MAX, page: None }
    }

    /// Sets the place of a block below [`u32::MAX`]. False, and nothing done, if the hash has one.
    pub(super) fn insert(&mut self, hash: u64, at: u32) -> bool {
        if hash >= NUMBERED {
            return match self.hashed.entry(hash) {
                Entry::Occupied(_) => false,
                Entry::Vacant(entry) => {
                    entry.insert(at);
                    true
                }
            };
        }
        let (number, slot) = split(hash);
        let page =
            self.pages.entry(number).or_insert_with(|| Box::new(Page { places: [NONE; PAGE], used: 0 }));
        if page.places[slot] != NONE {
            return false;
        }
        page.places[slot] = at;
        page.used += 1;
        true
    }

    /// Forgets a block.
    pub(super) fn remove(&mut self, hash: u64) {
        if hash >= NUMBERED {
            self.hashed.remove(&hash);
            return;
        }
        let (number, slot) = split(hash);
        let Entry::Occupied(mut entry) = self.pages.entry(number) else { return };
        let page = entry.get_mut();
        if std::mem::replace(&mut page.places[slot], NONE) == NONE {
            return;
        }
        page.used -= 1;
        if page.used == 0 {
            entry.remove();
        }
    }
}

/// Finds blocks, fastest in the order of a prompt.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    known: &'a Known,
    // The last page looked at, if it is there.
    number: u64,
    page: Option<&'a Page>,
}

impl Reader<'_> {
    /// Place of the block with this hash.
    pub(super) fn get(&mut self, hash: u64) -> Option<u32> {
        if hash >= NUMBERED {
            return self.known.hashed.get(&hash).copied();
        }
        let (number, slot) = split(hash);
        if number != self.number {
            self.number = number;
            self.page = self.known.pages.get(&number).map(|page| &**page);
        }
        self.page.map(|page| page.places[slot]).filter(|at| *at != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_hashes_are_found_until_removed() {
        let mut known = Known::default();
        let hashes = [0, 63, 64, 5000, NUMBERED - 1, NUMBERED, u64::MAX];
        for (hash, at) in hashes.into_iter().zip(0..) {
            assert!(known.insert(hash, at));
            assert!(!known.insert(hash, 9), "{hash} has a place");
        }
        let mut reader = known.reader();
        assert_eq!(hashes.map(|hash| reader.get(hash)), [0, 1, 2, 3, 4, 5, 6].map(Some));
        assert_eq!([1, 65, 127, 128, NUMBERED + 1].map(|hash| reader.get(hash)), [None; 5]);
        known.remove(1);
        for hash in hashes {
            assert!(known.reader().get(hash).is_some());
            known.remove(hash);
            assert_eq!(known.reader().get(hash), None);
        }
        assert!(known.pages.is_empty(), "no page without a block");
    }
}
