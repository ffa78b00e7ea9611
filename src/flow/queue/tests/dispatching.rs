//! Limits, bands, ceilings, and the way back from an empty pool.

use super::*;
use crate::schedule::flow_control::{Fairness, HoldbackParams, Ordering, StaticUsageLimitParams};

fn band(max_requests: u64, max_bytes: u64) -> BandRules {
    BandRules { max_requests, max_bytes, ..BandRules::default() }
}

#[test]
fn a_request_waits_only_where_every_limit_has_room() {
    let rules = FlowControlRules {
        max_requests: Some(4),
        max_bytes: Some(1000),
        bands: vec![(0, band(3, 500)), (1, band(10, 10_000))],
        default_negative_band: band(1, 10_000),
        ..FlowControlRules::default()
    };
    // Priorities and bytes that wait already, and what happens to the next.
    let table: [(&[(i32, u64)], (i32, u64), bool); 9] = [
        (&[], (0, 500), true),
        (&[], (0, 501), false),
        (&[(0, 1), (0, 1)], (0, 498), true),
        (&[(0, 1), (0, 1)], (0, 499), false),
        (&[(0, 1), (0, 1), (0, 1)], (0, 1), false),
        (&[(0, 1), (0, 1), (0, 1)], (1, 1), true),
        (&[(0, 1), (0, 1), (0, 1), (1, 1)], (1, 1), false),
        (&[(1, 1000)], (1, 1), false),
        (&[(-5, 1)], (-5, 1), false),
    ];
    for (waiting, (priority, bytes), fits) in table {
        let mut pool = Pool::new(&rules, 1);
        for (priority, bytes) in waiting {
            pool.arrive("before", &pool.arrival("f", *priority, *bytes)).unwrap();
        }
        let result = pool.arrive("next", &pool.arrival("g", priority, bytes));
        let expected = if fits { Ok(()) } else { Err(Outcome::RejectedCapacity) };
        assert_eq!(result, expected, "{waiting:?} {priority} {bytes}");
        let count = waiting.len() as u64 + u64::from(fits);
        assert_eq!(pool.queue.waiting().requests, count);
    }
    let mut empty = Queue::new(&rules, 0);
    let arrival = Pool::new(&rules, 1).arrival("f", 0, 501);
    assert_eq!(empty.enqueue(0, &arrival), Err(Outcome::RejectedNoEndpoints), "before an empty pool");
}

#[test]
fn request_that_ends_frees_its_queue_slot() {
    let rules = FlowControlRules { bands: vec![(0, band(1, 10))], ..FlowControlRules::default() };
    let mut pool = Pool::new(&rules, 1);
    pool.enqueue("a", "f", 0);
    assert!(pool.arrive("b", &pool.arrival("f", 0, 1)).is_err());
    pool.end("a", 0.0);
    pool.enqueue("b", "f", 0);
    assert_eq!(pool.dispatched(), ["b"]);
    pool.enqueue("c", "f", 0);
    assert_eq!(pool.queue.waiting(), Count { requests: 1, bytes: 1 });
}

#[test]
fn dispatched_requests_count_until_they_are_booked() {
    let mut pool = Pool::new(&FlowControlRules::default(), 3);
    for name in ["a", "b", "c", "d", "e"] {
        pool.enqueue(name, "f", 0);
    }
    assert_eq!(pool.dispatched(), ["a", "b", "c"]);
    assert_eq!(pool.queue.granted().requests, 3);
    pool.book("a");
    assert!(pool.dispatched().is_empty(), "what shows isn't counted twice");
    pool.end("b", 0.0);
    assert_eq!(pool.dispatched(), ["d"], "it ended before it showed");
    pool.finish("a", 0.0);
    assert_eq!(pool.dispatched(), ["e"]);
    assert_eq!(pool.queue.in_flight(), 3);
    pool.end("a", 0.0);
    assert_eq!(pool.queue.in_flight(), 3, "a ticket of the past names nobody");
}

#[test]
fn inexact_shares_fill_a_pool_exactly() {
    for room in 1..60 {
        let mut pool = Pool::new(&FlowControlRules::default(), room);
        for shown in 0..room {
            pool.shown = shown;
            for _ in 0..=room {
                pool.enqueue("x", "f", 0);
            }
            let count = pool.dispatched().len() as u64;
            assert_eq!(count, room - shown, "{shown} of {room}");
            pool = Pool::new(&FlowControlRules::default(), room);
        }
    }
}

#[test]
fn higher_priorities_go_first_and_bands_are_created_on_demand() {
    let mut pool = Pool::new(&FlowControlRules::default(), 1);
    for (name, priority) in [("low", -7), ("mid", 0), ("high", 9), ("top", i32::MAX), ("bottom", i32::MIN)] {
        pool.enqueue(name, "f", priority);
    }
    assert_eq!(pool.drain(), ["top", "high", "mid", "low", "bottom"]);
    assert_eq!(pool.queue.bands().count(), 5);
    pool.now += band::MAX_IDLE;
    assert_eq!(pool.queue.wake_at(pool.now - 1), pool.now, "the empty bands go then");
    pool.pump();
    let left: Vec<i32> = pool.queue.bands().map(|band| band.priority).collect();
    assert_eq!(left, [0], "listed bands stay");
}

#[test]
fn flows_are_kept_while_their_requests_wait() {
    for fairness in [Fairness::GlobalStrict, Fairness::RoundRobin] {
        let default = BandRules { fairness, ..BandRules::default() };
        let rules = FlowControlRules { bands: vec![(0, default)], ..FlowControlRules::default() };
        let mut pool = Pool::new(&rules, 1);
        for number in 0..20_000 {
            let flow: &str = &number.to_string();
            let arrival = Arrival { flow, ..pool.arrival("", 0, 1) };
            pool.arrive("x", &arrival).unwrap();
            match number % 3 {
                0 => drop(pool.end("x", 0.0)),
                1 => assert_eq!(pool.drain(), ["x"]),
                _ => {
                    assert_eq!(pool.queue.flows(), 1);
                    pool.queue.close(pool.now, &mut Vec::new());
                    pool = Pool::new(&rules, 1);
                }
            }
            assert_eq!(pool.queue.flows(), 0);
        }
    }
}

#[test]
fn requests_of_a_flow_go_in_the_order_of_their_band() {
    // ordering, (name, ttl, received, due), order
    type Request = (&'static str, Option<Nanos>, Nanos, Option<Nanos>);
    let requests: [Request; 4] = [
        ("first", None, 9, None),
        ("late", Some(90 * S), 8, Some(95 * S)),
        ("soon", Some(5 * S), 7, Some(9 * S)),
        ("none", None, 6, None),
    ];
    let table = [
        (Ordering::Fcfs, ["first", "late", "soon", "none"]),
        (Ordering::Edf, ["soon", "late", "first", "none"]),
        (Ordering::SloDeadline, ["soon", "late", "none", "first"]),
    ];
    for fairness in [Fairness::GlobalStrict, Fairness::RoundRobin, Fairness::ProgramAware(Default::default())]
    {
        for (ordering, expected) in table {
            let default = BandRules { ordering, fairness: fairness.clone(), ..BandRules::default() };
            let rules = FlowControlRules { bands: vec![(0, default)], ..FlowControlRules::default() };
            let mut pool = Pool::new(&rules, 1);
            for (name, ttl, received, due) in requests {
                pool.arrive(name, &Arrival { ttl, received, due, ..pool.arrival("f", 0, 1) }).unwrap();
                pool.now += 1;
            }
            assert_eq!(pool.drain(), expected, "{ordering:?} {fairness:?}");
        }
    }
}

#[test]
fn global_strict_orders_over_all_flows_and_round_robin_does_not() {
    let order = |fairness| {
        let default = BandRules { fairness, ..BandRules::default() };
        let rules = FlowControlRules { bands: vec![(0, default)], ..FlowControlRules::default() };
        let mut pool = Pool::new(&rules, 1);
        let requests = [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("c2", "c")];
        for (name, flow) in requests {
            pool.enqueue(name, flow, 0);
            pool.now += 1;
        }
        pool.drain()
    };
    assert_eq!(order(Fairness::GlobalStrict), ["a1", "a2", "a3", "b1", "c1", "c2"]);
    assert_eq!(order(Fairness::RoundRobin), ["a1", "b1", "c1", "a2", "c2", "a3"]);
}

#[test]
fn a_blocked_band_blocks_those_below_it() {
    let usage_limit = UsageLimit::Holdback(HoldbackParams { min_ceiling: 0.5, ..HoldbackParams::default() });
    let listed = [9, 0, -1].map(|priority| (priority, BandRules::default()));
    let rules = FlowControlRules { bands: listed.to_vec(), usage_limit, ..FlowControlRules::default() };
    // Ceilings are 1, 0.75 and 0.5 of 8: what shows, who waits, who goes.
    let table: [(u64, &[i32], usize); 8] = [
        (0, &[-1, -1, -1, -1, -1], 4),
        (0, &[0, 0, 0, 0, 0, 0, 0], 6),
        (0, &[9; 9], 8),
        (5, &[0, 0], 1),
        (5, &[0, 0, -1], 1),
        (4, &[-1], 0),
        (6, &[0, -1], 0),
        (6, &[9, 0, -1], 1),
    ];
    for (shown, waiting, count) in table {
        let mut pool = Pool::new(&rules, 8);
        pool.shown = shown;
        waiting.iter().for_each(|priority| pool.enqueue("x", "f", *priority));
        assert_eq!(pool.dispatched().len(), count, "{shown} {waiting:?}");
    }
}

#[test]
fn band_threshold_limits_the_saturation() {
    for (threshold, count) in [(0.5, 2), (1.0, 4), (1.5, 6), (0.0, 0)] {
        let usage_limit = UsageLimit::Static(StaticUsageLimitParams { threshold });
        let rules = FlowControlRules { usage_limit, ..FlowControlRules::default() };
        let mut pool = Pool::new(&rules, 4);
        (0..9).for_each(|_| pool.enqueue("x", "f", 0));
        assert_eq!(pool.dispatched().len(), count, "{threshold}");
    }
}

/// A pool of two bands that is four fifths full.
fn under_soft_ceiling() -> Pool {
    let rules = FlowControlRules {
        usage_limit: UsageLimit::SoftReflective,
        bands: [5, 0].map(|priority| (priority, BandRules::default())).to_vec(),
        ..FlowControlRules::default()
    };
    let mut pool = Pool::new(&rules, 1000);
    pool.shown = 800;
    pool
}

#[test]
fn a_soft_ceiling_opens_for_one_request_in_a_while() {
    let mut pool = under_soft_ceiling();
    (0..200).for_each(|_| pool.enqueue("x", "f", 0));
    // 0.8 ÷ 0.2: one in four milliseconds.
    let (mut count, start) = (0, pool.now);
    while pool.now < start + 100 * MS {
        let more = pool.pump();
        assert!(more.dispatched.len() <= 1);
        pool.end_all(&more);
        count += more.dispatched.len();
        let wake = pool.queue.wake_at(pool.now);
        assert!(wake > pool.now && wake <= pool.now + 4 * MS, "{} {wake}", pool.now);
        pool.now = wake;
    }
    assert_eq!(count, 25);
    pool.shown = 1000;
    assert!(pool.dispatched().is_empty());
    assert_eq!(pool.queue.wake_at(pool.now), NEVER, "a full pool opens by itself for nobody");
    pool.shown = 800;
    pool.enqueue("high", "f", 5);
    pool.now += 4 * MS - pool.now % (4 * MS);
    assert_eq!(pool.dispatched(), ["high", "x"], "the highest band is free");
    pool.shown = 100;
    assert_eq!(pool.dispatched().len(), 174, "so are all of them in an idle pool");
}

#[test]
fn soft_ceiling_has_no_wakeup_for_an_empty_queue() {
    let mut pool = under_soft_ceiling();
    for name in ["a", "b"] {
        pool.enqueue(name, "f", 0);
        pool.dispatched();
    }
    assert!(pool.queue.waiting().requests > 0 && pool.queue.wake_at(pool.now) != NEVER);
    for name in ["a", "b"] {
        pool.end(name, 0.0);
    }
    pool.now += S;
    assert_eq!(pool.queue.wake_at(pool.now), NEVER, "a task that waits until the past never rests");
}

#[test]
fn waiting_crowd_is_dispatched_after_endpoints_settle() {
    let mut pool = Pool::new(&FlowControlRules::default(), 8);
    pool.queue.set_endpoints(pool.now, 0);
    for name in ["a", "b", "c"] {
        pool.enqueue(name, "f", 0);
    }
    assert!(pool.dispatched().is_empty());
    pool.queue.set_endpoints(pool.now, 1);
    assert!(pool.dispatched().is_empty());
    pool.now += 60 * MS;
    pool.queue.set_endpoints(pool.now, 4);
    assert!(pool.dispatched().is_empty());
    assert_eq!(pool.queue.wake_at(pool.now), pool.now + 100 * MS);
    pool.now += 100 * MS;
    pool.room = 2;
    let happened = pool.pump();
    assert_eq!((happened.dispatched.as_slice(), happened.spread), (&["a", "b"][..], true));
    pool.enqueue("d", "f", 0);
    pool.room = 3;
    let happened = pool.pump();
    assert_eq!((happened.dispatched.as_slice(), happened.spread), (&["c"][..], true));
    pool.room = 4;
    let happened = pool.pump();
    assert_eq!((happened.dispatched.as_slice(), happened.spread), (&["d"][..], false), "it came later");
}

#[test]
fn draining_queue_rejects_those_that_would_begin_to_wait() {
    let mut pool = Pool::new(&FlowControlRules { evicts: true, ..FlowControlRules::default() }, 1);
    pool.enqueue("a", "f", 0);
    assert_eq!(pool.dispatched(), ["a"]);
    pool.book("a");
    pool.enqueue("b", "f", -2);
    assert_eq!(pool.pump(), Happened::default());
    pool.queue.drain();
    // No running request ends for one that is refused, whatever its priority.
    pool.enqueue("c", "g", 5);
    let happened = pool.pump();
    assert_eq!(
        (&happened.rejected[..], &happened.evicted[..]),
        (&[("c", Outcome::RejectedOther)][..], &[][..])
    );
    // One whose endpoint went away before it was placed has waited before.
    let returning = Arrival { since: pool.now - 1, ..pool.arrival("g", -1, 1) };
    pool.arrive("d", &returning).unwrap();
    assert_eq!(pool.pump(), Happened::default());
    // With room one that comes goes first, as its priority says, and those that wait follow.
    pool.room = 2;
    pool.enqueue("e", "g", 0);
    assert_eq!(pool.dispatched(), ["e"]);
    pool.enqueue("f", "g", 0);
    assert_eq!(pool.pump().rejected, [("f", Outcome::RejectedOther)]);
    pool.end("e", 0.0);
    assert_eq!(pool.dispatched(), ["d"]);
    pool.end("d", 0.0);
    assert_eq!(pool.dispatched(), ["b"]);
}

#[test]
fn draining_queue_keeps_requests_while_endpoints_settle() {
    let mut pool = Pool::new(&FlowControlRules::default(), 8);
    pool.queue.set_endpoints(pool.now, 0);
    pool.enqueue("a", "f", 0);
    assert!(pool.dispatched().is_empty());
    pool.queue.drain();
    pool.enqueue("b", "f", 0);
    assert_eq!(pool.pump().rejected, [("b", Outcome::RejectedOther)], "there may never be any");
    pool.queue.set_endpoints(pool.now, 1);
    pool.enqueue("c", "f", 0);
    assert_eq!(pool.pump(), Happened::default());
    pool.now += 100 * MS;
    assert_eq!(pool.dispatched(), ["a", "c"]);
}

#[test]
fn draining_queue_keeps_one_request_below_a_soft_ceiling() {
    let mut pool = under_soft_ceiling();
    pool.now += MS;
    pool.queue.drain();
    let mut rejected = 0;
    for _ in 0..200 {
        pool.enqueue("x", "f", 0);
        let happened = pool.pump();
        assert_eq!(happened.dispatched.len(), 0);
        rejected += happened.rejected.len();
    }
    assert_eq!((rejected, pool.queue.waiting().requests), (199, 1));
    pool.now += 3 * MS;
    let happened = pool.pump();
    assert_eq!(happened.dispatched, ["x"]);
    pool.end_all(&happened);
    pool.enqueue("y", "f", 0);
    assert_eq!(pool.pump(), Happened::default());
    pool.shown = 1000;
    assert_eq!(pool.pump().rejected, [("y", Outcome::RejectedOther)], "a full pool may never open");
}

#[test]
fn draining_queue_rejects_requests_for_which_settled_endpoints_have_no_room() {
    let mut pool = Pool::new(&FlowControlRules::default(), 2);
    pool.queue.set_endpoints(pool.now, 0);
    pool.enqueue("a", "f", 0);
    pool.queue.drain();
    pool.queue.set_endpoints(pool.now, 1);
    for name in ["b", "c", "d"] {
        pool.enqueue(name, "f", 0);
        assert_eq!(pool.pump(), Happened::default());
    }
    pool.now += 100 * MS;
    let happened = pool.pump();
    assert_eq!(happened.dispatched, ["a", "b"]);
    assert_eq!(happened.rejected, [("d", Outcome::RejectedOther), ("c", Outcome::RejectedOther)]);
}

#[test]
fn closed_queue_rejects_waiting_requests() {
    let mut pool = Pool::new(&FlowControlRules::default(), 1);
    pool.enqueue("a", "f", 0);
    pool.enqueue("b", "f", -2);
    pool.enqueue("c", "g", 0);
    assert_eq!(pool.dispatched(), ["a"]);
    let mut actions = Vec::new();
    pool.queue.close(pool.now, &mut actions);
    let mut rejected = pool.happened(actions).rejected;
    rejected.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(rejected, [("b", Outcome::EvictedOther), ("c", Outcome::EvictedOther)]);
    pool.enqueue("d", "f", 0);
    let happened = pool.pump();
    assert_eq!(happened.rejected, [("d", Outcome::RejectedOther)]);
    assert_eq!(pool.queue.waiting(), Count::default());
    pool.end("a", 0.0);
    // There is room again: who needn't wait is served to the end.
    pool.enqueue("e", "f", 0);
    pool.enqueue("f", "f", 0);
    let happened = pool.pump();
    assert_eq!(
        (&happened.dispatched[..], &happened.rejected[..]),
        (&["e"][..], &[("f", Outcome::RejectedOther)][..])
    );
    pool.end("e", 0.0);
    assert_eq!(pool.queue.in_flight(), 0);
}
