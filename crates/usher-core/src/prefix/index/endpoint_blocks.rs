//! Blocks of endpoints in the form in which processes publish them.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use crate::endpoints::Endpoint;

/// An endpoint in every process: XXH3 of its [identity](Endpoint::identity). Slots mean nothing in
/// another process, and a name may be that of a later pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

impl EndpointId {
    /// Id of an endpoint.
    pub fn of(endpoint: &Endpoint) -> Self {
        Self::named(endpoint.identity())
    }

    /// Id of the endpoint with this identity.
    pub(super) fn named(identity: &str) -> Self {
        Self(xxh3_64(identity.as_bytes()))
    }
}

/// One life of a process: random bytes of its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginId(pub [u8; 16]);

impl OriginId {
    /// A new one.
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for OriginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for OriginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OriginId({self})")
    }
}

/// Blocks that an endpoint holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointBlocks {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Blocks that its cache is taken to have room for; 0 if that is unknown.
    pub capacity: u32,
    /// Block hashes, the blocks of a prompt in their order.
    pub hashes: Vec<u64>,
}
