//! Tokens of blocks, by the requests that may store them.

use std::collections::HashMap;
use std::sync::Arc;

/// Content of a block.
#[derive(Debug, Clone)]
pub(super) struct Content {
    /// The block before it.
    pub(super) parent: Option<u64>,
    pub(super) tokens: Arc<[u32]>,
    /// The LoRA adapter that it was computed with.
    pub(super) adapter: Option<Arc<str>>,
    /// Requests under way that have it.
    requests: usize,
}

/// Contents of the blocks that requests under way have.
#[derive(Debug, Default)]
pub(super) struct Contents {
    blocks: HashMap<u64, Content>,
}

impl Contents {
    /// A request comes, with these blocks of a text, `bytes` each.
    pub(super) fn enter(&mut self, blocks: &[u64], text: &[u8], bytes: usize, adapter: Option<&Arc<str>>) {
        let mut parent = None;
        for (hash, content) in blocks.iter().zip(text.chunks_exact(bytes)) {
            let entry = self.blocks.entry(*hash).or_insert_with(|| Content {
                parent,
                tokens: tokens(content).collect(),
                adapter: adapter.cloned(),
                requests: 0,
            });
            entry.requests += 1;
            parent = Some(*hash);
        }
    }

    /// Removes the blocks of a request that has ended.
    pub(super) fn leave(&mut self, blocks: &[u64]) {
        for hash in blocks {
            if let Some(content) = self.blocks.get_mut(hash) {
                content.requests -= 1;
                if content.requests == 0 {
                    self.blocks.remove(hash);
                }
            }
        }
    }

    pub(super) fn get(&self, hash: u64) -> Option<&Content> {
        self.blocks.get(&hash)
    }
}

/// Tokens of a text: four bytes each, zeros behind its end.
pub(crate) fn tokens(text: &[u8]) -> impl Iterator<Item = u32> {
    text.chunks(4).map(|bytes| {
        let mut token = [0; 4];
        token.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        u32::from_le_bytes(token)
    })
}
