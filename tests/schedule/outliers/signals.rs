//! Responses, streams and scrapes that eject an endpoint or keep it.

use std::sync::Arc;

use usher::endpoints::health::Verdict;
use usher::flow::Routed;
use usher::request::usage::Usage;
use usher::schedule::Served;

use super::{BY_QUEUE, PAIRS, Pool, SECOND, TWO_PICKS, destination};

#[test]
fn failed_responses_eject_the_picked_endpoint() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    // The last has the shortest queue.
    for _ in 0..3 {
        assert_eq!(pool.answered(Verdict::Failed(503)), "10.0.0.4:8000");
    }
    for _ in 0..50 {
        assert_eq!(pool.answered(Verdict::Good), "10.0.0.3:8000");
    }
    assert!(pool.endpoint(4).health().is_ejected() && !pool.endpoint(3).health().is_ejected());
}

#[test]
fn response_by_a_fallback_counts_as_a_failure() {
    let pool = Pool::new(TWO_PICKS, &[None; 4]);
    let served = |by: &str| {
        let mut routed = pool.send(&[]);
        routed.response_begins(&Served::By(by.to_owned()), Verdict::Good, false);
        destination(&routed)
    };
    served("10.0.0.4:8000");
    // Whom the pool doesn't know says nothing.
    (0..5).for_each(|_| drop(served("10.9.9.9:8000")));
    for _ in 0..3 {
        assert_eq!(served("10.0.0.3:8000"), "10.0.0.4:8000,10.0.0.3:8000");
    }
    assert_eq!(served("10.0.0.3:8000"), "10.0.0.3:8000,10.0.0.2:8000");
    // Its probe has somebody to fall back on, as the gateway says who served.
    pool.pass(SECOND);
    assert_eq!(served("10.0.0.3:8000"), "10.0.0.4:8000,10.0.0.3:8000");
    assert_eq!(served("10.0.0.3:8000"), "10.0.0.3:8000,10.0.0.2:8000");
    // A good response of the fallback is none of the endpoint that is probed.
    pool.pass(2 * SECOND);
    assert_eq!(served("10.0.0.3:8000"), "10.0.0.4:8000,10.0.0.3:8000");
    for _ in 0..4 {
        pool.pass(2 * SECOND);
        assert_eq!(served("10.0.0.4:8000"), "10.0.0.4:8000,10.0.0.3:8000");
    }
    assert!(pool.outliers.is_empty());
}

#[test]
fn failed_pair_ejects_the_decode_endpoint() {
    let roles = [Some("prefill"), Some("prefill"), Some("decode"), Some("decode")];
    let pool = Pool::new(PAIRS, &roles);
    for _ in 0..3 {
        assert_eq!(pool.answered(Verdict::Failed(502)), "10.0.0.4:8000");
    }
    assert!(pool.endpoint(4).health().is_ejected() && !pool.endpoint(2).health().is_ejected());
    let pair = |routed: &Routed| {
        let decision = routed.decision();
        let prefill = decision.endpoints_of(decision.run("prefill").unwrap()).next().unwrap();
        (prefill.name().to_owned(), decision.primary_endpoint().name().to_owned())
    };
    assert_eq!(pair(&pool.send(&[])), ("pod-2".to_owned(), "pod-3".to_owned()));
    pool.pass(SECOND);
    assert_eq!(pair(&pool.send(&[])), ("pod-2".to_owned(), "pod-4".to_owned()), "the probe is a pair, too");
    // One that computes prompts and can't be scraped any more.
    let health = Arc::clone(pool.endpoint(2).health());
    (0..9).for_each(|_| health.scrape_failed(false));
    assert!(!health.is_ejected(), "it may never have shown its metrics at this port");
    health.scrape_succeeded();
    (0..3).for_each(|_| health.scrape_failed(false));
    assert_eq!(pair(&pool.send(&[])), ("pod-1".to_owned(), "pod-3".to_owned()));
    (0..4).for_each(|_| health.scrape_succeeded());
    assert_eq!(pair(&pool.send(&[])), ("pod-2".to_owned(), "pod-3".to_owned()));
}

#[test]
fn server_that_finishes_responses_survives_failed_scrapes() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    let health = Arc::clone(pool.endpoint(4).health());
    health.scrape_succeeded();
    let begun = |verdict| {
        let mut routed = pool.send(&[]);
        routed.response_begins(&Served::Unknown, verdict, true);
        routed
    };
    let mut streams: Vec<_> = (0..5).map(|_| begun(Verdict::Good)).collect();
    while let Some(mut stream) = streams.pop() {
        (0..2).for_each(|_| health.scrape_failed(false));
        assert!(!health.is_ejected());
        stream.response_ends(&Usage::default(), 0);
    }
    // The end of an error is no sign of life, nor is a stream that breaks.
    let (mut error, broken) = (begun(Verdict::Failed(503)), begun(Verdict::Good));
    (0..2).for_each(|_| health.scrape_failed(false));
    error.response_ends(&Usage::default(), 0);
    drop(broken);
    health.scrape_failed(false);
    assert!(health.is_ejected());
}

#[test]
fn stream_without_a_first_token_is_no_success() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    for _ in 0..2 {
        pool.answered(Verdict::Failed(503));
        // It sends headers at once, and tokens never.
        pool.send(&[]).response_begins(&Served::Unknown, Verdict::Good, true);
    }
    pool.answered(Verdict::Failed(503));
    assert!(pool.endpoint(4).health().is_ejected());
    pool.pass(SECOND);
    let mut probe = pool.send(&[]);
    probe.response_begins(&Served::Unknown, Verdict::Good, true);
    pool.pass(2 * SECOND);
    assert_eq!(destination(&pool.send(&[])), "10.0.0.3:8000", "the probe is still out");
    probe.first_token();
    drop(probe);
    pool.pass(SECOND);
    assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
}
