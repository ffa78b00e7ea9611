//! Keys of blocks, computed from their tokens.

use xxhash_rust::xxh3::xxh3_64;

use crate::prefix::chain;

/// Hash of a sequence of tokens so far, for a model. At the end of a block it is the block's key, and stands for
/// everything before it, too.
///
/// Tokens are chained one by one, so that blocks of any size end at the same keys: those of an engine may be smaller
/// or larger than those that requests are cut into. Keys are the same in every process of one version of Usher, and no
/// engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain(u64);

/// Bit of content that is no token.
const NO_TOKEN: u64 = 1 << 63;

impl Chain {
    /// The empty sequence for a model, or an adapter by its name.
    pub fn of_model(model: &[u8]) -> Self {
        Self(xxh3_64(model))
    }

    /// The empty sequence for an adapter of this model of which only the number is known. No request asks for
    /// an adapter by number.
    #[must_use]
    pub fn with_lora_id(self, id: u64) -> Self {
        Self(chain(xxh3_64(&id.to_le_bytes()) | NO_TOKEN, self.0))
    }

    /// Goes on behind the block with this key.
    pub(super) fn from_key(key: u64) -> Self {
        Self(key)
    }

    /// Goes on with something beside the tokens: an image's identifier, a cache salt. To be called at the start of the
    /// engine's block that it belongs to.
    pub fn push_extra(&mut self, extra: &[u8]) {
        self.push_digest(Self::digest(extra));
    }

    /// Digest of something beside the tokens.
    pub(super) fn digest(extra: &[u8]) -> u64 {
        xxh3_64(extra)
    }

    /// Goes on with something of which the digest is known.
    pub(super) fn push_digest(&mut self, digest: u64) {
        self.0 = chain(digest | NO_TOKEN, self.0);
    }

    /// Goes on with a token.
    #[inline]
    pub fn push(&mut self, token: u32) {
        self.0 = chain(u64::from(token), self.0);
    }

    /// Key of the block that ends here.
    pub fn key(self) -> u64 {
        self.0
    }
}

/// Keys of a prompt's full blocks, into `keys`.
///
/// `extras` are the strings beside the tokens, each with the place of the token before which it is chained: the start
/// of the engine's block that it belongs to, in the order of the places. Of one block their order is that of the
/// engine: images, then the salt.
pub fn prompt_keys<'a>(
    mut chain: Chain,
    tokens: &[u32],
    block_tokens: std::num::NonZeroU16,
    extras: impl IntoIterator<Item = (usize, &'a [u8])>,
    keys: &mut Vec<u64>,
) {
    let mut extras = extras.into_iter().peekable();
    let size = usize::from(block_tokens.get());
    for (block, start) in tokens.chunks_exact(size).zip((0..).step_by(size)) {
        let mut rest = block;
        while let Some((place, extra)) = extras.next_if(|(place, _)| *place < start + size) {
            let before = place.saturating_sub(start + size - rest.len());
            let (now, later) = rest.split_at_checked(before).unwrap_or((rest, &[]));
            now.iter().for_each(|token| chain.push(*token));
            chain.push_extra(extra);
            rest = later;
        }
        rest.iter().for_each(|token| chain.push(*token));
        keys.push(chain.key());
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    fn keys(block: u16, tokens: &[u32], extras: &[(usize, &'static str)]) -> Vec<u64> {
        let mut keys = Vec::new();
        let extras = extras.iter().map(|(place, extra)| (*place, extra.as_bytes()));
        prompt_keys(Chain::of_model(b"m"), tokens, NonZeroU16::new(block).unwrap(), extras, &mut keys);
        keys
    }

    #[test]
    fn blocks_of_every_size_end_at_the_same_keys() {
        let tokens: Vec<u32> = (0..13).collect();
        let single = keys(1, &tokens, &[]);
        assert_eq!(single.len(), 13);
        assert_eq!(keys(4, &tokens, &[]), [single[3], single[7], single[11]]);
        assert_eq!(keys(5, &tokens, &[]), [single[4], single[9]]);
        assert!(keys(14, &tokens, &[]).is_empty());
    }

    #[test]
    fn extras_count_from_their_place_on() {
        let tokens: Vec<u32> = (0..8).collect();
        let (plain, salted) = (keys(2, &tokens, &[]), keys(2, &tokens, &[(4, "salt")]));
        assert_eq!(plain[..2], salted[..2]);
        assert!(plain[2..].iter().zip(&salted[2..]).all(|(plain, salted)| plain != salted));
        assert_ne!(keys(2, &tokens, &[(0, "a"), (0, "b")]), keys(2, &tokens, &[(0, "b"), (0, "a")]));
        let extras = [(1, "a"), (3, "b"), (3, "c"), (6, "d"), (9, "e")];
        let single = keys(1, &tokens, &extras);
        assert_eq!(keys(4, &tokens, &extras), [single[3], single[7]]);
        assert_eq!(keys(3, &tokens, &extras), [single[2], single[5]]);
    }

    #[test]
    fn models_adapters_and_order_change_all_keys() {
        let key = |chain: Chain, tokens: [u32; 2]| {
            let mut chain = chain;
            tokens.into_iter().for_each(|token| chain.push(token));
            chain.key()
        };
        let model = Chain::of_model(b"m");
        let all = [
            key(model, [1, 2]),
            key(model, [2, 1]),
            key(Chain::of_model(b"n"), [1, 2]),
            key(model.with_lora_id(1), [1, 2]),
            key(model.with_lora_id(2), [1, 2]),
        ];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
