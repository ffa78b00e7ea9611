//! Prefixes of prompts that endpoints hold: hashes of a prompt's blocks, and the index from a block
//! to the endpoints that were sent it.
//!
//! A request's prompts are cut into blocks of a size ([`Blocks`]). Before a decision
//! [`PrefixIndex::find`] says how many leading blocks each candidate holds; it takes no lock.
//! After a decision the chosen endpoint's blocks are handed to an [`IndexWriter`], whose thread
//! puts them into the index, so that no reply waits for that. A few it adds at once: to wake
//! the thread takes longer.
//!
//! An index and its writer belong together and outlive a configuration: whoever keeps state
//! for its plugins keeps both, and hands the regular sweep to the writer, too.
//!
//! [`share`] publishes it to other replicas, and takes theirs.
//!
//! Beside it is an [`EngineIndex`] of what engines say they hold.
//!
//! The hashes are this program's own. They are the same in every process of one version of
//! it, and not those of any model server.

mod hash;
mod index;
mod index_writer;
pub mod share;

pub use hash::Blocks;
pub(crate) use hash::chain;
pub use index::{
    EndpointBlocks, EndpointId, EngineIndex, EngineMatch, EngineStatus, Export, Limits, Matched, OriginId,
    PrefixIndex, Restored, TierWeights, Updates,
};
pub use index_writer::{IndexWriter, IndexWriterCounts};
