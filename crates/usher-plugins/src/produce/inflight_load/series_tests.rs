//! Series come, count and go.

use std::time::Duration;

use usher_core::endpoints::{EndpointSpec, Store};
use usher_core::metrics::{MAX_LABEL_BYTES, MAX_LABEL_VALUES, render};

use super::*;

struct Pool {
    registry: Registry,
    series: InflightSeries,
    store: Store,
}

impl Pool {
    fn new(names: &[&str]) -> Self {
        let registry = Registry::new();
        let families = Arc::new(InflightFamilies::register(&registry).unwrap());
        let pool = Self {
            registry,
            series: InflightSeries::new(families, "p", &SeriesRoom::default()),
            store: Store::default(),
        };
        pool.set(names);
        pool
    }

    fn set(&self, names: &[&str]) {
        let spec = |name: &&str| EndpointSpec::new(*name, ([10, 0, 0, 1], 8000));
        self.store.replace(names.iter().map(spec).collect());
        self.sweep();
    }

    fn endpoint(&self, name: &str) -> Arc<Endpoint> {
        let snapshot = self.store.snapshot();
        Arc::clone(snapshot.endpoints().iter().find(|endpoint| endpoint.name() == name).unwrap())
    }

    fn count(&self, name: &str, flow: &str, tokens: u64) -> Counted {
        self.series.count(&self.endpoint(name), flow, 0, tokens)
    }

    fn sweep(&self) {
        self.series.sweep(&self.store.snapshot(), 0);
    }

    /// Sweeps after so many seconds more.
    async fn sweep_after(&self, seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        self.sweep();
    }

    /// The values of all series: endpoint and flow, requests, tokens.
    fn values(&self) -> Vec<(String, i64, i64)> {
        let read = |family: &IntGaugeVec| {
            let mut values = Vec::new();
            for metric in prometheus::core::Collector::collect(family)[0].get_metric() {
                let label = |name: &str| {
                    metric.get_label().iter().find(|pair| pair.name() == name).unwrap().value().to_owned()
                };
                let key = format!("{}/{}", label("endpoint_name"), label("fairness_id"));
                values.push((key, metric.get_gauge().get_value() as i64));
            }
            values.sort();
            values
        };
        let (requests, tokens) = (read(&self.series.families.requests), read(&self.series.families.tokens));
        assert_eq!(requests.len(), tokens.len());
        requests
            .into_iter()
            .zip(tokens)
            .map(|((key, requests), (_, tokens))| (key, requests, tokens))
            .collect()
    }

    fn shows(&self, want: &[(&str, i64, i64)]) {
        let want: Vec<_> =
            want.iter().map(|(key, requests, tokens)| ((*key).to_owned(), *requests, *tokens)).collect();
        assert_eq!(self.values(), want);
    }
}

#[test]
fn requests_and_tokens_are_counted_moved_and_released() {
    let pool = Pool::new(&["a", "b"]);
    let (mut first, second) = (pool.count("a", "f", 10), pool.count("a", "f", 5));
    let other = pool.count("a", "g", 1);
    pool.shows(&[("a/f", 2, 15), ("a/g", 1, 1)]);
    let text = render(&pool.registry);
    let line = r#"llm_d_epp_inflight_tokens{endpoint_name="a",fairness_id="f",namespace="default",priority="0",producer_name="p"} 15"#;
    assert!(text.lines().any(|found| found == line), "{text}");
    first.move_to(&pool.series, &pool.endpoint("b"));
    pool.shows(&[("a/f", 1, 5), ("a/g", 1, 1), ("b/f", 1, 10)]);
    first.free_tokens();
    pool.shows(&[("a/f", 1, 5), ("a/g", 1, 1), ("b/f", 1, 0)]);
    drop((first, second, other));
    pool.shows(&[("a/f", 0, 0), ("a/g", 0, 0), ("b/f", 0, 0)]);
}

#[test]
fn priorities_have_their_own_series() {
    let pool = Pool::new(&["a"]);
    let endpoint = pool.endpoint("a");
    let _guards = [-1, 0, 0].map(|priority| pool.series.count(&endpoint, "f", priority, 3));
    let mut values = pool.values();
    values.sort();
    assert_eq!(values, [("a/f".to_owned(), 1, 3), ("a/f".to_owned(), 2, 6)]);
}

#[tokio::test(start_paused = true)]
async fn idle_series_are_removed_after_a_while() {
    let pool = Pool::new(&["a"]);
    let busy = pool.count("a", "busy", 1);
    drop(pool.count("a", "rare", 1));
    pool.sweep_after(100).await;
    pool.sweep_after(299).await;
    pool.shows(&[("a/busy", 1, 1), ("a/rare", 0, 0)]);
    pool.sweep_after(10).await;
    pool.shows(&[("a/busy", 1, 1)]);
    drop(busy);
    drop(pool.count("a", "rare", 1));
    pool.sweep_after(290).await;
    pool.shows(&[("a/busy", 0, 0), ("a/rare", 0, 0)]);
    pool.sweep_after(10).await;
    pool.shows(&[("a/rare", 0, 0)]);
    pool.sweep_after(300).await;
    pool.shows(&[]);
    assert_eq!(pool.series.known.len(), 0);
}

#[test]
fn endpoint_series_are_removed_after_the_last_request() {
    let pool = Pool::new(&["a", "b"]);
    let (mut staying, moving) = (pool.count("a", "f", 7), pool.count("b", "f", 1));
    pool.set(&["b"]);
    pool.shows(&[("a/f", 1, 7), ("b/f", 1, 1)]);
    staying.free_tokens();
    pool.shows(&[("a/f", 1, 0), ("b/f", 1, 1)]);
    drop(staying);
    pool.sweep();
    pool.shows(&[("b/f", 1, 1)]);
    // It is back under its name before anybody noticed, and has the same series.
    drop(moving);
    pool.set(&[]);
    pool.set(&["b"]);
    let again = pool.count("b", "f", 4);
    pool.sweep();
    pool.shows(&[("b/f", 1, 4)]);
    drop(again);
}

#[tokio::test(start_paused = true)]
async fn flows_beyond_the_bound_are_other_until_idle_ones_leave() {
    const MOST: usize = 2 * MAX_LABEL_VALUES;
    let pool = Pool::new(&["a", "b"]);
    let long = "x".repeat(MAX_LABEL_BYTES + 1);
    let held = pool.count("b", "flow-0", 1);
    let mut guards: Vec<_> = (1..MOST).map(|index| pool.count("a", &format!("flow-{index:05}"), 1)).collect();
    assert!(!pool.series.known.is_full());
    guards.extend((0..5).map(|index| pool.count("a", &format!("more-{index}"), 1)));
    assert!(pool.series.known.is_full());
    let _long = pool.count("a", &long, 1);
    let shown = |flow: &str| pool.values().into_iter().find(|(key, ..)| key == flow);
    assert_eq!((pool.values().len(), shown("a/other")), (MOST + 1, Some(("a/other".to_owned(), 6, 6))));
    guards.clear();
    assert_eq!(shown("a/other"), Some(("a/other".to_owned(), 1, 1)));
    pool.sweep_after(11).await;
    pool.sweep_after(300).await;
    pool.shows(&[("a/other", 1, 1), ("b/flow-0", 1, 1)]);
    drop(pool.count("a", "late", 1));
    assert_eq!(shown("a/late"), Some(("a/late".to_owned(), 0, 0)));
    drop(held);
}

#[test]
fn series_end_with_the_last_use_of_their_producer() {
    let pool = Pool::new(&["a"]);
    drop(pool.count("a", "f", 1));
    assert!(render(&pool.registry).contains("llm_d_epp_inflight_requests{"));
    let Pool { registry, series, .. } = pool;
    drop(series);
    assert_eq!(render(&registry), "");
}

#[tokio::test(start_paused = true)]
async fn many_flows_at_many_endpoints_are_bounded_together() {
    let names: Vec<String> = (0..20).map(|index| format!("pod-{index:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let pool = Pool::new(&names);
    let flows: Vec<String> = (0..MAX_LABEL_VALUES).map(|index| format!("flow-{index:04}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        let endpoint = pool.endpoint(name);
        guards.extend(flows.iter().map(|flow| pool.series.count(&endpoint, flow, 0, 1)));
    }
    let values = pool.values();
    assert_eq!(
        values.len(),
        PER_FLOW * MAX_LABEL_VALUES + 10,
        "ten endpoints have what is beyond as one series"
    );
    assert_eq!(values.iter().map(|(_, requests, _)| *requests).sum::<i64>(), 20 * 1000);
    assert_eq!(values.last(), Some(&("pod-19/other".to_owned(), 1000, 1000)));
    guards.clear();
    pool.sweep_after(11).await;
    pool.sweep_after(300).await;
    pool.shows(&[]);
    drop(pool.count("pod-19", "flow-0007", 1));
    pool.shows(&[("pod-19/flow-0007", 0, 0)]);
}
