//! Requests and tokens in flight at an endpoint, as producers count them.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Counters of an endpoint that belong to a producer. The default are the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightId(u8);

impl InFlightId {
    /// Most producers that count at once; a configuration has one.
    pub const MAX: usize = 4;

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::MAX).filter_map(Self::new)
    }

    /// The counters at this index, if there are so many.
    pub fn new(index: usize) -> Option<Self> {
        if index < Self::MAX { u8::try_from(index).ok().map(Self) } else { None }
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Requests and tokens under way at one endpoint: those that this process sent
/// there, and apart from them what other replicas say they sent.
#[derive(Debug, Default)]
pub struct InFlight {
    requests: AtomicI64,
    tokens: AtomicI64,
    reported_requests: AtomicI64,
    reported_tokens: AtomicI64,
}

impl InFlight {
    /// Requests of this process, never negative.
    pub fn own_requests(&self) -> u64 {
        floor(self.requests.load(Relaxed))
    }

    /// Tokens of this process, never negative.
    pub fn own_tokens(&self) -> u64 {
        floor(self.tokens.load(Relaxed))
    }

    /// Requests of this process and of the replicas that reported.
    pub fn requests(&self) -> u64 {
        self.own_requests() + floor(self.reported_requests.load(Relaxed))
    }

    /// Tokens of this process and of the replicas that reported.
    pub fn tokens(&self) -> u64 {
        self.own_tokens() + floor(self.reported_tokens.load(Relaxed))
    }

    /// Stores the requests and tokens that the other replicas have in flight there, all together.
    pub fn report(&self, requests: i64, tokens: i64) {
        self.reported_requests.store(requests, Relaxed);
        self.reported_tokens.store(tokens, Relaxed);
    }

    pub(super) fn add(&self, requests: i64, tokens: i64) {
        self.requests.fetch_add(requests, Relaxed);
        self.tokens.fetch_add(tokens, Relaxed);
    }
}

fn floor(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
