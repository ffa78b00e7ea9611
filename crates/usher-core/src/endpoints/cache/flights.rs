//! Fetches under way: one for each key, however many wait for it.

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
pub(super) struct Landed {
    pub(super) candidates: Candidates,
    /// Of the membership, read before the candidates were looked for.
    pub(super) generation: u64,
}

type Boxed = Pin<Box<dyn Future<Output = Landed> + Send>>;

/// A fetch to wait for. All that wait for it are woken when it can go on, and any of them
/// moves it, so that none depends on another; it ends when none is left.
pub(super) struct Flight {
    pub(super) fetch: Shared<Boxed>,
    pub(super) number: u64,
    /// It began with this look-up.
    pub(super) is_own: bool,
}

/// The fetches under way: as many at most as look-ups that wait.
#[derive(Debug, Default)]
pub(super) struct Flights {
    // Each shard is locked to look a fetch up, never while one waits.
    under_way: DashMap<SubsetHint, (u64, WeakShared<Boxed>)>,
    last: AtomicU64,
}

impl Flights {
    /// The fetch of this key that is under way, or a new one if there is none but that
    /// numbered `stale`.
    pub(super) fn board<F>(
        self: &Arc<Self>,
        hint: &SubsetHint,
        stale: Option<u64>,
        fetch: impl FnOnce() -> F,
    ) -> Flight
    where
        F: Future<Output = Landed> + Send + 'static,
    {
        let entry = self.under_way.entry(hint.clone());
        // Nothing may be dropped while the entry is locked that takes a fetch out of the map.
        if let Entry::Occupied(there) = &entry
            && let (number, weak) = there.get()
            && stale != Some(*number)
            && let Some(fetch) = weak.upgrade()
        {
            return Flight { fetch, number: *number, is_own: false };
        }
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let under_way = UnderWay { flights: Arc::clone(self), hint: hint.clone(), number };
        let fetch = fetch();
        let whole: Boxed = Box::pin(async move {
            let _under_way = under_way;
            // A locator that panics has found nobody; those that wait for it go on.
            AssertUnwindSafe(fetch).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!("the locator panicked; the request has no candidates");
                Landed { candidates: Arc::new(Snapshot::new(0, Vec::new())).all(), generation: 0 }
            })
        });
        let fetch = whole.shared();
        if let Some(weak) = fetch.downgrade() {
            entry.insert((number, weak));
        }
        Flight { fetch, number, is_own: true }
    }

    /// Number of flights.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }
}

/// Takes a fetch out of the map when it has ended, or nobody waits for it any more.
struct UnderWay {
    flights: Arc<Flights>,
    hint: SubsetHint,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Another may be there already, that began when this one had become stale.
        self.flights.under_way.remove_if(&self.hint, |_, (number, _)| *number == self.number);
    }
}
