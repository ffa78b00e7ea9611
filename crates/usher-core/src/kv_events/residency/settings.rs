//! Settings of a residency, and the summary of a source.

use std::num::NonZeroU16;

/// Settings of a [`Residency`](super::Residency).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Tokens of a block of ours. Engines may have others.
    pub block_tokens: NonZeroU16,
    /// Bytes that all blocks may take.
    pub bytes: usize,
    /// Bytes that stores which wait for their parent may take, but no more than a quarter of `bytes`.
    pub waiting_bytes: usize,
    /// Remembered blocks that no endpoint holds any more.
    pub remembered: usize,
}

impl Settings {
    /// Bytes that a block takes at most while it is of the same size as ours.
    pub const BYTES_PER_BLOCK: usize = 76;
}

impl Default for Settings {
    /// Blocks of 16 tokens, as vLLM's and llm-d-router's; seven million of them.
    fn default() -> Self {
        Self {
            block_tokens: NonZeroU16::MIN.saturating_add(15),
            bytes: 512 << 20,
            waiting_bytes: 16 << 20,
            remembered: 65_536,
        }
    }
}

/// Summary of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Blocks of the engine that are known, held or remembered.
    pub blocks: usize,
    /// Stores that wait for their parent.
    pub waiting: usize,
    /// The source holds nothing else than what is known. Otherwise it may hold more.
    pub complete: bool,
    /// Tokens of a block of the engine, as published last; 0 before the first store.
    pub block_tokens: u16,
    /// Blocks of the engine that were given up for want of room, ever.
    pub evicted: u64,
}
