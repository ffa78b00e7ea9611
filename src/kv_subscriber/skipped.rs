//! Counts of events that were not applied.

use std::collections::BTreeMap;

use usher_core::kv_events::{CacheKind, Event, Skip};

/// Counts by kind of event, attention of its KV cache group, and reason.
pub(super) type Skipped = BTreeMap<(Kind, CacheKind, Skip), u64>;

/// Kind of an event that was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A store of blocks, or a message that can't be read as an event.
    Store,
    /// A removal or a clear.
    Removal,
}

impl Kind {
    pub(super) fn of(event: Result<&Event<'_>, Skip>) -> Self {
        match event {
            Ok(Event::Removed(_) | Event::Cleared { .. }) | Err(Skip::MalformedRemoval) => Self::Removal,
            Ok(Event::Stored(_)) | Err(_) => Self::Store,
        }
    }
}

/// Reason as llm-d-router names it, where it has the same.
pub(super) fn their_reason(skip: Skip) -> &'static str {
    match skip {
        Skip::OtherGroup => "unsupported_cache_kind",
        Skip::Placeholder => "invalid_block_size",
        Skip::Unaligned => "non_dense_block_span",
        other => other.name(),
    }
}
