//! Requests that wait for a first byte, as the sweep judges them.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;

use super::*;
use crate::endpoints::{Clock, Endpoint, EndpointSpec, Store};

const SMALL: usize = 500;
const LARGE: usize = 100_000;

struct Pool {
    clock: Clock,
    outliers: Arc<OutlierDetector>,
    store: Store,
}

impl Pool {
    /// Two endpoints; the first byte of a small request takes a tenth of a second.
    fn new() -> Self {
        let (registry, clock) = (Registry::new(), Clock::stopped());
        let metrics = OutlierMetrics::register(&registry).unwrap();
        let outliers = Arc::new(OutlierDetector::new(HealthParams::default(), clock.clone(), metrics));
        let store = Store::watched(Arc::clone(&outliers));
        let spec = |name: &str, last| EndpointSpec::new(name, ([10, 0, 0, last], 8000));
        store.replace(vec![spec("a", 1), spec("b", 2)]);
        let pool = Self { clock, outliers, store };
        for _ in 0..20 {
            pool.responds(1, SMALL, 100);
        }
        pool
    }

    fn endpoint(&self, index: usize) -> Arc<Endpoint> {
        Arc::clone(&self.store.snapshot().endpoints()[index])
    }

    fn send(&self, index: usize, bytes: usize) -> AwaitedByte {
        self.send_as(index, RequestClass::of(bytes, true, None))
    }

    /// A request of a few bytes that link to an image.
    fn send_image(&self, index: usize) -> AwaitedByte {
        self.send_as(index, RequestClass::of(SMALL, true, None).with_media())
    }

    fn send_as(&self, index: usize, class: RequestClass) -> AwaitedByte {
        self.endpoint(index).health().awaits(class, self.clock.now_ms()).unwrap()
    }

    /// Lets time pass, as the sweep sees it.
    fn pass(&self, ms: u64) {
        for _ in 0..ms.div_ceil(100) {
            self.clock.set(self.clock.elapsed() + Duration::from_millis(ms.min(100)));
            self.outliers.sweep(&self.store.snapshot());
        }
    }

    fn responds(&self, index: usize, bytes: usize, ms: u64) {
        let awaited = self.send(index, bytes);
        self.pass(ms);
        awaited.came(self.clock.now_ms());
        self.pass(1);
    }

    fn failures(&self, index: usize) -> u32 {
        self.endpoint(index).health().condition().failures
    }
}

#[test]
fn three_requests_without_a_first_byte_eject() {
    let pool = Pool::new();
    let awaited: Vec<_> = (0..2).map(|_| pool.send(0, SMALL)).collect();
    pool.responds(1, SMALL, 100);
    pool.pass(1500);
    assert_eq!(pool.failures(0), 0);
    pool.pass(1000);
    assert_eq!(pool.failures(0), 2);
    pool.pass(60_000);
    assert_eq!(pool.failures(0), 2);
    let third = pool.send(0, SMALL);
    pool.responds(1, SMALL, 100);
    pool.pass(2500);
    assert!(pool.endpoint(0).health().is_ejected());
    assert_eq!(pool.endpoint(0).health().condition().ejection.unwrap().cause, Failure::Timeout);
    drop((awaited, third));
}

#[test]
fn endpoints_are_not_overdue_while_peers_are_silent() {
    let pool = Pool::new();
    let _awaited: Vec<_> = (0..9).map(|_| pool.send(0, SMALL)).collect();
    let _others: Vec<_> = (0..9).map(|_| pool.send(1, SMALL)).collect();
    pool.pass(60_000);
    assert_eq!((pool.failures(0), pool.failures(1)), (0, 0));
}

#[test]
fn endpoint_that_responds_is_not_overdue() {
    let pool = Pool::new();
    let _awaited: Vec<_> = (0..9).map(|_| pool.send(0, SMALL)).collect();
    for _ in 0..60 {
        pool.responds(1, SMALL, 100);
        pool.responds(0, SMALL, 900);
    }
    assert_eq!(pool.failures(0), 0);
}

#[test]
fn progress_in_metrics_is_a_sign_of_life() {
    let pool = Pool::new();
    let endpoint = pool.endpoint(0);
    let _awaited: Vec<_> = (0..9).map(|_| pool.send(0, SMALL)).collect();
    for step in 0..60 {
        endpoint.load().kv_usage.set(f64::from(step) / 100.0, pool.clock.now_ms());
        endpoint.health().page_read(endpoint.load());
        pool.responds(1, SMALL, 1000);
    }
    assert_eq!(pool.failures(0), 0);
    for _ in 0..9 {
        endpoint.health().page_read(endpoint.load());
        pool.responds(1, SMALL, 1000);
    }
    assert!(endpoint.health().is_ejected());
}

#[test]
fn requests_behind_a_long_prompt_are_not_overdue() {
    let pool = Pool::new();
    let _long = pool.send(0, LARGE);
    let _behind: Vec<_> = (0..9).map(|_| pool.send(0, SMALL)).collect();
    for _ in 0..60 {
        pool.responds(1, SMALL, 1000);
    }
    assert_eq!(pool.failures(0), 0);
}

#[test]
fn unknown_media_times_judge_neither_media_nor_text_behind() {
    let pool = Pool::new();
    let images: Vec<_> = (0..9).map(|_| pool.send_image(0)).collect();
    let behind: Vec<_> = (0..9).map(|_| pool.send(0, LARGE)).collect();
    for _ in 0..60 {
        pool.responds(1, SMALL, 1000);
        pool.responds(1, LARGE, 1000);
    }
    assert_eq!(pool.failures(0), 0, "they take a second in another class");
    drop(pool.send_image(0));
    pool.pass(1);
    assert_eq!(pool.failures(0), 0);
    // Those that come are learned from, and say nothing of text.
    for awaited in images {
        awaited.came(pool.clock.now_ms());
        pool.pass(1);
    }
    drop(behind);
    pool.pass(100);
    assert_eq!(pool.failures(0), 0, "there was a sign of life");
    let _hangs: Vec<_> = (0..3).map(|_| pool.send(0, SMALL)).collect();
    pool.responds(1, SMALL, 100);
    pool.pass(5000);
    assert!(pool.endpoint(0).health().is_ejected());
}

#[test]
fn media_requests_are_judged_by_media_times() {
    let pool = Pool::new();
    for _ in 0..20 {
        let image = pool.send_image(1);
        pool.pass(2000);
        image.came(pool.clock.now_ms());
    }
    pool.pass(1);
    let _images: Vec<_> = (0..2).map(|_| pool.send_image(0)).collect();
    let _behind = pool.send(0, SMALL);
    pool.responds(1, SMALL, 100);
    pool.pass(3000);
    assert_eq!(pool.failures(0), 0);
    pool.pass(2000);
    assert!(pool.endpoint(0).health().is_ejected());
}

#[test]
fn long_waits_ended_by_clients_are_failures() {
    let pool = Pool::new();
    let abort_after = |ms| {
        let awaited = pool.send(0, SMALL);
        pool.responds(1, SMALL, 50);
        pool.pass(ms);
        drop(awaited);
        pool.pass(1);
    };
    (0..9).for_each(|_| abort_after(200));
    assert_eq!(pool.failures(0), 0, "they hurry");
    (0..2).for_each(|_| abort_after(1000));
    assert_eq!(pool.failures(0), 2);
}

#[test]
fn requests_missing_from_metrics_weigh_as_waiting() {
    let pool = Pool::new();
    let (endpoint, now_ms) = (pool.endpoint(0), pool.clock.now_ms());
    let load = endpoint.load();
    let _sent: Vec<_> = (0..5).map(|_| (load.book(), pool.send(0, SMALL))).collect();
    let reads = |waiting: f64, running: f64| {
        load.waiting.set(waiting, now_ms);
        load.running.set(running, now_ms);
        // One page alone may miss requests that are on their way.
        endpoint.health().page_read(load);
        endpoint.health().page_read(load);
        load.unreported()
    };
    assert_eq!(reads(0.0, 0.0), 0, "the page was asked for before they were sent");
    load.seen(load.sent());
    assert_eq!(reads(0.0, 0.0), 5);
    assert_eq!((reads(1.0, 2.0), reads(1.0, 4.0), reads(9.0, 9.0)), (2, 0, 0));
    // Streams that have begun are running, too, and no reason to overlook one that hasn't.
    let begun: Vec<_> = (0..7).map(|_| load.book()).collect();
    load.seen(load.sent());
    assert_eq!((reads(0.0, 7.0), reads(0.0, 12.0)), (5, 0));
    drop(begun);
}

#[test]
fn missing_requests_are_overdue_at_silent_endpoints() {
    let pool = Pool::new();
    let (endpoint, load) = (pool.endpoint(0), Arc::clone(pool.endpoint(0).load()));
    let _sent: Vec<_> = (0..20).map(|_| (load.book(), pool.send(0, SMALL))).collect();
    load.seen(load.sent());
    load.running.set(0.0, pool.clock.now_ms());
    (0..2).for_each(|_| endpoint.health().page_read(&load));
    // Twenty of a tenth of a second: one is answered every five milliseconds.
    pool.pass(10);
    assert_eq!((load.unreported(), load.overdue()), (20, 0), "some engines report once a second");
    pool.pass(30);
    assert_eq!(load.overdue(), 20);
    pool.responds(0, SMALL, 1);
    assert_eq!(load.overdue(), 0);
}

#[test]
fn overdue_requests_weigh_as_waiting() {
    let pool = Pool::new();
    let load = Arc::clone(pool.endpoint(0).load());
    let awaited: Vec<_> = (0..5).map(|_| pool.send(0, SMALL)).collect();
    pool.pass(50);
    assert_eq!(load.unreported(), 0);
    pool.pass(1000);
    assert_eq!(load.unreported(), 5);
    pool.responds(0, SMALL, 50);
    assert_eq!(load.unreported(), 0);
    pool.pass(1000);
    assert_eq!(load.unreported(), 5);
    drop(awaited);
    pool.pass(100);
    assert_eq!(load.unreported(), 0);
}
