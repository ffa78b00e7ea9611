//! Blocks that a replica publishes, as bytes.
//!
//! All numbers are little endian:
//!
//! ```text
//! version u8 · check u64 · fingerprint u64 · origin [u8; 16] · runs u16
//! runs × (endpoint u64 · capacity u24 · blocks u16)
//! all blocks of all runs × hash u64
//! ```
//!
//! The check is XXH3 of all that is behind it. An endpoint is 8 bytes, so that a full batch takes at
//! most 10 bytes a block with up to 900 endpoints in it. The last block of a run is the first to be evicted.

use std::collections::VecDeque;

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::fingerprint::Fingerprint;
use crate::prefix::index::{EndpointBlocks, EndpointId, OriginId};

/// Published blocks, checked and not yet copied.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    fingerprint: Fingerprint,
    origin: OriginId,
    runs: &'a [[u8; RUN]],
    hashes: &'a [[u8; HASH]],
}

/// Reason why bytes are no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Another version of the format.
    #[error("version {0} is not known")]
    Version(u8),
    /// Shorter or longer than the runs say, or longer than any batch.
    #[error("the length is wrong")]
    Length,
    /// Changed on the way.
    #[error("the checksum is wrong")]
    Check,
}

const VERSION: u8 = 1;
const CHECKED_FROM: usize = 9;
const HEAD: usize = CHECKED_FROM + 8 + 16 + 2;
const RUN: usize = 8 + 3 + 2;
const HASH: usize = 8;
/// Bytes of all runs and blocks at most.
pub(super) const ROOM: usize = Batch::MAX_BYTES - HEAD;
/// Largest capacity that a batch can say.
const MAX_CAPACITY: u32 = (1 << 24) - 1;

impl<'a> Batch<'a> {
    /// Bytes of a batch at most.
    pub const MAX_BYTES: usize = 64 << 10;

    /// Blocks of a batch at most.
    pub const MAX_BLOCKS: usize = fits(ROOM);

    /// Reads a batch. It allocates nothing.
    ///
    /// # Errors
    /// `BatchError` if the bytes are no valid batch.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let (version, _) = bytes.split_first().ok_or(BatchError::Length)?;
        if *version != VERSION {
            return Err(BatchError::Version(*version));
        }
        if bytes.len() > Self::MAX_BYTES {
            return Err(BatchError::Length);
        }
        let (check, checked) = split(bytes.get(1..).unwrap_or_default())?;
        if xxh3_64(checked) != u64::from_le_bytes(*check) {
            return Err(BatchError::Check);
        }
        let (fingerprint, rest) = split(checked)?;
        let (origin, rest) = split(rest)?;
        let (count, rest) = split(rest)?;
        let runs = usize::from(u16::from_le_bytes(*count)) * RUN;
        let (runs, hashes) = rest.split_at_checked(runs).ok_or(BatchError::Length)?;
        let (runs, _) = runs.as_chunks();
        let (hashes, over) = hashes.as_chunks();
        let said: usize = runs.iter().map(|run| usize::from(fields(run).2)).sum();
        if !over.is_empty() || said != hashes.len() {
            return Err(BatchError::Length);
        }
        let fingerprint = Fingerprint(u64::from_le_bytes(*fingerprint));
        Ok(Self { fingerprint, origin: OriginId(*origin), runs, hashes })
    }

    /// Fingerprint of the hashes.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Life of the process that published them.
    pub fn origin(&self) -> OriginId {
        self.origin
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.hashes.len()
    }

    /// The blocks of each endpoint.
    pub fn held(&self) -> impl Iterator<Item = EndpointBlocks> + use<'a> {
        let mut rest = self.hashes;
        self.runs.iter().map(move |run| {
            let (endpoint, capacity, count) = fields(run);
            let (these, behind) = rest.split_at_checked(count.into()).unwrap_or((rest, &[]));
            rest = behind;
            let hashes = these.iter().map(|hash| u64::from_le_bytes(*hash)).collect();
            EndpointBlocks { endpoint, capacity, hashes }
        })
    }
}

/// Writes as many blocks as a batch takes, from the first on, and takes them away. The end of a run that does not fit is
/// written before its beginning, which then is more recent, as in the cache of an engine.
pub fn encode(fingerprint: Fingerprint, origin: OriginId, held: &mut VecDeque<EndpointBlocks>) -> Vec<u8> {
    let (mut runs, mut hashes) = (Vec::new(), Vec::new());
    let mut left = ROOM;
    while let Some(EndpointBlocks { endpoint, capacity, hashes: these }) = held.front_mut() {
        let fits = fits(left);
        let all = these.len() <= fits;
        let now = these.split_off(these.len().saturating_sub(fits));
        if !now.is_empty() {
            left -= size(now.len());
            runs.extend_from_slice(&endpoint.0.to_le_bytes());
            runs.extend_from_slice(&(*capacity).min(MAX_CAPACITY).to_le_bytes()[..3]);
            runs.extend_from_slice(&(now.len() as u16).to_le_bytes());
            hashes.reserve(now.len() * HASH);
            now.into_iter().for_each(|hash| hashes.extend_from_slice(&hash.to_le_bytes()));
        }
        if !all {
            break;
        }
        held.pop_front();
    }
    let mut bytes = Vec::with_capacity(HEAD + runs.len() + hashes.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&[0; CHECKED_FROM - 1]);
    bytes.extend_from_slice(&fingerprint.0.to_le_bytes());
    bytes.extend_from_slice(&origin.0);
    bytes.extend_from_slice(&((runs.len() / RUN) as u16).to_le_bytes());
    bytes.append(&mut runs);
    bytes.append(&mut hashes);
    let check = xxh3_64(&bytes[CHECKED_FROM..]);
    bytes[1..CHECKED_FROM].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Blocks of a run that fit into so many bytes.
pub(super) const fn fits(bytes: usize) -> usize {
    bytes.saturating_sub(RUN) / HASH
}

/// Bytes of a run of so many blocks.
pub(super) const fn size(blocks: usize) -> usize {
    RUN + blocks * HASH
}

fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), BatchError> {
    bytes.split_first_chunk().ok_or(BatchError::Length)
}

/// Endpoint, capacity and number of blocks of a run.
fn fields(run: &[u8; RUN]) -> (EndpointId, u32, u16) {
    let [e0, e1, e2, e3, e4, e5, e6, e7, c0, c1, c2, n0, n1] = *run;
    let endpoint = EndpointId(u64::from_le_bytes([e0, e1, e2, e3, e4, e5, e6, e7]));
    (endpoint, u32::from_le_bytes([c0, c1, c2, 0]), u16::from_le_bytes([n0, n1]))
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
