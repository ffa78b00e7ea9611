//! Running requests that are given up.

use super::*;
use crate::schedule::flow_control::StaticUsageLimitParams;

fn rules(threshold: f64) -> FlowControlRules {
    FlowControlRules {
        evicts: true,
        usage_limit: UsageLimit::Static(StaticUsageLimitParams { threshold }),
        ..FlowControlRules::default()
    }
}

/// A pool in which these run, in this order.
fn running(rules: &FlowControlRules, requests: &[(&'static str, i32)]) -> Pool {
    let mut pool = Pool::new(rules, requests.len() as u64);
    for (name, priority) in requests {
        pool.enqueue(name, "f", *priority);
        assert_eq!(pool.dispatched(), [*name]);
        pool.book(name);
        pool.now += 1;
    }
    pool
}

#[test]
fn newest_request_of_the_lowest_priority_is_evicted_first() {
    // What runs, what comes, and who has to go.
    type Row = (&'static [(&'static str, i32)], i32, &'static [&'static str]);
    let table: [Row; 7] = [
        (&[("a", -1), ("b", -1)], 0, &["b"]),
        (&[("a", -1), ("b", -3), ("c", -2)], 0, &["b"]),
        (&[("a", -3), ("b", -3), ("c", -2)], 0, &["b"]),
        (&[("a", 0), ("b", 5)], 9, &[]),
        (&[("a", -1)], -1, &[]),
        (&[("a", -1)], -2, &[]),
        (&[("a", -2), ("b", -1)], -1, &["a"]),
    ];
    for (requests, priority, expected) in table {
        let mut pool = running(&rules(1.0), requests);
        pool.enqueue("next", "f", priority);
        assert_eq!(pool.pump().evicted, expected, "{requests:?} {priority}");
    }
}

#[test]
fn evictions_match_the_excess_up_to_two() {
    // Requests of priority -1 that fill a pool of 8, the ceiling of a request that comes,
    // and how many have to go.
    for (shown, ceiling, expected) in [(8, 1.0, 1), (9, 1.0, 1), (10, 1.0, 2), (12, 1.0, 2), (7, 0.8, 1)] {
        let mut pool = Pool::new(&rules(9.0), 8);
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        for name in &names[..shown] {
            pool.enqueue(name, "f", -1);
            pool.dispatched();
            pool.book(name);
        }
        pool.queue.usage_limit = UsageLimit::Static(StaticUsageLimitParams { threshold: ceiling });
        pool.enqueue("next", "f", 0);
        assert_eq!(pool.pump().evicted.len(), expected, "{shown} {ceiling}");
        assert_eq!(pool.queue.evicting(), (expected as u64, expected as u64));
    }
}

#[test]
fn zero_usage_limit_evicts_no_request() {
    let mut pool = running(&rules(1.0), &[("a", -5)]);
    pool.queue.usage_limit = UsageLimit::Static(StaticUsageLimitParams { threshold: 0.0 });
    pool.enqueue("next", "f", 0);
    assert!(pool.pump().evicted.is_empty());
}

#[test]
fn next_eviction_waits_for_the_end_of_the_last() {
    let mut pool = running(&rules(1.0), &[("a", -1), ("b", -1), ("c", -1)]);
    pool.enqueue("next", "f", 0);
    assert_eq!(pool.pump().evicted, ["c"]);
    assert!(pool.pump().evicted.is_empty(), "one at a time");
    pool.now += 30 * MS;
    assert_eq!(pool.end("c", 0.0).reclaimed, [Some(30 * MS)]);
    // What it took still shows.
    assert!(pool.pump().evicted.is_empty());
    assert_eq!(pool.queue.wake_at(pool.now), pool.now + 10 * MS, "it may take its time to");
    pool.now += 10 * MS;
    assert_eq!(pool.pump().evicted, ["b"]);
    pool.now += evictions::CONFIRMATION_TIMEOUT;
    let happened = pool.pump();
    assert_eq!((happened.reclaimed.as_slice(), happened.evicted.as_slice()), (&[None][..], &[][..]));
    pool.now += 10 * MS;
    assert_eq!(pool.pump().evicted, ["a"], "a victim that doesn't end isn't revoked twice");
    pool.shown = 2;
    assert_eq!(pool.dispatched(), ["next"]);
    assert_eq!(pool.end("b", 0.0).reclaimed, [], "too late to count");
}

#[test]
fn no_request_is_evicted_when_eviction_is_disabled() {
    let mut pool = running(&FlowControlRules { evicts: false, ..rules(1.0) }, &[("a", -1)]);
    pool.enqueue("next", "f", 0);
    assert!(pool.pump().evicted.is_empty());
}

#[test]
fn no_request_is_evicted_while_the_pool_has_room() {
    let mut pool = running(&rules(1.0), &[("a", -1)]);
    pool.room = 2;
    pool.enqueue("next", "f", 0);
    let happened = pool.pump();
    assert_eq!((happened.dispatched.as_slice(), happened.evicted.len()), (&["next"][..], 0));
}
