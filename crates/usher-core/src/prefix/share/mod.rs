//! Prefixes that replicas of a pool share, without I/O.
//!
//! An index keeps its updates in a queue. A [`Publisher`] makes batches of it, which every replica reads from a stream that all
//! have in common, and puts into its own index under their [origin](crate::prefix::OriginId). An [`Exchange`] has all of that for a pool,
//! with the [bound](StreamBound) of the stream, and a [`WarmUp`] reads the stream's end into a new replica.
//!
//! The stream may lose, repeat and reorder batches: each says of some blocks that an endpoint holds them, and stands alone. Batches
//! are not trusted: they are checked, allocate no more than they are long, and name nothing but blocks of endpoints that discovery knows.

mod batch;
mod bound;
mod exchange;
mod fingerprint;
mod publisher;
mod waiting;
mod warm_up;

pub use batch::{Batch, BatchError};
pub use bound::{EntryId, NoEntryId, StreamBound};
pub use exchange::{Exchange, ExchangeCounts, Received};
pub use fingerprint::{Fingerprint, Scheme};
pub use publisher::{Publisher, PublisherConfig, PublisherCounts};
pub use warm_up::WarmUp;

#[cfg(test)]
mod model_tests;
