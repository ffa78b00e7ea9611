//! An endpoint that fails requests at once for ten seconds: its share of them, and its recovery.

use std::collections::VecDeque;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::endpoints::SubsetHint;
use usher::endpoints::health::{HealthParams, Verdict};
use usher::flow::Routed;
use usher::schedule::Served;

use super::{BY_REQUESTS, Pool, SECOND, destination, request};

const EXPECTED_LATENCY: &str = include_str!("../../../deploy/config/expected-latency.yaml");

/// Requests, of 200 per second, that reach one of ten endpoints which fails them at once, and its recovery.
struct Outage {
    /// Share of the requests in the ten seconds in which it fails.
    broken: f64,
    /// Time at which it is well after it works again.
    recovered: Option<Duration>,
    /// Share in the five seconds that begin five seconds after it works again.
    after: f64,
}

fn outage(config: &str, params: HealthParams) -> Outage {
    const GAP_MS: u64 = 5;
    let pool = Pool::with(config, &[None; 10], params);
    for endpoint in pool.store.snapshot().endpoints() {
        for gauge in [&endpoint.load().waiting, &endpoint.load().running] {
            gauge.set(0.0, pool.clock.now_ms());
        }
    }
    let (request, mut rng) = (request(&[]), StdRng::seed_from_u64(7));
    drop(pool.send(&[]));
    let mut under_way = VecDeque::new();
    let (mut broken, mut recovered, mut after) = (0, None, 0);
    let (breaks, works, late, end) = (1000, 11_000, 16_000, 21_000);
    for ms in (0..end).step_by(GAP_MS as usize) {
        while let Some((_, mut routed)) = under_way.pop_front_if(|(ends, _): &mut (u64, Routed)| *ends <= ms)
        {
            routed.response_begins(&Served::Unknown, Verdict::Good, false);
        }
        if ms >= works && recovered.is_none() && pool.outliers.is_empty() {
            recovered = Some(Duration::from_millis(ms - works));
        }
        let routed = pool.dispatcher.decide_now(&request, &SubsetHint::Missing, &mut rng);
        let mut routed = routed.unwrap().unwrap();
        let is_it = destination(&routed) == "10.0.0.1:8000";
        if is_it && (breaks..works).contains(&ms) {
            broken += 1;
            routed.response_begins(&Served::Unknown, Verdict::Failed(503), false);
        } else {
            after += usize::from(is_it && ms >= late);
            under_way.push_back((ms + 100, routed));
        }
        pool.pass(Duration::from_millis(GAP_MS));
    }
    let share = |count: usize, ms: u64| count as f64 / (ms / GAP_MS) as f64;
    Outage { broken: share(broken, works - breaks), recovered, after: share(after, end - late) }
}

#[test]
fn failing_endpoint_gets_few_requests_and_recovers_soon() {
    for config in [BY_REQUESTS, EXPECTED_LATENCY] {
        let unwatched = outage(config, HealthParams { failures: u32::MAX, ..HealthParams::default() });
        assert!(unwatched.broken > 0.3, "it draws requests: {}", unwatched.broken);
        let watched = outage(config, HealthParams::default());
        assert!(watched.broken > 0.0 && watched.broken < 0.01, "{}", watched.broken);
        assert!(watched.recovered.is_some_and(|after| after <= 5 * SECOND), "{:?}", watched.recovered);
        assert!((0.05..0.2).contains(&watched.after), "{}", watched.after);
    }
}
