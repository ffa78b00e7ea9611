//! Service that flows get at other replicas.

use super::time::Nanos;

/// Flows of a band that are published to other replicas, at most: those that got most.
pub(super) const MOST_FLOWS: usize = 256;

/// Service of a flow at another replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Hash of its name that replicas have in common.
    pub(super) flow: u64,
    /// Tokens that it had got, as far as they weren't forgotten then.
    pub(super) tokens: u32,
    /// Nanoseconds since.
    pub(super) age: Nanos,
}
