//! Probes of ejected endpoints: when they are sent, and to which endpoint.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use usher::endpoints::SubsetHint;
use usher::endpoints::health::Verdict;
use usher::request::{ParserKind, Parsers, RequestParser};
use usher::schedule::Served;

use super::{BY_HEADER, BY_QUEUE, ONLY, PAIRS, Pool, SECOND, TWO_PICKS, destination};

#[test]
fn ejected_endpoint_is_probed_despite_its_scores() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    pool.eject(1);
    // It has the longest queue, so that no scorer would ever take it.
    let mut probes = Vec::new();
    for ms in 0..4000 {
        if pool.answered(Verdict::Good) == "10.0.0.1:8000" {
            probes.push(ms);
        }
        pool.pass(Duration::from_millis(1));
    }
    assert_eq!(probes, [1000, 1500, 1750, 1875]);
    assert!(pool.outliers.is_empty());
}

#[test]
fn only_one_probe_is_in_flight_per_endpoint() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    pool.eject(1);
    pool.pass(SECOND);
    let probe = pool.send(&[]);
    assert_eq!(destination(&probe), "10.0.0.1:8000");
    for _ in 0..50 {
        pool.pass(Duration::from_millis(100));
        assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
    }
    // Its client goes away without a response: that says nothing, and the next one may go.
    drop(probe);
    pool.pass(SECOND);
    assert_eq!(destination(&pool.send(&[])), "10.0.0.1:8000");
    assert!(pool.endpoint(1).health().is_ejected());
}

#[test]
fn filters_apply_to_probes_and_keep_an_endpoint() {
    let pool = Pool::new(BY_HEADER, &[None; 4]);
    pool.eject(2);
    pool.pass(SECOND);
    let to = |only: &str| destination(&pool.send(&[(ONLY, only)]));
    for only in ["10.0.0.1", "10.0.0.3", "10.0.0.4"] {
        assert_eq!(to(only), format!("{only}:8000"));
    }
    pool.pass(Duration::from_millis(10));
    assert_eq!(to("10.0.0.2,10.0.0.4"), "10.0.0.2:8000", "a request that may go there is the probe");
    // Nobody who is well may have it.
    assert_eq!(to("10.0.0.2"), "10.0.0.2:8000");
    assert_eq!(pool.outliers.metrics().overruled.get(), 1);
}

#[test]
fn passthrough_requests_do_not_probe_or_recover() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    let page = || {
        let headers = [(":method", "GET"), (":path", "/v1/models")].into_iter().collect();
        let request = RequestParser::new(headers, &Parsers::new(&[ParserKind::PassThrough])).without_body();
        pool.dispatcher
            .enter(&Arc::new(request.clone()), &SubsetHint::Missing)
            .decided()
            .now_or_never()
            .unwrap()
            .unwrap()
    };
    for _ in 0..3 {
        pool.answered(Verdict::Failed(500));
        page().response_begins(&Served::Unknown, Verdict::Good, false);
    }
    assert!(pool.endpoint(4).health().is_ejected());
    pool.pass(SECOND);
    assert_eq!(destination(&page()), "10.0.0.3:8000");
    assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
}

#[test]
fn probe_has_no_fallback_without_served_metadata() {
    let pool = Pool::new(TWO_PICKS, &[None; 4]);
    pool.eject(4);
    pool.pass(SECOND);
    assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
}

#[test]
fn unprobed_prefill_endpoint_does_not_block_decode_probes() {
    let roles = [Some("prefill"), Some("decode"), Some("prefill"), Some("decode")];
    let pool = Pool::new(PAIRS, &roles);
    let prefill = Arc::clone(pool.endpoint(1).health());
    prefill.scrape_succeeded();
    (0..3).for_each(|_| prefill.scrape_failed(false));
    pool.eject(2);
    let decode = Arc::clone(pool.endpoint(2).health());
    let works_again = 3 * SECOND;
    while decode.is_ejected() && pool.clock.elapsed() < works_again + 6 * SECOND {
        let mut routed = pool.send(&[]);
        let is_broken = destination(&routed) == "10.0.0.2:8000" && pool.clock.elapsed() < works_again;
        let verdict = if is_broken { Verdict::Failed(503) } else { Verdict::Good };
        routed.response_begins(&Served::Unknown, verdict, false);
        drop(routed);
        pool.pass(Duration::from_millis(50));
    }
    let elapsed = pool.clock.elapsed();
    assert!(!decode.is_ejected() && elapsed > works_again, "{elapsed:?}");
    assert!(elapsed <= works_again + 5 * SECOND, "{elapsed:?}");
    assert!(prefill.is_ejected());
}

#[test]
fn endpoint_refusing_connections_gets_no_probe() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    let health = Arc::clone(pool.endpoint(4).health());
    health.scrape_succeeded();
    pool.eject(4);
    health.scrape_failed(true);
    for _ in 0..60 {
        pool.pass(SECOND);
        assert_eq!(destination(&pool.send(&[])), "10.0.0.3:8000");
    }
    health.scrape_succeeded();
    assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
}
