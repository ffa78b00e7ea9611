//! Fetches in flight: one for each key, however many wait for it.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dashmap::{DashMap, Entry};
use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};

use crate::endpoints::{Candidates, Snapshot, SubsetHint};

/// Result of a fetch.
#[derive(Clone, Debug)]
pub(super) struct FetchResult {
    pub(super) candidates: Candidates,
    /// Generation of the membership, read before the candidates were looked for.
    pub(super) generation: u64,
}

type Boxed = Pin<Box<dyn Future<Output = FetchResult> + Send>>;

/// A fetch to wait for. All that wait for it are woken when it can go on, and any of them
/// moves it, so that none depends on another; it ends when none is left.
pub(super) struct SharedFetch {
    pub(super) fetch: Shared<Boxed>,
    pub(super) number: u64,
    /// `true` if this look-up began it.
    pub(super) is_own: bool,
}

/// Fetches in flight: as many at most as look-ups that wait.
#[derive(Debug, Default)]
pub(super) struct SingleFlight {
    // Each shard is locked to look a fetch up, never while one waits.
    in_flight: DashMap<SubsetHint, (u64, WeakShared<Boxed>)>,
    last: AtomicU64,
}

impl SingleFlight {
    /// The fetch of this key that is in flight, or a new one if there is none but that
    /// numbered `stale`.
    pub(super) fn join<F>(
        self: &Arc<Self>,
        hint: &SubsetHint,
        stale: Option<u64>,
        fetch: impl FnOnce() -> F,
    ) -> SharedFetch
    where
        F: Future<Output = FetchResult> + Send + 'static,
    {
        let entry = self.in_flight.entry(hint.clone());
        // Nothing may be dropped while the entry is locked that takes a fetch out of the map.
        if let Entry::Occupied(there) = &entry
            && let (number, weak) = there.get()
            && stale != Some(*number)
            && let Some(fetch) = weak.upgrade()
        {
            return SharedFetch { fetch, number: *number, is_own: false };
        }
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let in_flight = InFlightFetch { fetches: Arc::clone(self), hint: hint.clone(), number };
        let fetch = fetch();
        let whole: Boxed = Box::pin(async move {
            let _in_flight = in_flight;
            // A locator that panics has found nobody; those that wait for it go on.
            AssertUnwindSafe(fetch).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!("the locator panicked; the request has no candidates");
                FetchResult { candidates: Arc::new(Snapshot::new(0, Vec::new())).all(), generation: 0 }
            })
        });
        let fetch = whole.shared();
        if let Some(weak) = fetch.downgrade() {
            entry.insert((number, weak));
        }
        SharedFetch { fetch, number, is_own: true }
    }

    /// Number of fetches in flight.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }
}

/// Removes a fetch from the map when it has ended, or without waiting callers.
struct InFlightFetch {
    fetches: Arc<SingleFlight>,
    hint: SubsetHint,
    number: u64,
}

impl Drop for InFlightFetch {
    fn drop(&mut self) {
        // Another may be there already, that began when this one had become stale.
        self.fetches.in_flight.remove_if(&self.hint, |_, (number, _)| *number == self.number);
    }
}
