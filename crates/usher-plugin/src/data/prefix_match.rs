//! Part of a prompt in each endpoint's prefix cache.

use crate::{DataType, Fact};

/// Blocks of the prompt, and how many of the first of them each endpoint has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Blocks of the prompt.
    pub total: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks that an endpoint has, contiguous from the first, by its position in
    /// the snapshot. Endpoints behind the end have none.
    pub matched: Vec<u32>,
}

impl PrefixMatch {
    /// Blocks that the endpoint at this position of the snapshot has.
    #[inline]
    pub fn blocks_at(&self, position: u32) -> u32 {
        self.matched.get(position as usize).copied().unwrap_or(0).min(self.total)
    }

    /// Tokens that the endpoint at this position would have to compute of a prompt of
    /// `prompt` tokens: the blocks that it lacks, and what is behind the last block.
    #[inline]
    pub fn uncached_at(&self, position: u32, prompt: u64) -> u64 {
        let block = u64::from(self.block_size);
        let behind = prompt.saturating_sub(u64::from(self.total) * block);
        u64::from(self.total - self.blocks_at(position)) * block + behind
    }

    /// Tokens that it will really compute: not more than the prompt has, although a last
    /// block may not be full; and at least a block of them, as servers compute the end of a
    /// prompt again, and a step for few tokens takes as long.
    #[inline]
    pub fn computed_at(&self, position: u32, prompt: u64) -> u64 {
        self.uncached_at(position, prompt).max(u64::from(self.block_size)).min(prompt)
    }
}

impl Fact for PrefixMatch {
    const DATA: DataType = DataType::PrefixCacheMatchInfo;
}
