//! A cache in front of a [`PodLocator`]: one view per subset, shared by all
//! requests with that subset.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use dashmap::DashMap;
use tokio::sync::Mutex;

use super::{Candidates, Clock, PodLocator, SubsetHint};

/// How the cache is used.
#[derive(Debug, Default)]
pub struct LocatorMetrics {
    /// Look-ups answered from the cache.
    pub hits: AtomicU64,
    /// Look-ups that had to ask the locator.
    pub misses: AtomicU64,
}

#[derive(Clone, Debug)]
struct Held {
    candidates: Candidates,
    generation: u64,
    until_ms: u64,
}

#[derive(Debug, Default)]
struct Entry {
    held: ArcSwapOption<Held>,
    // Guards the fetch of this one key: who comes second waits for the first
    // one's answer instead of asking again. An async mutex, as the fetch may do I/O.
    fetch: Mutex<()>,
}

/// A locator with a cache. The view without a hint has its own place, so the
/// common request takes no lock and hashes nothing.
pub struct CachedLocator {
    locator: Arc<dyn PodLocator>,
    clock: Clock,
    ttl: Duration,
    max_keys: usize,
    default: Entry,
    keyed: DashMap<SubsetHint, Arc<Entry>>,
    metrics: LocatorMetrics,
}

impl CachedLocator {
    /// How long a view is kept when nothing changes, as the peer does.
    pub const DEFAULT_TTL: Duration = Duration::from_millis(50);
    /// How many subsets are kept at most. Gateways send a handful.
    pub const DEFAULT_MAX_KEYS: usize = 4096;

    /// Puts a cache in front of `locator`.
    pub fn new(locator: Arc<dyn PodLocator>, clock: Clock, ttl: Duration, max_keys: usize) -> Self {
        Self {
            locator,
            clock,
            ttl,
            max_keys: max_keys.max(1),
            default: Entry::default(),
            keyed: DashMap::new(),
            metrics: LocatorMetrics::default(),
        }
    }

    /// The cached candidates, if they are still good.
    pub fn peek(&self, hint: &SubsetHint) -> Option<Candidates> {
        let found = match hint {
            SubsetHint::Missing => self.good(&self.default),
            SubsetHint::Only(_) => self.keyed.get(hint).and_then(|entry| self.good(&entry)),
        };
        if found.is_some() {
            self.metrics.hits.fetch_add(1, Relaxed);
        }
        found
    }

    /// The candidates, from the cache or from the locator. However many ask for
    /// a key at once, the locator is asked once.
    pub async fn locate(&self, hint: &SubsetHint) -> Candidates {
        if let Some(candidates) = self.peek(hint) {
            return candidates;
        }
        match hint {
            SubsetHint::Missing => self.fetch(&self.default, hint).await,
            SubsetHint::Only(_) => {
                let entry = self.entry(hint);
                self.fetch(&entry, hint).await
            }
        }
    }

    /// Hits and misses so far.
    pub fn metrics(&self) -> &LocatorMetrics {
        &self.metrics
    }

    /// Subsets held, without the default one.
    pub fn keys(&self) -> usize {
        self.keyed.len()
    }

    /// Drops the views that are out of date. A view keeps its snapshot alive, and
    /// that the slots of endpoints that are gone: without this, a subset that is
    /// never asked for again would hold both for ever.
    pub fn sweep(&self) {
        self.keyed.retain(|_, entry| self.good(entry).is_some());
        let held = self.default.held.load_full();
        if held.is_some() && self.good(&self.default).is_none() {
            // Only the view that was looked at: a request may have put a new one there.
            self.default.held.compare_and_swap(&held, None);
        }
    }

    fn good(&self, entry: &Entry) -> Option<Candidates> {
        let held = entry.held.load();
        let held = held.as_ref()?;
        (held.generation == self.locator.generation() && self.clock.now_ms() < held.until_ms)
            .then(|| held.candidates.clone())
    }

    fn entry(&self, hint: &SubsetHint) -> Arc<Entry> {
        if let Some(entry) = self.keyed.get(hint) {
            return Arc::clone(&entry);
        }
        if self.keyed.len() >= self.max_keys {
            self.make_room();
        }
        Arc::clone(&self.keyed.entry(hint.clone()).or_default())
    }

    /// Drops what has expired, and everything if that was nothing: a view costs
    /// microseconds to make again, a bound that is not kept costs the process.
    fn make_room(&self) {
        self.keyed.retain(|_, entry| self.good(entry).is_some());
        if self.keyed.len() >= self.max_keys {
            self.keyed.clear();
        }
    }

    async fn fetch(&self, entry: &Entry, hint: &SubsetHint) -> Candidates {
        let _first = entry.fetch.lock().await;
        if let Some(candidates) = self.good(entry) {
            self.metrics.hits.fetch_add(1, Relaxed);
            return candidates;
        }
        self.metrics.misses.fetch_add(1, Relaxed);
        // Read before the fetch: a change in between makes the entry stale at
        // once instead of hiding the change for a whole TTL.
        let generation = self.locator.generation();
        let candidates = self.locator.locate(hint).await;
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let until_ms = self.clock.now_ms().saturating_add(ttl_ms);
        entry.held.store(Some(Arc::new(Held { candidates: candidates.clone(), generation, until_ms })));
        candidates
    }
}

impl std::fmt::Debug for CachedLocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedLocator").field("keys", &self.keys()).field("metrics", &self.metrics).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, Located, Store, StoreLocator};
    use tokio::sync::Notify;

    fn store_of(count: u8) -> Arc<Store> {
        let store = Arc::new(Store::default());
        grow(&store, count);
        store
    }

    fn grow(store: &Store, count: u8) {
        store.replace(
            (1..=count).map(|i| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000))).collect(),
        );
    }

    fn cached(locator: Arc<dyn PodLocator>, ttl: Duration, max_keys: usize) -> CachedLocator {
        CachedLocator::new(locator, Clock::start(), ttl, max_keys)
    }

    const LONG: Duration = Duration::from_secs(3600);

    /// Counts its calls and answers when it is told to.
    struct Slow {
        inner: StoreLocator,
        calls: AtomicU64,
        go: Notify,
    }

    impl PodLocator for Slow {
        fn locate<'a>(&'a self, hint: &'a SubsetHint) -> Located<'a> {
            self.calls.fetch_add(1, Relaxed);
            Box::pin(async move {
                self.go.notified().await;
                self.inner.locate(hint).await
            })
        }

        fn generation(&self) -> u64 {
            self.inner.generation()
        }
    }

    #[tokio::test]
    async fn a_view_is_shared_until_membership_changes() {
        let store = store_of(3);
        let cache = cached(Arc::new(StoreLocator::new(Arc::clone(&store), false)), LONG, 8);
        let hint = SubsetHint::from_entries(["10.0.0.2:8000"]);
        assert!(cache.peek(&hint).is_none());
        assert_eq!(cache.locate(&hint).await.len(), 1);
        assert_eq!(cache.locate(&SubsetHint::Missing).await.len(), 3);
        assert_eq!(cache.peek(&SubsetHint::Missing).map(|c| c.len()), Some(3));
        grow(&store, 4);
        assert!(cache.peek(&hint).is_none(), "a new generation drops the view");
        assert_eq!(cache.locate(&SubsetHint::Missing).await.len(), 4);
        assert_eq!(cache.metrics().misses.load(Relaxed), 3);
    }

    #[tokio::test]
    async fn without_a_ttl_every_look_up_asks() {
        let cache = cached(Arc::new(StoreLocator::new(store_of(1), false)), Duration::ZERO, 8);
        cache.locate(&SubsetHint::Missing).await;
        assert!(cache.peek(&SubsetHint::Missing).is_none());
    }

    #[tokio::test]
    async fn one_fetch_per_key_and_no_key_waits_for_another() {
        let slow = Arc::new(Slow {
            inner: StoreLocator::new(store_of(3), false),
            calls: AtomicU64::new(0),
            go: Notify::new(),
        });
        let cache = Arc::new(cached(slow.clone(), LONG, 8));
        let ask = |hint: SubsetHint| {
            let cache = Arc::clone(&cache);
            tokio::spawn(async move { cache.locate(&hint).await.len() })
        };
        let same: Vec<_> = (0..16).map(|_| ask(SubsetHint::Missing)).collect();
        let other = ask(SubsetHint::from_entries(["10.0.0.1"]));
        tokio::task::yield_now().await;
        assert_eq!(slow.calls.load(Relaxed), 2, "one per key, both under way");
        slow.go.notify_waiters();
        for task in same {
            assert_eq!(task.await.unwrap(), 3);
        }
        assert_eq!(other.await.unwrap(), 1);
        assert_eq!(slow.calls.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn the_number_of_keys_is_bounded() {
        let cache = cached(Arc::new(StoreLocator::new(store_of(1), false)), LONG, 16);
        for i in 0..200u8 {
            let entry = format!("10.1.0.{i}");
            cache.locate(&SubsetHint::from_entries([entry.as_str()])).await;
            assert!(cache.keys() <= 16);
        }
    }

    #[tokio::test]
    async fn a_sweep_lets_go_of_what_is_out_of_date() {
        let store = store_of(2);
        let cache = cached(Arc::new(StoreLocator::new(Arc::clone(&store), false)), LONG, 8);
        let hint = SubsetHint::from_entries(["10.0.0.2"]);
        cache.locate(&hint).await;
        cache.locate(&SubsetHint::Missing).await;
        let old = Arc::downgrade(&store.snapshot());
        cache.sweep();
        assert_eq!(cache.keys(), 1, "what is still good stays");
        grow(&store, 1);
        assert!(old.upgrade().is_some(), "the views hold the snapshot");
        cache.sweep();
        assert_eq!(cache.keys(), 0);
        assert!(old.upgrade().is_none());
    }

    #[tokio::test]
    async fn hints_can_be_ignored() {
        let cache = cached(Arc::new(StoreLocator::new(store_of(3), true)), LONG, 8);
        assert_eq!(cache.locate(&SubsetHint::from_entries(["10.0.0.1"])).await.len(), 3);
    }
}
