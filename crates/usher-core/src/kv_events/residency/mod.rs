//! Blocks that engines hold, by Usher's own keys.
//!
//! Events name blocks by hashes that only their engine can compute, so each source has a table from these to
//! [keys](super::Chain) computed from the tokens. Blocks form trees: a block's key follows from its parent's, and
//! stores whose parent is not known wait for it. Copies are counted by tier and KV cache group, as engines publish every
//! copy.
//!
//! Blocks of an engine may be of another size than ours. One of ours is held when all blocks of the engine that it has
//! a part of are.
//!
//! Memory is bounded. What is only remembered goes first: blocks that were held a short while ago, which an engine may
//! name once more as it moves them to another tier. Then go blocks without children, the coldest first, so that the tail
//! of a sequence goes before its head and what many sequences share goes last.

mod blocks;
mod by_hash;
mod forest;
mod numbers;
mod pending;
mod settings;
mod store;
mod tier;

pub use blocks::SourceId;
pub use forest::Change;
pub use settings::{Settings, Summary};
pub use store::Residency;
pub use tier::{Media, Tier};

#[cfg(test)]
mod tests;
