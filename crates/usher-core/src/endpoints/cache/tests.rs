use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64};

use futures_util::FutureExt;
use tokio::sync::Notify;

use super::*;
use crate::endpoints::{EndpointSpec, Located, Store, StoreLocator};

const LONG: Duration = Duration::from_secs(3600);

fn store_of(count: u8) -> Arc<Store> {
    let store = Arc::new(Store::default());
    grow(&store, count);
    store
}

fn grow(store: &Store, count: u8) {
    store
        .replace((1..=count).map(|i| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000))).collect());
}

fn cached(locator: Arc<dyn PodLocator>, ttl: Duration, max_keys: usize) -> CachedLocator {
    CachedLocator::new(locator, Clock::start(), ttl, max_keys)
}

fn of_store(store: &Arc<Store>, max_keys: usize) -> CachedLocator {
    cached(Arc::new(StoreLocator::new(Arc::clone(store), false)), LONG, max_keys)
}

fn hint(entry: &str) -> SubsetHint {
    SubsetHint::from_entries([entry])
}

/// Different for every number.
fn numbered(number: u32) -> SubsetHint {
    hint(&Ipv4Addr::from(0x0b00_0000 + number).to_string())
}

/// Counts its calls. Each looks at the store at once, and says what it saw when it is told to.
struct Slow {
    store: Arc<Store>,
    calls: AtomicU64,
    go: Notify,
}

impl Slow {
    fn of(store: &Arc<Store>) -> Arc<Self> {
        Arc::new(Self { store: Arc::clone(store), calls: AtomicU64::new(0), go: Notify::new() })
    }

    fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }
}

impl PodLocator for Slow {
    fn locate<'a>(&'a self, hint: &'a SubsetHint) -> Located<'a> {
        self.calls.fetch_add(1, Relaxed);
        Box::pin(async move {
            let candidates = self.store.snapshot().subset(hint);
            self.go.notified().await;
            candidates
        })
    }

    fn generation(&self) -> u64 {
        self.store.generation()
    }
}

/// Asks in a task of its own.
fn ask(cache: &Arc<CachedLocator>, hint: SubsetHint) -> tokio::task::JoinHandle<usize> {
    let cache = Arc::clone(cache);
    tokio::spawn(async move { cache.locate(&hint).await.len() })
}

/// Lets all tasks run as far as they can.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_view_is_shared_until_membership_changes() {
    let store = store_of(3);
    let cache = of_store(&store, 8);
    let hint = hint("10.0.0.2:8000");
    assert!(cache.peek(&hint).is_none());
    assert_eq!(cache.locate(&hint).await.len(), 1);
    assert_eq!(cache.locate(&SubsetHint::Missing).await.len(), 3);
    let all = cache.peek(&SubsetHint::Missing).unwrap();
    assert!(all.is_same(&store.snapshot().all()), "a view of the snapshot, not a copy");
    grow(&store, 4);
    assert!(cache.peek(&hint).is_none(), "a new generation drops the view");
    assert_eq!(cache.locate(&SubsetHint::Missing).await.len(), 4);
    let metrics = cache.metrics();
    assert_eq!((metrics.hits(), metrics.misses.load(Relaxed)), (1, 3));
}

#[tokio::test]
async fn view_expires_after_its_ttl() {
    let clock = Clock::stopped();
    let locator = Arc::new(StoreLocator::new(store_of(3), false));
    let cache = CachedLocator::new(locator, clock.clone(), Duration::from_millis(50), 8);
    let hint = hint("10.0.0.2");
    cache.locate(&hint).await;
    clock.set(Duration::from_micros(49_999));
    assert!(cache.peek(&hint).is_some());
    clock.set(Duration::from_millis(50));
    assert!(cache.peek(&hint).is_none());
    cache.locate(&hint).await;
    clock.set(Duration::from_millis(99));
    assert!(cache.peek(&hint).is_some(), "its time begins anew");
}

#[tokio::test]
async fn zero_ttl_disables_caching() {
    let cache = cached(Arc::new(StoreLocator::new(store_of(1), false)), Duration::ZERO, 8);
    for _ in 0..3 {
        assert_eq!(cache.locate(&SubsetHint::Missing).await.len(), 1);
        assert_eq!(cache.locate(&hint("10.0.0.1")).await.len(), 1);
        assert!(cache.peek(&SubsetHint::Missing).is_none());
    }
    assert_eq!((cache.keys(), cache.metrics().misses.load(Relaxed)), (0, 6));
}

#[tokio::test]
async fn one_fetch_per_key_and_no_key_waits_for_another() {
    for ttl in [LONG, Duration::ZERO] {
        let slow = Slow::of(&store_of(3));
        let cache = Arc::new(cached(slow.clone(), ttl, 8));
        let same: Vec<_> = (0..16).map(|_| ask(&cache, SubsetHint::Missing)).collect();
        let other: Vec<_> = (0..16).map(|_| ask(&cache, hint("10.0.0.1"))).collect();
        settle().await;
        assert_eq!(slow.calls(), 2, "one per key, both under way");
        slow.go.notify_waiters();
        for task in same {
            assert_eq!(task.await.unwrap(), 3);
        }
        for task in other {
            assert_eq!(task.await.unwrap(), 1);
        }
        assert_eq!((slow.calls(), cache.metrics().shared.load(Relaxed)), (2, 30));
        assert_eq!(cache.fetches.len(), 0);
    }
}

#[tokio::test]
async fn fetch_survives_cancellation_of_its_first_caller() {
    let slow = Slow::of(&store_of(3));
    let cache = Arc::new(cached(slow.clone(), LONG, 8));
    let first = ask(&cache, SubsetHint::Missing);
    settle().await;
    let second = ask(&cache, SubsetHint::Missing);
    settle().await;
    first.abort();
    settle().await;
    slow.go.notify_waiters();
    assert_eq!(second.await.unwrap(), 3);
    assert_eq!(slow.calls(), 1);
    // When nobody is left, nothing is.
    let alone = ask(&cache, hint("10.0.0.1"));
    settle().await;
    assert_eq!(cache.fetches.len(), 1);
    alone.abort();
    settle().await;
    assert_eq!((cache.fetches.len(), cache.keys()), (0, 0));
}

#[tokio::test]
async fn stalled_caller_does_not_block_other_callers() {
    let slow = Slow::of(&store_of(3));
    let cache = Arc::new(cached(slow.clone(), LONG, 8));
    // It has asked, and is never polled again: its gateway doesn't read.
    let mut stalled = Box::pin(cache.locate(&SubsetHint::Missing));
    assert!(stalled.as_mut().now_or_never().is_none());
    let other = ask(&cache, SubsetHint::Missing);
    settle().await;
    slow.go.notify_waiters();
    assert_eq!(other.await.unwrap(), 3);
    assert_eq!(slow.calls(), 1);
    assert_eq!(stalled.await.len(), 3);
}

#[tokio::test]
async fn lookup_after_a_change_sees_the_change() {
    let store = store_of(3);
    let slow = Slow::of(&store);
    let cache = Arc::new(cached(slow.clone(), LONG, 8));
    let before = ask(&cache, SubsetHint::Missing);
    settle().await;
    grow(&store, 5);
    let after: Vec<_> = (0..4).map(|_| ask(&cache, SubsetHint::Missing)).collect();
    settle().await;
    slow.go.notify_waiters();
    assert_eq!(before.await.unwrap(), 3);
    settle().await;
    assert_eq!(slow.calls(), 2, "one more fetch, for all that came after the change");
    // However often it changes again, nobody waits for a third.
    grow(&store, 6);
    slow.go.notify_waiters();
    for task in after {
        assert_eq!(task.await.unwrap(), 5);
    }
    assert_eq!(slow.calls(), 2);
    assert!(cache.peek(&SubsetHint::Missing).is_none(), "what they got is out of date");
}

#[tokio::test]
async fn ten_thousand_subsets_stay_within_the_bound() {
    const MOST: usize = 100;
    let cache = of_store(&store_of(1), MOST);
    for number in 0..10_000 {
        cache.locate(&numbered(number)).await;
        assert!(cache.keys() <= MOST);
        // What was just found is found again, and what is asked for all the time stays.
        assert!(cache.peek(&numbered(number)).is_some());
        assert!(cache.peek(&SubsetHint::Missing).is_some() || number == 0);
        cache.locate(&SubsetHint::Missing).await;
    }
    assert!(cache.keys() > MOST / 2, "{} of {MOST}", cache.keys());
    let evicted = cache.metrics().evicted.load(Relaxed);
    assert_eq!(evicted, 10_000 - cache.keys() as u64);
}

#[test]
fn concurrent_lookups_stay_within_the_bound() {
    const MOST: usize = 64;
    let cache = of_store(&store_of(1), MOST);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8u32)
            .map(|thread| {
                let cache = &cache;
                scope.spawn(move || {
                    for number in 0..2000 {
                        let hint = numbered(thread << 16 | number);
                        assert_eq!(cache.locate(&hint).now_or_never().unwrap().len(), 0);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Relaxed) {
                assert!(cache.keys() <= MOST);
                cache.sweep();
            }
        });
        asking.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Relaxed);
    });
    assert_eq!(cache.fetches.len(), 0);
}

#[tokio::test]
async fn outdated_views_are_evicted_first() {
    let clock = Clock::stopped();
    let locator = Arc::new(StoreLocator::new(store_of(1), false));
    // One set of few addresses.
    let cache = CachedLocator::new(locator, clock.clone(), Duration::from_millis(50), 7);
    for number in 0..7 {
        clock.set(Duration::from_millis(u64::from(number) * 10));
        cache.locate(&numbered(number)).await;
    }
    // The first two are out of date at 60 ms.
    cache.locate(&numbered(100)).await;
    cache.locate(&numbered(101)).await;
    assert_eq!(cache.metrics().evicted.load(Relaxed), 0);
    cache.locate(&numbered(102)).await;
    assert_eq!(cache.metrics().evicted.load(Relaxed), 1);
    assert!(cache.peek(&numbered(2)).is_none(), "the oldest that was good");
    for kept in [3, 4, 5, 6, 100, 101, 102] {
        assert!(cache.peek(&numbered(kept)).is_some(), "{kept}");
    }
}

#[tokio::test]
async fn huge_subsets_are_resolved_and_take_no_room() {
    let cache = of_store(&store_of(3), 8 * CachedLocator::FEW);
    let addresses = |count: u32| -> Vec<String> {
        (0..count).map(|i| format!("{}:8000", Ipv4Addr::from(0x0a00_0001 + i))).collect()
    };
    for (count, kept) in [(64, true), (65, true), (1024, true), (1025, false), (70_000, false)] {
        let list = addresses(count);
        let hint = SubsetHint::from_entries(list.iter().map(String::as_str));
        assert_eq!(cache.locate(&hint).await.len(), 3);
        assert_eq!(cache.peek(&hint).is_some(), kept, "{count}");
    }
    assert_eq!(cache.keys(), 3);
}

#[tokio::test]
async fn sweep_removes_outdated_views() {
    let store = store_of(2);
    let cache = of_store(&store, 8);
    let hint = hint("10.0.0.2");
    cache.locate(&hint).await;
    cache.locate(&SubsetHint::Missing).await;
    let old = Arc::downgrade(&store.snapshot());
    cache.sweep();
    assert_eq!(cache.keys(), 1, "what is still good stays");
    // Every thread that asked has a reference of its own.
    std::thread::scope(|scope| {
        scope.spawn(|| cache.peek(&hint).unwrap());
        scope.spawn(|| cache.peek(&SubsetHint::Missing).unwrap());
    });
    grow(&store, 1);
    assert!(old.upgrade().is_some(), "the views hold the snapshot");
    cache.sweep();
    assert_eq!(cache.keys(), 0);
    assert!(old.upgrade().is_none());
}

#[tokio::test]
async fn ignored_hints_share_one_view() {
    let locator = StoreLocator::new(store_of(3), true);
    let cache = cached(Arc::new(locator), LONG, 8);
    for entry in ["10.0.0.1", "10.9.9.9:1", ""] {
        assert_eq!(cache.locate(&hint(entry)).await.len(), 3);
    }
    assert_eq!((cache.keys(), cache.metrics().misses.load(Relaxed)), (0, 1));
}

/// Panics, at once or after waiting.
struct Broken {
    waits: bool,
}

impl PodLocator for Broken {
    #[allow(clippy::panic, reason = "that is what it is for")]
    fn locate<'a>(&'a self, _: &'a SubsetHint) -> Located<'a> {
        Box::pin(async {
            if self.waits {
                tokio::task::yield_now().await;
            }
            panic!("a defect of the locator");
        })
    }

    fn generation(&self) -> u64 {
        0
    }
}

#[tokio::test]
async fn panicking_locator_has_no_candidates() {
    for waits in [false, true] {
        let cache = Arc::new(cached(Arc::new(Broken { waits }), LONG, 8));
        let asking: Vec<_> = (0..4).map(|_| ask(&cache, SubsetHint::Missing)).collect();
        for task in asking {
            assert_eq!(task.await.unwrap(), 0);
        }
        assert_eq!(cache.fetches.len(), 0);
        assert!(cache.peek(&SubsetHint::Missing).is_none());
    }
}

#[tokio::test]
async fn cache_hits_record_the_view_age() {
    let clock = Clock::stopped();
    let locator = Arc::new(StoreLocator::new(store_of(1), false));
    let cache = CachedLocator::new(locator, clock.clone(), Duration::from_millis(50), 8);
    cache.locate(&SubsetHint::Missing).await;
    clock.set(Duration::from_millis(7));
    cache.peek(&SubsetHint::Missing).unwrap();
    clock.set(Duration::from_millis(30));
    cache.peek(&SubsetHint::Missing).unwrap();
    let registry = prometheus::Registry::new();
    let age = cache.metrics().age.clone();
    registry.register(Box::new(crate::metrics::Timings::of("age_seconds", "Age.", age).unwrap())).unwrap();
    let page = crate::metrics::render(&registry);
    for line in
        ["age_seconds_bucket{le=\"0.01\"} 1", "age_seconds_bucket{le=\"0.05\"} 2", "age_seconds_sum 0.037"]
    {
        assert!(page.contains(line), "{line} in\n{page}");
    }
}
