//! Blocks of endpoints that are not discovered yet.

use std::collections::VecDeque;

use super::fingerprint::Fingerprint;
use crate::prefix::index::{EndpointBlocks, OriginId};

/// Blocks that wait for their endpoint: another replica may see a new pod some moments earlier.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The oldest first.
    queue: VecDeque<WaitingBlocks>,
    blocks: usize,
}

/// Blocks that one batch has of one endpoint.
#[derive(Debug)]
pub(super) struct WaitingBlocks {
    pub(super) fingerprint: Fingerprint,
    /// `None` for what was read at the start.
    pub(super) origin: Option<OriginId>,
    pub(super) held: EndpointBlocks,
    pub(super) since_ms: u64,
}

impl Waiting {
    /// Blocks that wait at most, 1 MiB; the oldest make room.
    pub(super) const MAX_BLOCKS: usize = 1 << 17;
    /// Runs of blocks that wait at most.
    const MAX_RUNS: usize = 1 << 12;
    /// Time that blocks wait at most. Discovery takes a second or two.
    pub(super) const MAX_MS: u64 = 30_000;

    /// Takes blocks, and returns how many others had to go.
    pub(super) fn push(&mut self, blocks: WaitingBlocks) -> usize {
        self.blocks += blocks.held.hashes.len();
        self.queue.push_back(blocks);
        self.drop_while(|waiting| waiting.blocks > Self::MAX_BLOCKS || waiting.queue.len() > Self::MAX_RUNS)
    }

    /// Drops those that have waited too long, and returns how many blocks these were.
    pub(super) fn expire(&mut self, now_ms: u64) -> usize {
        let is_over = |waiting: &WaitingBlocks| now_ms.saturating_sub(waiting.since_ms) >= Self::MAX_MS;
        self.drop_while(|waiting| waiting.queue.front().is_some_and(is_over))
    }

    /// Takes out those whose endpoint is known by now.
    pub(super) fn take(&mut self, is_known: impl Fn(&EndpointBlocks) -> bool) -> Vec<WaitingBlocks> {
        let (found, rest) =
            std::mem::take(&mut self.queue).into_iter().partition(|waiting| is_known(&waiting.held));
        self.queue = VecDeque::from_iter::<Vec<WaitingBlocks>>(rest);
        self.blocks = self.queue.iter().map(|waiting| waiting.held.hashes.len()).sum();
        found
    }

    pub(super) fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<WaitingBlocks>() + self.blocks * size_of::<u64>()
    }

    fn drop_while(&mut self, more: impl Fn(&Self) -> bool) -> usize {
        let before = self.blocks;
        while more(self)
            && let Some(oldest) = self.queue.pop_front()
        {
            self.blocks -= oldest.held.hashes.len();
        }
        before - self.blocks
    }
}
