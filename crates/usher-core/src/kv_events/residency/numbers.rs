//! Tables by numbers.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::prefix::chain;

/// A table by numbers, quick to hash. Its seed is random, as engines choose their hashes.
pub(super) type ByNumber<K, V> = HashMap<K, V, Seed>;

#[derive(Clone, Debug)]
pub(super) struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0u64))
    }
}

impl BuildHasher for Seed {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

#[derive(Debug)]
pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = chain(number, self.0);
    }

    fn finish(&self) -> u64 {
        // Tables take the upper bits and the lower ones: all have to depend on all of the number.
        chain(0, self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn neighbouring_numbers_hash_to_distant_slots() {
        for seed in (0..20).map(Seed) {
            let top: BTreeSet<u64> = (0..512u64).map(|number| seed.hash_one(number) >> 57).collect();
            let low: BTreeSet<u64> = (0..512u64).map(|number| seed.hash_one(number << 32) & 0x7f).collect();
            assert!(top.len() > 100 && low.len() > 100, "{} and {} of 128", top.len(), low.len());
        }
        let seed = Seed::default();
        assert_ne!(seed.hash_one(1u64), Seed::default().hash_one(1u64));
        assert_eq!(seed.hash_one(7u32), seed.hash_one(7u64));
    }
}
