//! Properties of a request when it begins to wait.

use super::time::Nanos;

/// A request that wants to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// Flow of the request.
    pub flow: &'a str,
    /// Priority; higher goes first.
    pub priority: i32,
    /// Bytes of its body.
    pub bytes: u64,
    /// Bytes of memory that it holds beside its body.
    pub beside: u64,
    /// Time at which its headers came.
    pub received: Nanos,
    /// Since when it waits.
    pub since: Nanos,
    /// Longest wait for room; `None`: for ever.
    pub ttl: Option<Nanos>,
    /// Time at which its first token is due, if it says so.
    pub due: Option<Nanos>,
}
