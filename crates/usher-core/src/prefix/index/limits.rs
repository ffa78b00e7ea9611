//! Limits of an index.

/// Limits of a [`PrefixIndex`](super::PrefixIndex).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries over all endpoints: a block at an endpoint is one. An entry takes 32 bytes
    /// at most while the index grows and when it is full, so this bounds the memory, too;
    /// with sources among other processes, three bytes more.
    pub entries: usize,
    /// Blocks that an endpoint is taken to hold that only others published, without its size.
    pub capacity: usize,
}

impl Limits {
    /// Bytes that an entry takes at most: up to 18.75 in the list of its endpoint, and up to
    /// 12.5 for its block where nobody else has it. Full endpoints take 15 and 10 to 12.5.
    pub const BYTES_PER_ENTRY: usize = 32;

    /// Limits of an index of so many bytes.
    pub fn of_bytes(bytes: usize) -> Self {
        Self { entries: bytes / Self::BYTES_PER_ENTRY, ..Self::default() }
    }
}

impl Default for Limits {
    /// 16 million entries, half a GiB when it is full: 500 endpoints with as many blocks as
    /// llm-d-router takes an endpoint to hold.
    fn default() -> Self {
        Self { entries: 1 << 24, capacity: 31_250 }
    }
}
