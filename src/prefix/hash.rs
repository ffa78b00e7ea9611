//! A prompt as a chain of block hashes.

use std::num::NonZeroU32;
use std::ops::{ControlFlow, Range};

use xxhash_rust::xxh3::xxh3_64;

use crate::request::Request;
use crate::request::estimate::{BYTES_PER_TOKEN, Chunk, chunks};

/// The block hashes of a request's prompts, one after the other. A hash stands for its
/// block and all blocks before it in the same prompt, for the model and for the cache salt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    hashes: Vec<u64>,
    /// Where each prompt ends in `hashes`.
    ends: Vec<usize>,
}

impl Blocks {
    /// The blocks of a request's prompts. See [`Blocks::read`].
    pub fn of(request: &Request, block_tokens: NonZeroU32, max_blocks: usize) -> Self {
        let mut blocks = Self::default();
        blocks.read(request, block_tokens, max_blocks);
        blocks
    }

    /// Replaces the hashes by those of a request's prompts, and keeps the room for them.
    ///
    /// A block is `block_tokens` times four bytes of the prompt as
    /// [`estimate::chunks`](chunks) hands it out; the last one of a prompt may be shorter.
    /// No more than `max_blocks` are read, over all prompts. A prompt that was not read has
    /// no blocks.
    pub fn read(&mut self, request: &Request, block_tokens: NonZeroU32, max_blocks: usize) {
        self.hashes.clear();
        self.ends.clear();
        let size = (block_tokens.get() as usize).saturating_mul(BYTES_PER_TOKEN);
        let seed = seed(request);
        let mut cutter = Cutter { size, begun: Vec::new(), seed, last: seed, left: max_blocks, out: self };
        if max_blocks > 0 {
            chunks(request, |chunk| cutter.take(chunk));
        }
    }

    /// Hashes that come from elsewhere, prompt by prompt.
    pub fn from_prompts<P: AsRef<[u64]>>(prompts: impl IntoIterator<Item = P>) -> Self {
        let mut blocks = Self::default();
        for prompt in prompts {
            blocks.hashes.extend_from_slice(prompt.as_ref());
            blocks.ends.push(blocks.hashes.len());
        }
        blocks
    }

    /// Blocks of all prompts.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The hashes of all prompts, in their order.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// The hashes of each prompt.
    pub fn prompts(&self) -> impl Iterator<Item = &[u64]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let range: Range<usize> = start..end;
            start = end;
            self.hashes.get(range).unwrap_or_default()
        })
    }
}

/// What the first block of a prompt is chained to: prompts of other models, and of clients
/// with another salt, share no blocks.
fn seed(request: &Request) -> u64 {
    let model = xxh3_64(request.target_model.as_bytes());
    match &request.cache_salt {
        Some(salt) => chain(xxh3_64(&salt.bytes(&request.body)), model),
        None => model,
    }
}

/// The hash of a block with this content behind the one before.
fn chain(content: u64, before: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&content.to_le_bytes());
    bytes[8..].copy_from_slice(&before.to_le_bytes());
    xxh3_64(&bytes)
}

/// Cuts the pieces of prompts into blocks.
struct Cutter<'a> {
    /// Bytes of a block.
    size: usize,
    /// A block that began in an earlier piece. Shorter than `size`.
    begun: Vec<u8>,
    seed: u64,
    last: u64,
    /// Blocks that may still come.
    left: usize,
    out: &'a mut Blocks,
}

impl Cutter<'_> {
    fn take(&mut self, chunk: Chunk<'_>) -> ControlFlow<()> {
        match chunk {
            Chunk::Bytes(bytes) => self.bytes(bytes),
            Chunk::End => {
                if !self.begun.is_empty() {
                    let content = xxh3_64(&self.begun);
                    self.begun.clear();
                    // The bound, if it is reached, has ended the prompt.
                    self.block(content)?;
                }
                self.out.ends.push(self.out.hashes.len());
                self.last = self.seed;
                ControlFlow::Continue(())
            }
        }
    }

    fn bytes(&mut self, mut bytes: &[u8]) -> ControlFlow<()> {
        if !self.begun.is_empty() {
            let missing = (self.size - self.begun.len()).min(bytes.len());
            let (now, later) = bytes.split_at(missing);
            self.begun.extend_from_slice(now);
            bytes = later;
            if self.begun.len() < self.size {
                return ControlFlow::Continue(());
            }
            let content = xxh3_64(&self.begun);
            self.begun.clear();
            self.block(content)?;
        }
        let mut whole = bytes.chunks_exact(self.size);
        for block in &mut whole {
            self.block(xxh3_64(block))?;
        }
        self.begun.extend_from_slice(whole.remainder());
        ControlFlow::Continue(())
    }

    fn block(&mut self, content: u64) -> ControlFlow<()> {
        self.last = chain(content, self.last);
        self.out.hashes.push(self.last);
        self.left -= 1;
        if self.left == 0 {
            self.out.ends.push(self.out.hashes.len());
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
#[path = "hash_tests.rs"]
mod tests;
