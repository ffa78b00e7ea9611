use prometheus::Registry;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::endpoints::{Clock, Endpoint, EndpointSpec, Store};

struct Pool {
    clock: Clock,
    outliers: Arc<OutlierDetector>,
    store: Store,
    registry: Registry,
}

fn pool(specs: Vec<EndpointSpec>) -> Pool {
    let (registry, clock) = (Registry::new(), Clock::stopped());
    let metrics = OutlierMetrics::register(&registry).unwrap();
    let outliers = Arc::new(OutlierDetector::new(HealthParams::default(), clock.clone(), metrics));
    let store = Store::watched(Arc::clone(&outliers));
    store.replace(specs);
    Pool { clock, outliers, store, registry }
}

impl Pool {
    fn endpoint(&self, index: usize) -> Arc<Endpoint> {
        Arc::clone(&self.store.snapshot().endpoints()[index])
    }

    fn has(&self, series: &str) -> bool {
        crate::metrics::render(&self.registry).lines().any(|line| line == series)
    }
}

fn spec(name: &str, last: u8) -> EndpointSpec {
    EndpointSpec::new(name, ([10, 0, 0, last], 8000))
}

fn eject(endpoint: &Endpoint, sent_ms: u64) {
    (0..3).for_each(|_| endpoint.health().ended(Verdict::Failed(503), sent_ms));
    assert!(endpoint.health().is_ejected());
}

#[test]
fn ejections_are_counted_and_end_after_four_probes() {
    let pool = pool(vec![spec("a", 1), spec("b", 2)]);
    let a = pool.endpoint(0);
    let version = pool.outliers.version();
    a.health().ended(Verdict::Failed(500), 1);
    a.health().ended(Verdict::Unclear, 1);
    assert!(pool.outliers.is_empty() && a.health().condition().failures == 1);
    a.health().ended(Verdict::Good, 1);
    eject(&a, 1);
    assert!(!pool.outliers.is_empty() && pool.outliers.version() != version);
    assert!(pool.has(r#"usher_endpoint_ejections_total{reason="status"} 1"#));
    assert!(a.health().claim(pool.clock.now_ms()).is_none(), "not at once");
    for second in 1..=4 {
        pool.clock.set(Duration::from_secs(second));
        let now_ms = pool.clock.now_ms();
        let probe = a.health().claim(now_ms).unwrap().used();
        assert!(a.health().claim(now_ms).is_none());
        a.health().ended(Verdict::Good, now_ms);
        probe.answered();
    }
    assert!(pool.outliers.is_empty() && !a.health().is_ejected());
    assert!(pool.has("usher_endpoint_recoveries_total 1") && pool.has("usher_endpoint_probes_total 4"));
}

#[test]
fn dropped_probe_frees_its_slot() {
    let pool = pool(vec![spec("a", 1)]);
    let a = pool.endpoint(0);
    eject(&a, 1);
    pool.clock.set(Duration::from_secs(1));
    let now_ms = pool.clock.now_ms();
    drop(a.health().claim(now_ms).unwrap());
    assert!(a.health().claim(now_ms).is_none() && a.health().claim(now_ms + 10).is_some(), "it was not used");
    drop(a.health().claim(now_ms + 20).unwrap().used());
    assert!(a.health().claim(now_ms + 20).is_none());
    assert!(a.health().claim(now_ms + 999).is_none() && a.health().claim(now_ms + 1000).is_some());
}

#[test]
fn a_removed_endpoint_is_no_outlier_and_leaves_its_slot_clean() {
    let pool = pool(vec![spec("a", 1), spec("b", 2)]);
    let a = pool.endpoint(0);
    eject(&a, 1);
    let slot = a.slot().number();
    drop(a);
    pool.store.replace(vec![spec("b", 2)]);
    assert!(pool.outliers.is_empty());
    pool.store.replace(vec![spec("b", 2), spec("c", 3)]);
    let c = pool.endpoint(1);
    assert_eq!((c.slot().number(), c.health().is_ejected()), (slot, false));
    assert_eq!(c.health().condition(), Condition::default());
}

#[test]
fn another_address_is_another_server() {
    let pool = pool(vec![spec("a", 1)]);
    eject(&pool.endpoint(0), 1);
    let labelled = EndpointSpec { labels: [("x".to_owned(), "y".to_owned())].into(), ..spec("a", 1) };
    pool.store.replace(vec![labelled]);
    assert!(pool.endpoint(0).health().is_ejected(), "a label changes nothing");
    pool.store.replace(vec![spec("a", 9)]);
    assert!(!pool.endpoint(0).health().is_ejected() && pool.outliers.is_empty());
}

#[test]
fn no_endpoint_is_ejected_without_detection() {
    let store = Store::default();
    store.replace(vec![spec("a", 1)]);
    let snapshot = store.snapshot();
    let health = snapshot.endpoints()[0].health();
    health.scrape_succeeded();
    for _ in 0..100 {
        health.ended(Verdict::Failed(503), 1);
        health.failed(Failure::Elsewhere, 1);
        health.scrape_failed(false);
    }
    assert!(!health.is_ejected() && health.claim(u64::MAX).is_none());
    assert_eq!(health.condition(), Condition::default());
}
