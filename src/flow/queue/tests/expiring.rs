//! Longest waits of requests.

use super::*;

fn rules(ttl: u64, no_endpoint_ttl: u64) -> FlowControlRules {
    let seconds = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
    FlowControlRules {
        ttl: seconds(ttl),
        no_endpoint_ttl: seconds(no_endpoint_ttl),
        ..FlowControlRules::default()
    }
}

#[test]
fn pool_change_restarts_the_ttl_of_queued_requests() {
    // Waits for room and for an endpoint, 0 for ever; when the pool becomes empty (true)
    // or isn't any more, in seconds; when waiting ends, and how.
    type Row = (u64, u64, &'static [(u64, bool)], Option<(u64, Outcome)>);
    let (ttl, nobody) = (Outcome::EvictedTtl, Outcome::EvictedNoEndpoints);
    let table: [Row; 10] = [
        (5, 9, &[], Some((5, ttl))),
        (0, 9, &[], None),
        (5, 9, &[(0, true)], Some((9, nobody))),
        (5, 0, &[(0, true)], None),
        (5, 0, &[(0, true), (30, false)], Some((35, ttl))),
        (5, 2, &[(4, true)], Some((6, nobody))),
        (5, 9, &[(4, true)], Some((13, nobody))),
        (5, 9, &[(4, true), (12, false)], Some((17, ttl))),
        (5, 9, &[(4, true), (8, false), (12, true)], Some((21, nobody))),
        (0, 0, &[(4, true), (8, false)], None),
    ];
    for (ttl, no_endpoint_ttl, changes, expected) in table {
        let mut pool = Pool::new(&rules(ttl, no_endpoint_ttl), 1);
        // Full, so that nothing leaves.
        pool.shown = 1;
        pool.ttl = (ttl > 0).then_some(ttl * S);
        let start = pool.now;
        pool.enqueue("a", "f", 0);
        let mut end = None;
        for millisecond in 0..40_000 {
            pool.now = start + millisecond * MS;
            for (_, is_empty) in changes.iter().filter(|(second, _)| second * 1000 == millisecond) {
                pool.queue.set_endpoints(pool.now, usize::from(!*is_empty));
            }
            let due = pool.queue.wake_at(pool.now) <= pool.now;
            let happened = pool.pump();
            assert_eq!(due, !happened.rejected.is_empty(), "at {millisecond} of {changes:?}");
            if let [(_, outcome)] = happened.rejected[..] {
                end = Some((millisecond / 1000, outcome));
            }
        }
        assert_eq!(end, expected, "{ttl} {no_endpoint_ttl} {changes:?}");
        let left = u64::from(expected.is_none());
        assert_eq!(pool.queue.waiting().requests, left);
    }
}

#[test]
fn zero_ttl_expires_at_once_unless_dispatched() {
    let mut pool = Pool::new(&FlowControlRules::default(), 1);
    pool.ttl = Some(0);
    pool.enqueue("a", "f", 0);
    // Who hands in a request dispatches before it looks for what has expired.
    let mut actions = Vec::new();
    pool.queue.dispatch(pool.now, &pool.capacity(), &mut actions);
    assert_eq!(pool.happened(actions).dispatched, ["a"]);
    pool.enqueue("b", "f", 0);
    assert_eq!(pool.pump().rejected, [("b", Outcome::EvictedTtl)]);
}

#[test]
fn requests_may_wait_for_different_times() {
    let mut pool = Pool::new(&FlowControlRules::default(), 1);
    pool.shown = 1;
    for (name, ttl) in [("ever", None), ("long", Some(9 * S)), ("short", Some(2 * S))] {
        pool.ttl = ttl;
        pool.enqueue(name, "f", 0);
    }
    pool.now += 2 * S;
    assert_eq!(pool.pump().rejected, [("short", Outcome::EvictedTtl)]);
    pool.queue.set_endpoints(pool.now, 0);
    pool.queue.set_endpoints(pool.now, 1);
    pool.now += 9 * S - 1;
    assert!(pool.pump().rejected.is_empty());
    pool.now += 1;
    assert_eq!(pool.pump().rejected, [("long", Outcome::EvictedTtl)]);
    pool.now = NEVER - 1;
    assert!(pool.pump().rejected.is_empty());
}

#[test]
fn reload_changes_only_the_no_endpoint_ttl() {
    let mut pool = Pool::new(&rules(5, 9), 1);
    (pool.shown, pool.ttl) = (1, Some(5 * S));
    let start = pool.now;
    pool.enqueue("a", "f", 0);
    let after = |pool: &Pool| pool.queue.wake_at(pool.now) - start;
    pool.queue.reconfigure(start, &rules(2, 9));
    assert_eq!(after(&pool), 5 * S, "with what it came");
    pool.queue.set_endpoints(start, 0);
    assert_eq!(after(&pool), 9 * S);
    pool.queue.reconfigure(start, &rules(2, 3));
    assert_eq!(after(&pool), 3 * S);
    pool.queue.reconfigure(start, &FlowControlRules { max_requests: Some(1), ..rules(2, 0) });
    assert_eq!(pool.arrive("b", &pool.arrival("f", 0, 1)), Err(Outcome::RejectedNoEndpoints), "one waits");
    assert_eq!(pool.queue.waiting().requests, 1);
}
