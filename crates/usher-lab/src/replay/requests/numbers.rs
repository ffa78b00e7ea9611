//! Numbers for blocks.

use std::collections::HashMap;

/// Blocks that get a number.
const MOST: usize = 1 << 22;

/// Numbers in place of blocks' hashes, equal where these are, in the order in which blocks are
/// first seen: those of a prompt are mostly neighbours, which a KV cache finds faster. Once
/// there are many, the others keep their hashes.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    by_hash: HashMap<u64, u32>,
    /// By number.
    hashes: Vec<u64>,
}

impl Numbers {
    /// Replaces the hashes of a prompt's blocks.
    pub(super) fn replace(&mut self, hashes: &mut [u64]) {
        let mut next = 0;
        for hash in hashes {
            // Mostly it is the one that came after the last one before.
            if self.hashes.get(next) != Some(hash) {
                next = match self.by_hash.get(hash) {
                    Some(known) => *known as usize,
                    None if self.hashes.len() == MOST => continue,
                    None => {
                        self.by_hash.insert(*hash, self.hashes.len() as u32);
                        self.hashes.push(*hash);
                        self.hashes.len() - 1
                    }
                };
            }
            *hash = next as u64;
            next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_numbers_are_equal_for_equal_hashes() {
        let mut numbers = Numbers::default();
        let mut replaced = |mut hashes: Vec<u64>| {
            numbers.replace(&mut hashes);
            hashes
        };
        assert_eq!(replaced(vec![70, 80, 90]), [0, 1, 2]);
        assert_eq!(replaced(vec![70, 80, 91, 92]), [0, 1, 3, 4]);
        assert_eq!(replaced(vec![70, 80, 91, 90]), [0, 1, 3, 2]);
        assert_eq!(replaced(vec![1, 90]), [5, 2]);
    }
}
