//! Streams that are open, and those that are refused.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tokio::sync::Semaphore;

use super::{Budget, Kind, overcommit};
use crate::memory::refusals::RefusedStream;

impl Budget {
    /// A stream was opened, and counts until it is [closed](Self::close_stream). Returns whether
    /// there is room for it; it is to be [refused](Self::refuse_stream) where there is none.
    ///
    /// The limit may be exceeded somewhat: the priority of a request is not known before its headers are
    /// read, and those of a high one find room then.
    pub fn open_stream(&self) -> bool {
        self.used[Kind::Streams as usize].0.fetch_add(Self::STREAM, Relaxed);
        let total = self.grown();
        let limit = self.limit.load(Relaxed);
        // The other half is for messages of requests that are on their way.
        total <= limit.saturating_add(overcommit(limit) / 2)
    }

    /// A stream that was [opened](Self::open_stream) is gone.
    pub fn close_stream(&self) {
        self.give_back(Kind::Streams, Self::STREAM);
    }

    /// Places of streams that have ended on our side, and not on the client's.
    pub fn lingering(&self) -> &Arc<Semaphore> {
        &self.lingering
    }

    /// A stream was [opened](Self::open_stream) for which there is no room. Where those that haven't
    /// ended take more than what may be used beyond the limit, the oldest are reset.
    pub fn refuse_stream(&self) -> RefusedStream {
        self.refusals.begin(Self::STREAM, overcommit(self.limit().unwrap_or(u64::MAX)))
    }

    /// Resets streams that were refused some time ago.
    pub(in crate::memory) fn check_refusals(&self, now: Instant) {
        self.refusals.check(now);
    }
}
