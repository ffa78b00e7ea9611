//! Requests in a pool of which endpoints are ejected: few, half, most or all of them.

use usher::endpoints::health::Verdict;
use usher::schedule::Served;

use super::{ANY, BY_HEADER, BY_QUEUE, BY_ROOM, ONLY, PAIRS, Pool, SECOND, destination};

#[test]
fn ejected_endpoint_gets_no_overflow_of_saturated_ones() {
    let pool = Pool::new(BY_ROOM, &[None; 4]);
    pool.eject(1);
    let _busy: Vec<_> = (0..3).map(|_| pool.send(ANY)).collect();
    let refused = |headers: &[(&str, &str)]| {
        let rejection = pool.try_send(headers).unwrap_err();
        assert_eq!((rejection.code.status(), rejection.reason), (429, Some("rejected-saturated")));
    };
    (0..50).for_each(|_| refused(ANY));
    // It is the detector that keeps it from the second, whatever comes behind it.
    refused(&[(ONLY, "10.0.0.1,10.0.0.2")]);
    assert_eq!(pool.outliers.metrics().overruled.get(), 0);
    // The others would not do if they had room.
    assert_eq!(destination(&pool.send(&[(ONLY, "10.0.0.1")])), "10.0.0.1:8000");
    assert_eq!(pool.outliers.metrics().overruled.get(), 1);
    pool.pass(SECOND);
    let probe = pool.send(ANY);
    assert_eq!(destination(&probe), "10.0.0.1:8000");
    (0..50).for_each(|_| refused(ANY));
}

#[test]
fn with_half_of_the_pool_ejected_the_other_half_serves() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    pool.eject(4);
    pool.eject(3);
    (0..50).for_each(|_| assert_eq!(destination(&pool.send(&[])), "10.0.0.2:8000"));
}

/// Number of requests to each of four endpoints, the first of which has the longest queue.
fn shares(pool: &Pool, requests: usize, verdict: impl Fn(&str) -> Verdict) -> [usize; 4] {
    let mut shares = [0; 4];
    for _ in 0..requests {
        let mut routed = pool.send(&[]);
        let to = destination(&routed);
        shares[to["10.0.0.".len()..].split(':').next().unwrap().parse::<usize>().unwrap() - 1] += 1;
        routed.response_begins(&Served::Unknown, verdict(&to), false);
    }
    shares
}

#[test]
fn beyond_half_ejected_fast_failures_are_not_preferred() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    (2..=4).for_each(|number| pool.eject(number));
    let fails = |to: &str| if to == "10.0.0.1:8000" { Verdict::Good } else { Verdict::Failed(503) };
    let [well, failing @ ..] = shares(&pool, 1000, fails);
    assert!((420..=580).contains(&well), "{well} are not two shares of four");
    assert!(failing.iter().all(|count| (110..=225).contains(count)), "{failing:?}");
    let overruled = pool.outliers.metrics().overruled.get();
    assert_eq!(overruled, failing.iter().sum::<usize>() as u64);
}

#[test]
fn first_recovery_is_found_when_the_whole_pool_is_ejected() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    (1..=4).for_each(|number| pool.eject(number));
    pool.pass(SECOND);
    let fails = |to: &str| if to == "10.0.0.1:8000" { Verdict::Good } else { Verdict::Failed(503) };
    shares(&pool, 100, fails);
    assert!(!pool.endpoint(1).health().is_ejected(), "it has the longest queue");
    assert!(pool.endpoint(4).health().is_ejected());
    // Then half of them by their requests, and the others by probes.
    for _ in 0..10 {
        shares(&pool, 100, |_| Verdict::Good);
        pool.pass(2 * SECOND);
    }
    assert!(pool.outliers.is_empty());
}

#[test]
fn pairs_are_picked_when_all_prefill_endpoints_are_ejected() {
    let roles = [Some("prefill"), Some("prefill"), Some("decode"), Some("decode")];
    let pool = Pool::new(PAIRS, &roles);
    for number in 1..=3 {
        pool.eject(number);
    }
    let prefills: Vec<String> = (0..50)
        .map(|_| {
            let routed = pool.send(&[]);
            let decision = routed.decision();
            assert_eq!(decision.primary_endpoint().name(), "pod-4");
            decision.endpoints_of(decision.run("prefill").unwrap()).next().unwrap().name().to_owned()
        })
        .collect();
    assert!(prefills.iter().any(|name| name == "pod-1") && prefills.iter().any(|name| name == "pod-2"));
}

#[test]
fn request_stays_on_healthy_endpoints_the_filters_allow() {
    let pool = Pool::new(BY_HEADER, &[None; 4]);
    (2..=4).for_each(|number| pool.eject(number));
    for _ in 0..50 {
        assert_eq!(destination(&pool.send(&[(ONLY, "10.0.0.1")])), "10.0.0.1:8000");
    }
}
