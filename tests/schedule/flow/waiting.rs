//! Waiting for room, for an endpoint, and for nothing any more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, advance};
use usher::endpoints::SubsetHint;
use usher::endpoints::health::Failure;
use usher::flow::Rejection;
use usher::memory::Budget;
use usher::request::usage::Usage;

use crate::flow::pool::{Pool, Sent, config, of, settle, with};

fn refused(rejection: &Rejection) -> (u16, Option<&'static str>, Option<u32>) {
    (rejection.code.status(), rejection.reason, rejection.retry_after)
}

#[tokio::test(start_paused = true)]
async fn queued_request_is_dispatched_when_another_ends() {
    let pool = Pool::new(&config(1, ""), 1);
    let first = pool.pass(of("a", 0)).await;
    let second = pool.send(of("a", 0));
    let third = pool.send(of("a", 0));
    assert!(!second.is_answered().await && !third.is_answered().await);
    assert_eq!((pool.demand().requests(), pool.demand().bytes()), (2, 60));
    drop(first);
    let second = second.now().await.unwrap();
    assert!(!third.is_answered().await);
    drop(second);
    assert_eq!(third.now().await.unwrap().destination(), "10.0.0.1:8000");
    assert!(pool.demand().is_empty());
}

#[tokio::test(start_paused = true)]
async fn disconnect_removes_the_request_from_the_queue() {
    let pool = Pool::new(&config(1, "priorityBands: [{priority: 0, maxRequests: 1}]"), 1);
    let first = pool.pass(of("a", 0)).await;
    let gone = pool.send(of("a", 0));
    assert!(!gone.is_answered().await);
    assert_eq!(
        refused(&pool.send(of("b", 0)).now().await.unwrap_err()),
        (429, Some("rejected-saturated"), Some(1))
    );
    drop(gone);
    settle().await;
    assert!(pool.demand().is_empty());
    let next = pool.send(of("b", 0));
    assert!(!next.is_answered().await);
    drop(first);
    assert!(next.now().await.is_ok());
    for (outcome, count) in [("EvictedContextCancelled", 1.0), ("RejectedCapacity", 1.0), ("Dispatched", 2.0)]
    {
        assert_eq!(pool.outcome(outcome, 0), count, "{outcome}");
    }
}

#[tokio::test(start_paused = true)]
async fn disconnect_at_dispatch_frees_room_for_the_next_request() {
    let pool = Pool::new(&config(1, ""), 1);
    let first = pool.pass(of("a", 0)).await;
    let (gone, next) = (pool.send(of("a", 0)), pool.send(of("a", 0)));
    assert!(!next.is_answered().await);
    // Both at once: the second may go, and hears of it when it is gone.
    drop(first);
    drop(gone);
    assert!(next.now().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn dropped_expired_request_leaves_its_reused_slot() {
    let pool = Pool::new(&config(1, "defaultRequestTTL: 5s"), 1);
    let first = pool.pass(of("a", 0)).await;
    let request = of("late", 0);
    let mut late =
        Box::pin(pool.dispatcher.enter(&Arc::new(request.clone()), &SubsetHint::Missing).decided());
    assert!(late.as_mut().now_or_never().is_none());
    assert_eq!(pool.demand().requests(), 1);
    advance(Duration::from_secs(5)).await;
    settle().await;
    // Its time is over, its place is taken by another, and only then is its future dropped.
    let next = pool.send(of("b", 0));
    settle().await;
    drop(late);
    assert!(!next.is_answered().await);
    drop(first);
    assert!(next.now().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn queued_request_expires_at_its_ttl() {
    let rules = "defaultRequestTTL: 5s\nnoEndpointRequestTTL: 2s";
    let pool = Pool::new(&config(1, rules), 1);
    let first = pool.pass(of("a", 0)).await;
    let (waits, start) = (pool.send(of("a", 0)), Instant::now());
    let rejection = waits.outcome().await.unwrap_err();
    assert_eq!(refused(&rejection), (429, Some("rejected-ttl-expired"), Some(1)));
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(5) && waited < Duration::from_millis(5005), "{waited:?}");

    let waits = pool.send(of("a", 0));
    advance(Duration::from_secs(4)).await;
    pool.scale(0);
    let start = Instant::now();
    let rejection = waits.outcome().await.unwrap_err();
    assert_eq!(refused(&rejection), (503, Some("rejected-no-endpoints"), None));
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(2) && waited < Duration::from_millis(2005), "{waited:?}");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn zero_ttl_never_expires() {
    let pool = Pool::new(&config(1, "defaultRequestTTL: 0s"), 0);
    let waits = pool.send(of("a", 0));
    advance(Duration::from_secs(100_000)).await;
    assert!(!waits.is_answered().await);
    pool.scale(1);
    assert!(waits.outcome().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn queue_limits_refuse_and_count_requests() {
    let first = |rejection: Rejection| refused(&rejection);
    let saturated = (429, Some("rejected-saturated"), Some(1));
    // No request is so small, and no more than one may wait.
    for limits in ["maxBytes: 29", "priorityBands: [{priority: 0, maxBytes: 1}]"] {
        let pool = Pool::new(&config(1, limits), 1);
        assert_eq!(first(pool.send(of("a", 0)).now().await.unwrap_err()), saturated, "{limits}");
        assert_eq!(pool.outcome("RejectedCapacity", 0), 1.0, "{limits}");
    }
    // The band has room, and the pool as a whole has not.
    let pool = Pool::new(&config(1, "maxRequests: 1\npriorityBands: [{priority: 0, maxRequests: 9}]"), 1);
    let running = pool.pass(of("a", 0)).await;
    let waits = pool.send(of("a", 0));
    settle().await;
    assert_eq!(first(pool.send(of("a", 0)).now().await.unwrap_err()), saturated);
    drop(running);
    assert!(waits.now().await.is_ok());
    // A ceiling of 0: nobody ever goes, and nobody waits for longer than allowed.
    let none = "
featureGates: [flowControl]
plugins:
- {type: random-picker}
- {type: static-usage-limit-policy, parameters: {threshold: 0}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
flowControl: {usageLimitPolicyPluginRef: static-usage-limit-policy, defaultRequestTTL: 1ms}
";
    let pool = Pool::new(none, 1);
    let rejection = pool.send(of("a", 0)).outcome().await.unwrap_err();
    assert_eq!(first(rejection), (429, Some("rejected-ttl-expired"), Some(1)));
    assert_eq!((pool.outcome("EvictedTTL", 0), pool.demand().requests()), (1.0, 0));
}

#[tokio::test(start_paused = true)]
async fn full_queue_of_an_empty_pool_reports_no_endpoints() {
    let pool = Pool::new(&config(1, "maxRequests: 1"), 0);
    let _waits = pool.send(of("a", 0));
    settle().await;
    assert_eq!(
        refused(&pool.send(of("a", 0)).now().await.unwrap_err()),
        (503, Some("rejected-no-endpoints"), None)
    );
}

#[tokio::test(start_paused = true)]
async fn request_that_skips_the_queue_is_answered_at_once() {
    let pool = Pool::new(&config(1, ""), 0);
    let mut without_body = of("a", 0);
    without_body.skips_queue = true;
    let outcomes =
        [pool.send(without_body.clone()), pool.send_within(of("a", 0), SubsetHint::from_entries([]))];
    for outcome in outcomes {
        assert_eq!(refused(&outcome.now().await.unwrap_err()), (503, Some("rejected-no-endpoints"), None));
    }
    pool.scale(1);
    let held = pool.pass(of("a", 0)).await;
    assert!(pool.send(without_body).now().await.is_ok(), "no room, and none is needed");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn subset_is_resolved_at_dispatch() {
    let pool = Pool::new(&config(1, ""), 1);
    let first = pool.pass(of("a", 0)).await;
    let second = SubsetHint::from_entries(["10.0.0.2:8000"]);
    let waits = pool.send_within(of("a", 0), second.clone());
    assert!(!waits.is_answered().await);
    pool.scale(2);
    assert_eq!(waits.now().await.unwrap().destination(), "10.0.0.2:8000");
    drop(first);
    let nowhere = SubsetHint::from_entries(["10.9.9.9:8000"]);
    let rejection = pool.send_within(of("a", 0), nowhere).now().await.unwrap_err();
    assert_eq!(refused(&rejection), (503, Some("rejected-no-endpoints"), None));
    // Its room was given back.
    assert!(pool.send(of("a", 0)).now().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn priorities_flows_and_deadlines_order_dispatch() {
    let rules = "
priorityBands:
- {priority: 0, fairnessPolicyRef: round-robin-fairness-policy}
- {priority: 1, orderingPolicyRef: slo-deadline-ordering-policy}";
    let pool = Pool::new(&config(1, rules), 1);
    let slo = |ms: &str| with(&[("x-llm-d-slo-ttft-ms", ms)], 1, "x");
    let requests = [
        ("a1", of("a", 0)),
        ("a2", of("a", 0)),
        ("b1", of("b", 0)),
        ("low", of("a", -5)),
        ("late", slo("90000")),
        ("never", slo("soon")),
        ("soon", slo("5000")),
    ];
    let mut running = pool.pass(of("c", 0)).await;
    let mut waiting: Vec<(&str, Sent)> = Vec::new();
    for (name, request) in requests {
        waiting.push((name, pool.send(request)));
        settle().await;
        advance(Duration::from_millis(1)).await;
    }
    let mut order = Vec::new();
    while !waiting.is_empty() {
        drop(running);
        settle().await;
        let mut gone = None;
        for (index, (_, sent)) in waiting.iter().enumerate() {
            if sent.is_answered().await {
                assert_eq!(gone.replace(index), None, "one at a time");
            }
        }
        let (name, sent) = waiting.remove(gone.expect("nobody goes"));
        order.push(name);
        running = sent.now().await.unwrap();
    }
    assert_eq!(order, ["soon", "late", "never", "a1", "b1", "a2", "low"]);
}

#[tokio::test(start_paused = true)]
async fn program_with_most_service_is_dispatched_last() {
    let pool = Pool::new(&config(1, "defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}"), 1);
    let mut running = pool.pass(of("big", 0)).await;
    let (big, small) = (pool.send(of("big", 0)), pool.send(of("small", 0)));
    settle().await;
    let usage = Usage { prompt_tokens: Some(5000), completion_tokens: Some(900), ..Usage::default() };
    running.response_ends(&usage, 0);
    drop(running);
    assert!(small.is_answered().await && !big.is_answered().await, "big waits longer, and got a lot");
}

/// The flow that goes first once the other's response of so many tokens, as it looked, has ended as it does.
async fn dispatched_first(seen: u64, usage: Option<Usage>, is_complete: bool) -> &'static str {
    let pool = Pool::new(&config(1, "defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}"), 1);
    let mut honest = pool.pass(of("honest", 0)).await;
    honest.response_ends(&Usage { completion_tokens: Some(1000), ..Usage::default() }, 1000);
    drop(honest);
    let mut other = pool.pass(of("other", 0)).await;
    let (first, second) = (pool.send(of("other", 0)), pool.send(of("honest", 0)));
    settle().await;
    if is_complete {
        other.response_ends(&usage.unwrap_or_default(), seen);
    } else {
        other.cut_off(&usage.unwrap_or_default(), seen);
    }
    drop(other);
    match (first.is_answered().await, second.is_answered().await) {
        (true, false) => "other",
        (false, true) => "honest",
        answered => panic!("{answered:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn response_without_usage_counts_its_streamed_tokens() {
    let says = |completion_tokens| Some(Usage { completion_tokens, ..Usage::default() });
    // Tokens of the other's response, its usage, whether it is complete, who goes.
    let table = [
        (1025, None, true, "honest"),
        (1025, None, false, "honest"),
        (750, None, true, "other"),
        (0, None, false, "other"),
        // It says so at its start, and goes on.
        (1025, says(Some(1)), false, "honest"),
        (25, says(Some(1100)), false, "honest"),
        (250_000, says(Some(900)), true, "other"),
        (250_000, says(Some(1100)), true, "honest"),
    ];
    for (seen, usage, is_complete, goes) in table {
        assert_eq!(dispatched_first(seen, usage, is_complete).await, goes, "{seen} {usage:?} {is_complete}");
    }
}

/// A stream that hangs up has streamed what it did.
#[tokio::test(start_paused = true)]
async fn dropped_exchange_reports_its_streamed_tokens() {
    let pool = Pool::new(&config(1, "defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}"), 1);
    let exchange = crate::flow::eviction::streamed(&pool, 4_000).await;
    let (dropped, other) = (pool.send(of("default-flow", 0)), pool.send(of("other", 0)));
    settle().await;
    drop(exchange);
    assert!(other.is_answered().await && !dropped.is_answered().await);
}

#[tokio::test(start_paused = true)]
async fn dispatch_counts_requests_sent_since_the_last_scrape() {
    let config = "
featureGates: [flowControl]
plugins: [{type: random-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
";
    let pool = Pool::new(config, 1);
    let load = pool.load(0);
    let sent: Vec<Sent> = (0..12).map(|_| pool.send(of("a", 0))).collect();
    let answered = async || {
        let mut count = 0;
        for sent in &sent {
            count += usize::from(sent.is_answered().await);
        }
        count
    };
    assert_eq!(answered().await, 0, "nothing is known of the endpoint");
    let scraped = |waiting: f64| {
        load.waiting.set(waiting, pool.clock.now_ms());
        load.seen(load.sent());
        pool.store.loads_changed();
    };
    scraped(2.0);
    advance(Duration::from_millis(5)).await;
    assert_eq!(answered().await, 3, "five may wait there, and two do");
    advance(Duration::from_millis(200)).await;
    assert_eq!(answered().await, 3, "nothing new");
    scraped(4.0);
    advance(Duration::from_millis(5)).await;
    assert_eq!(answered().await, 4);
    scraped(0.0);
    advance(Duration::from_millis(5)).await;
    assert_eq!(answered().await, 9);
}

#[tokio::test(start_paused = true)]
async fn lowest_priority_and_newest_request_free_memory_first() {
    let pool = Pool::new(&config(1, ""), 1);
    let running = pool.pass(of("a", 0)).await;
    let mut waiting = Vec::new();
    for priority in [-1, 5, 0, -1, 0] {
        waiting.push(pool.send(of("a", priority)));
        settle().await;
    }
    let gate = pool.dispatcher.gate().unwrap();
    // A stream, and 30 bytes of a body.
    let each = Budget::STREAM + 30;
    assert_eq!(gate.shed(u64::MAX, -2).requests, 0, "nobody's priority is that low");
    let freed = gate.shed(2 * each + 1, 4);
    assert_eq!((freed.requests, freed.bytes), (3, 3 * each));
    let mut answered = Vec::new();
    for sent in &waiting {
        answered.push(sent.is_answered().await);
    }
    assert_eq!(answered, [true, false, false, true, true]);
    let rejection = waiting.remove(0).now().await.unwrap_err();
    assert_eq!(refused(&rejection), (429, Some("evicted-queue-pressure"), Some(1)));
    assert_eq!((pool.demand().requests(), pool.demand().bytes()), (2, 60));
    for (priority, count) in [(-1, 2.0), (0, 1.0), (5, 0.0)] {
        assert_eq!(pool.outcome("EvictedQueuePressure", priority), count, "{priority}");
    }
    assert_eq!(gate.shed(0, i32::MAX).requests, 0);
    assert_eq!(gate.shed(u64::MAX, 0).requests, 1, "the other is of a higher priority");
    assert_eq!(gate.shed(u64::MAX, 5).bytes, each, "all there is");
    settle().await;
    assert!(pool.demand().is_empty());
    drop(running);
    assert!(pool.send(of("a", 0)).now().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn shutdown_refuses_queued_and_new_requests() {
    let pool = Pool::new(&config(1, ""), 1);
    let running = pool.pass(of("a", 0)).await;
    let waits = pool.send(of("a", 0));
    assert!(!waits.is_answered().await);
    pool.dispatcher.gate().unwrap().close();
    let expected = (503, Some("rejected-shutting-down"), None);
    assert_eq!(refused(&waits.now().await.unwrap_err()), expected);
    assert_eq!(refused(&pool.send(of("a", 0)).now().await.unwrap_err()), expected);
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn draining_refuses_at_once_what_would_have_to_wait() {
    let pool = Pool::new(&config(1, ""), 1);
    let running = pool.pass(of("a", 0)).await;
    let waits = pool.send(of("a", 0));
    assert!(!waits.is_answered().await);
    pool.dispatcher.gate().unwrap().drain();
    let refusal = pool.send(of("a", 5)).now().await.unwrap_err();
    assert_eq!(refused(&refusal), (503, Some("rejected-shutting-down"), None));
    assert!(!waits.is_answered().await);
    drop(running);
    drop(waits.now().await.unwrap());
    assert!(pool.send(of("a", 0)).now().await.is_ok(), "there is room for it");
    assert_eq!((pool.outcome("RejectedOther", 5), pool.outcome("Dispatched", 0)), (1.0, 3.0));
}

#[tokio::test(start_paused = true)]
async fn ejected_endpoints_add_no_capacity() {
    let pool = Pool::new(&config(1, ""), 4);
    let endpoints = pool.store.snapshot();
    for endpoint in &endpoints.endpoints()[..2] {
        (0..3).for_each(|_| endpoint.health().failed(Failure::Status(503), pool.clock.now_ms()));
        assert!(endpoint.health().is_ejected());
    }
    let sent: Vec<_> = (0..4).map(|_| pool.send(of("a", 0))).collect();
    let mut waiting = 0;
    for sent in &sent {
        waiting += usize::from(!sent.is_answered().await);
    }
    assert_eq!(waiting, 2, "there is room at the two others only");
}

#[tokio::test(start_paused = true)]
async fn shed_request_frees_its_large_headers() {
    let pool = Pool::new(&config(1, ""), 1);
    let running = pool.pass(of("a", 0)).await;
    let long = "v".repeat(60_000);
    let mut request = of("a", 0);
    request.headers = [("x-long", long.as_str())].into_iter().collect();
    let sent = pool.send(request);
    settle().await;
    // 30 bytes are its body: limits and numbers of what waits are in those.
    assert_eq!(pool.demand().bytes(), 30);
    let freed = pool.dispatcher.gate().unwrap().shed(1, 0);
    assert_eq!((freed.requests, freed.bytes), (1, Budget::STREAM + 60_036));
    settle().await;
    assert!(sent.is_answered().await);
    drop(running);
}
