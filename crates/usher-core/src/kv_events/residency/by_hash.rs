//! Blocks of a source by their hashes.

use std::hash::BuildHasher;

use hashbrown::HashTable;

use super::blocks::{At, Blocks};
use super::numbers::Seed;

/// A table of the places of blocks. Their hashes are only in the blocks: reading a block comes next in any case, and
/// a row is a third as long.
#[derive(Debug, Default)]
pub(super) struct ByHash {
    rows: HashTable<At>,
    seed: Seed,
}

impl ByHash {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = At> {
        self.rows.iter().copied()
    }

    pub(super) fn get(&self, hash: u64, blocks: &Blocks) -> Option<At> {
        self.rows.find(self.seed.hash_one(hash), |at| blocks.get(*at).hash == hash).copied()
    }

    /// Adds a block whose hash no other has.
    pub(super) fn insert(&mut self, at: At, blocks: &Blocks) {
        let hash_of = |at: &At| self.seed.hash_one(blocks.get(*at).hash);
        self.rows.insert_unique(hash_of(&at), at, hash_of);
    }

    /// Forgets a block, whose hash is still in `blocks`.
    pub(super) fn remove(&mut self, at: At, blocks: &Blocks) {
        let hash = self.seed.hash_one(blocks.get(at).hash);
        if let Ok(row) = self.rows.find_entry(hash, |row| *row == at) {
            row.remove();
        }
    }
}
