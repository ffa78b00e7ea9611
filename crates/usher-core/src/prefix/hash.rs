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
    /// End of each prompt in `hashes`.
    ends: Vec<usize>,
    tokens: Option<u64>,
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
        self.tokens = None;
        let size = (block_tokens.get() as usize).saturating_mul(BYTES_PER_TOKEN);
        if max_blocks > 0 {
            let mut cutter = Cutter::new(size, seed(request), max_blocks, self);
            chunks(request, |chunk| cutter.take(chunk));
            if cutter.left > 0 {
                self.tokens = Some(cutter.bytes / BYTES_PER_TOKEN as u64);
            }
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

    /// Estimated tokens of all prompts, four bytes each. `None` where a bound left some out,
    /// and for hashes that come from elsewhere.
    pub fn tokens(&self) -> Option<u64> {
        self.tokens
    }

    /// Blocks of all prompts.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns `true` if there is no block.
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

/// Bytes that are hashed at a time. Up to 128, XXH3 is a handful of multiplications that
/// don't wait for each other; beyond 240 it sets up a state, which a block of 256 bytes is
/// too short for.
const PIECE: usize = 128;

/// Seed that the first block of a prompt is chained to: prompts of other models, and of clients
/// with another salt, share no blocks.
fn seed(request: &Request) -> u64 {
    let model = xxh3_64(request.target_model.as_bytes());
    match &request.cache_salt {
        Some(salt) if !salt.span.is_empty() => chain(xxh3_64(&salt.bytes(&request.body)), model),
        _ => model,
    }
}

/// The hash of what has this content and comes behind what has the hash `before`: a
/// multiplication whose halves are folded, as in wyhash. The two constants, digits of pi,
/// keep content and chain apart.
pub(crate) fn chain(content: u64, before: u64) -> u64 {
    let product = u128::from(content ^ 0x243f_6a88_85a3_08d3) * u128::from(before ^ 0x1319_8a2e_0370_7344);
    product as u64 ^ (product >> 64) as u64
}

/// Cuts prompts, which come in slices, into blocks, and these into pieces of [`PIECE`] bytes
/// and a rest. A block's hash is the chain of its pieces, from the block before on.
struct Cutter<'a> {
    /// Bytes of a block.
    size: usize,
    /// Bytes that the block under way lacks.
    lacks: usize,
    /// A piece that an earlier slice began, and how long it is.
    piece: [u8; PIECE],
    begun: usize,
    seed: u64,
    last: u64,
    /// Blocks that may still come; at least one until the last has come.
    left: usize,
    /// Bytes of all pieces.
    bytes: u64,
    out: &'a mut Blocks,
}

impl<'a> Cutter<'a> {
    fn new(size: usize, seed: u64, left: usize, out: &'a mut Blocks) -> Self {
        Self { size, lacks: size, piece: [0; PIECE], begun: 0, seed, last: seed, left, bytes: 0, out }
    }

    fn take(&mut self, chunk: Chunk<'_>) -> ControlFlow<()> {
        match chunk {
            Chunk::Bytes(bytes) => self.bytes(bytes),
            Chunk::End => self.end(),
        }
    }

    fn bytes(&mut self, mut bytes: &[u8]) -> ControlFlow<()> {
        if self.begun > 0 {
            let missing = PIECE.min(self.lacks) - self.begun;
            let Some((now, later)) = bytes.split_at_checked(missing) else {
                self.keep(bytes);
                return ControlFlow::Continue(());
            };
            self.keep(now);
            bytes = later;
            self.finish_piece()?;
        }
        while let Some((piece, rest)) = bytes.split_at_checked(PIECE.min(self.lacks)) {
            bytes = rest;
            self.piece_of(xxh3_64(piece), piece.len())?;
        }
        self.keep(bytes);
        ControlFlow::Continue(())
    }

    /// Keeps bytes that are no whole piece yet, or just one.
    fn keep(&mut self, bytes: &[u8]) {
        let end = self.begun + bytes.len();
        if let Some(room) = self.piece.get_mut(self.begun..end) {
            room.copy_from_slice(bytes);
            self.begun = end;
        }
    }

    fn finish_piece(&mut self) -> ControlFlow<()> {
        let piece = self.piece.get(..self.begun).unwrap_or_default();
        let content = xxh3_64(piece);
        let len = std::mem::take(&mut self.begun);
        self.piece_of(content, len)
    }

    /// A piece of the block under way is whole.
    fn piece_of(&mut self, content: u64, len: usize) -> ControlFlow<()> {
        self.last = chain(content, self.last);
        self.lacks -= len;
        self.bytes += len as u64;
        if self.lacks == 0 { self.block() } else { ControlFlow::Continue(()) }
    }

    fn block(&mut self) -> ControlFlow<()> {
        self.lacks = self.size;
        self.out.hashes.push(self.last);
        self.left -= 1;
        if self.left == 0 {
            self.out.ends.push(self.out.hashes.len());
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self) -> ControlFlow<()> {
        if self.begun > 0 {
            self.finish_piece()?;
        }
        if self.lacks < self.size {
            self.block()?;
        }
        self.out.ends.push(self.out.hashes.len());
        self.last = self.seed;
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
#[path = "hash_tests.rs"]
mod tests;
