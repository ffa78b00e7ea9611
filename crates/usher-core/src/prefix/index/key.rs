//! The part of a block hash that the index keeps.

/// The 44 bits of a block hash by which the index knows a block: enough that of 30 million
/// blocks one in 500,000 look-ups of another block finds one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key(u64);

/// Odd, so that multiplying loses nothing; its bits are mixed, so that the upper bits of the
/// product depend on all lower bits of a hash. That of the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// `SPREAD * UNSPREAD` is 1, modulo 2^64.
const UNSPREAD: u64 = inverse(SPREAD);

impl Key {
    /// Bits of a key.
    pub(super) const BITS: u32 = SHARD_BITS + TAG_BITS;

    /// The key of a block; never 0.
    pub(super) fn of(hash: u64) -> Self {
        Self((hash.wrapping_mul(SPREAD) >> (u64::BITS - Self::BITS)).max(1))
    }

    /// A hash that has this key.
    pub(super) fn hash(self) -> u64 {
        (self.0 << (u64::BITS - Self::BITS)).wrapping_mul(UNSPREAD)
    }

    /// The key with these bits. They are some key's.
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bits of the key.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// The shard that knows the block.
    pub(super) fn shard(self) -> usize {
        (self.0 >> TAG_BITS) as usize
    }

    /// The part that distinguishes the block from the others of its shard.
    pub(super) fn tag(self) -> Tag {
        Tag(self.0 & ((1 << TAG_BITS) - 1))
    }
}

/// Shards of an index, a power of two.
pub(super) const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 6;
const TAG_BITS: u32 = 38;

/// A block within its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    /// Bits of a tag.
    pub(super) const BITS: u32 = TAG_BITS;

    /// The tag with these bits.
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bits of the tag.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Place that it belongs to among `len`. Grows with the tag.
    pub(super) fn home(self, len: usize) -> usize {
        ((u128::from(self.0) * len as u128) >> TAG_BITS) as usize
    }
}

/// The number by which an odd number has to be multiplied to come to 1, modulo 2^64: each
/// step of Newton's method doubles the bits that are right, and three are to begin with.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_numbers_are_spread_over_shards() {
        let shards: std::collections::BTreeSet<usize> = (0..256).map(|hash| Key::of(hash).shard()).collect();
        assert_eq!(shards.len(), SHARDS);
        assert_eq!(Key::of(0), Key::from_bits(1), "0 marks an empty place");
    }

    proptest! {
        #[test]
        fn key_round_trips_through_its_hash(hash: u64) {
            let key = Key::of(hash);
            prop_assert_eq!(Key::of(key.hash()), key);
            prop_assert_eq!(Key::from_bits(key.bits()), key);
            prop_assert!(key.bits() > 0 && key.bits() >> Key::BITS == 0);
            prop_assert!(key.shard() < SHARDS && key.tag().home(1000) < 1000);
        }
    }
}
