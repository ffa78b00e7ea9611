//! Part of a prompt in each engine's KV cache, as its events say.

use usher_core::prefix::EngineStatus;

use crate::{DataType, Fact};

/// Tokens of the prompt that each endpoint's engine holds by its KV events, and how much is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvEventsMatch {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks that an engine holds, contiguous from the first, by the endpoint's position in the snapshot; `None` if the
    /// tokens of the prompt aren't known.
    pub blocks: Option<Vec<u32>>,
    /// States of the knowledge about engines' caches, by endpoint position; `None` for one that is no candidate.
    pub statuses: Vec<Option<EngineStatus>>,
}

impl KvEventsMatch {
    /// State of the endpoint at this position of the snapshot; `None` for one that is no candidate.
    pub fn status_at(&self, position: u32) -> Option<EngineStatus> {
        self.statuses.get(position as usize).copied().flatten()
    }

    /// Tokens that the engine at this position holds; `None` if it isn't heard, or the tokens of the prompt aren't known.
    pub fn tokens_at(&self, position: u32) -> Option<u32> {
        self.status_at(position).filter(|status| status.is_heard())?;
        let held = self.blocks.as_ref()?.get(position as usize).copied().unwrap_or(0);
        Some(held.saturating_mul(self.block_size))
    }
}

impl Fact for KvEventsMatch {
    const DATA: DataType = DataType::KvEventsMatch;
}
