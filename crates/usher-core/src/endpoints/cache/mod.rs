//! A cache in front of a [`PodLocator`]: one view per subset, shared by all
//! requests with that subset.

mod singleflight;
mod views;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use self::singleflight::{FetchResult, SharedFetch, SingleFlight};
use self::views::{Held, Views, empty_unless};
use super::{Candidates, Clock, PodLocator, SubsetHint};
use crate::metrics::Timing;

/// Metrics of the cache's use.
#[derive(Debug, Default)]
pub struct LocatorMetrics {
    /// Age of the views that requests got from the cache. One duration for each hit.
    pub age: Timing,
    /// Look-ups that had to ask the locator.
    pub misses: AtomicU64,
    /// Look-ups that waited for what another one had asked for.
    pub shared: AtomicU64,
    /// Views that made room for another before their time.
    pub evicted: AtomicU64,
}

impl LocatorMetrics {
    /// Look-ups that the cache answered.
    pub fn hits(&self) -> u64 {
        self.age.count()
    }
}

/// A locator with a cache. A look-up that finds what it asks for takes no lock and writes
/// nothing that other threads write or read.
pub struct CachedLocator {
    shared: Arc<Shared>,
    fetches: Arc<SingleFlight>,
}

/// State that fetches need, which may outlive the look-up that began one.
struct Shared {
    locator: Arc<dyn PodLocator>,
    clock: Clock,
    ttl: Duration,
    default: ArcSwapOption<Held>,
    few: Views,
    many: Views,
    metrics: LocatorMetrics,
}

impl CachedLocator {
    /// Time for which a view is kept when nothing changes, as in llm-d-router.
    pub const DEFAULT_TTL: Duration = Duration::from_millis(50);
    /// Number of subsets that are kept at most. Gateways send a handful.
    pub const DEFAULT_MAX_KEYS: usize = 4096;
    /// Subsets of so many addresses have seven of eight places. With as many places as by
    /// default they take 6 MiB at most, and those with more 13.
    pub const FEW: usize = 64;
    /// Subsets of more addresses are not kept.
    pub const MANY: usize = 1024;

    /// Puts a cache in front of `locator`, which keeps a view for `ttl` when nothing changes
    /// before, and those of `max_keys` subsets at most. With a `ttl` of zero it keeps none:
    /// every look-up asks the locator, or waits for one that is asking it. The view without
    /// a hint is always kept, beside the others.
    pub fn new(locator: Arc<dyn PodLocator>, clock: Clock, ttl: Duration, max_keys: usize) -> Self {
        let many = max_keys / 8;
        let shared = Shared {
            locator,
            clock,
            ttl,
            default: ArcSwapOption::empty(),
            few: Views::new(max_keys - many),
            many: Views::new(many),
            metrics: LocatorMetrics::default(),
        };
        Self { shared: Arc::new(shared), fetches: Arc::default() }
    }

    /// The cached candidates, if they are still good.
    pub fn peek(&self, hint: &SubsetHint) -> Option<Candidates> {
        self.shared.peek(self.shared.key(hint))
    }

    /// The candidates, from the cache or from the locator. However many ask for a key at
    /// once, the locator is asked once: the others wait for its result, and for nothing
    /// else. Who goes away meanwhile takes nothing from those that wait.
    pub async fn locate(&self, hint: &SubsetHint) -> Candidates {
        let hint = self.shared.key(hint);
        if let Some(candidates) = self.shared.peek(hint) {
            return candidates;
        }
        let mut stale = None;
        loop {
            let SharedFetch { fetch, number, is_own } = self.fetches.join(hint, stale, || self.fetch(hint));
            if !is_own {
                self.shared.metrics.shared.fetch_add(1, Relaxed);
            }
            let FetchResult { candidates, generation } = fetch.await;
            // One that had begun before this look-up may have missed a change since.
            // Another that begins now can't have.
            if is_own || stale.is_some() || generation == self.shared.locator.generation() {
                return candidates;
            }
            stale = Some(number);
        }
    }

    /// Metrics of the cache's use.
    pub fn metrics(&self) -> &LocatorMetrics {
        &self.shared.metrics
    }

    /// Subsets held, without the view that has no hint.
    pub fn keys(&self) -> usize {
        self.shared.few.len() + self.shared.many.len()
    }

    /// Drops the views that are out of date. A view keeps its snapshot alive, and
    /// that the slots of endpoints that are gone: without this, a subset that is
    /// never asked for again would hold both for ever.
    pub fn sweep(&self) {
        let good = |held: &Held| self.shared.age(held).is_some();
        self.shared.few.retain(good);
        self.shared.many.retain(good);
        empty_unless(&self.shared.default, good);
    }

    /// Queries the locator, and caches its result.
    fn fetch(&self, hint: &SubsetHint) -> impl Future<Output = FetchResult> + Send + 'static + use<> {
        let (shared, hint) = (Arc::clone(&self.shared), hint.clone());
        async move {
            let generation = shared.locator.generation();
            // Another fetch may have ended between this look-up's look and its own.
            if let Some(candidates) = shared.peek(&hint) {
                return FetchResult { candidates, generation };
            }
            shared.metrics.misses.fetch_add(1, Relaxed);
            // The generation from before: a change in between makes the view stale at once
            // instead of hiding the change for a whole TTL.
            let candidates = shared.locator.locate(&hint).await;
            shared.keep(Held::new(hint, generation, shared.clock.elapsed(), candidates.clone()));
            FetchResult { candidates, generation }
        }
    }
}

impl Shared {
    /// Key that a hint is kept under: the same for all where the locator doesn't look at them.
    fn key<'a>(&self, hint: &'a SubsetHint) -> &'a SubsetHint {
        if self.locator.ignores_hints() { &SubsetHint::Missing } else { hint }
    }

    fn peek(&self, hint: &SubsetHint) -> Option<Candidates> {
        let held = match hint.addresses() {
            None => self.default.load(),
            Some(addresses) => self.views(addresses.len())?.get(hint)?,
        };
        let held = held.as_ref()?;
        self.metrics.age.observe(self.age(held)?);
        Some(held.candidates())
    }

    /// Age of a view; `None` if it is out of date.
    fn age(&self, held: &Held) -> Option<Duration> {
        if held.generation != self.locator.generation() {
            return None;
        }
        let age = self.clock.elapsed().saturating_sub(held.found);
        (age < self.ttl).then_some(age)
    }

    /// Views of subsets of so many addresses.
    fn views(&self, addresses: usize) -> Option<&Views> {
        if addresses <= CachedLocator::FEW {
            return Some(&self.few);
        }
        (addresses <= CachedLocator::MANY).then_some(&self.many)
    }

    fn keep(&self, held: Held) {
        if self.ttl.is_zero() {
            return;
        }
        let Some(addresses) = held.hint.addresses() else { return self.default.store(Some(Arc::new(held))) };
        let Some(views) = self.views(addresses.len()) else { return };
        if views.put(Arc::new(held), |there| self.age(there).is_some()) {
            self.metrics.evicted.fetch_add(1, Relaxed);
        }
    }
}

impl std::fmt::Debug for CachedLocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedLocator").field("keys", &self.keys()).field("metrics", self.metrics()).finish()
    }
}

#[cfg(test)]
mod tests;
