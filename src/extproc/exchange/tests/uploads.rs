//! Bodies that come slowly against the memory budget.

use std::task::Waker;

use super::*;

/// Begins a body of 50,000 bytes of a request with this priority, and looks at it for some seconds.
fn begin(budget: &Arc<Budget>, priority: i32) -> Harness {
    let mut harness = Harness::within(1, budget);
    harness.rules.replace(Rules { objectives: [("some".to_owned(), priority)].into(), ..Rules::default() });
    let named = [(":path", "/v1/completions"), ("x-llm-d-inference-objective", "some")];
    harness.send(headers(&named, false)).unwrap();
    harness.send(body(&format!("{{\"prompt\":\"{}", "z".repeat(50_000)), false)).unwrap();
    harness.exchange.on_pending(Waker::noop(), false);
    let start = Instant::now();
    for second in 0..4 {
        budget.check_uploads(start + Duration::from_secs(second), None);
    }
    harness
}

#[test]
fn slow_body_is_shed_for_equal_or_higher_priorities() {
    // Priorities of the slow body and of the one that needs room.
    for (slow, comes, gives_up) in [(0, 0, true), (1, 0, false), (-1, 0, true), (5, 4, false), (5, 9, true)] {
        let budget = Arc::new(Budget::new(97_000 + 2 * Budget::STREAM, 0));
        let mut slow = begin(&budget, slow);
        let comes = begin(&budget, comes);
        let refused = slow.exchange.refuse_if_starved(Instant::now).is_some();
        assert_eq!(refused, gives_up);
        assert_eq!(matches!(comes.exchange.state, State::Body(_)), gives_up, "the other is refused");
    }
}

#[test]
fn partial_headers_time_out_and_silent_streams_stay() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    let (mut partial, mut silent) = (Harness::within(1, &budget), Harness::within(1, &budget));
    silent.exchange.on_pending(Waker::noop(), false);
    partial.exchange.on_pending(Waker::noop(), false);
    assert!(matches!(partial.exchange.on_part(5000, Instant::now()), Step::Continue));
    partial.exchange.on_pending(Waker::noop(), false);
    let start = Instant::now();
    for second in 0..31 {
        budget.check_uploads(start + Duration::from_secs(second), Some(Duration::from_secs(30)));
        assert!(silent.exchange.refuse_if_starved(Instant::now).is_none());
        assert_eq!(partial.exchange.refuse_if_starved(Instant::now).is_some(), second == 30);
    }
    assert_eq!(kinds(&partial.exchange.next_reply().into_iter().collect::<Vec<_>>()), ["immediate408"]);
    assert_eq!(budget.used(Kind::Bodies), 0);
    // With its headers it is a request like any other.
    silent.send(headers(&[(":path", "/v1/completions")], false)).unwrap();
    silent.exchange.on_pending(Waker::noop(), false);
    for second in 31..62 {
        budget.check_uploads(start + Duration::from_secs(second), Some(Duration::from_secs(30)));
    }
    assert!(silent.exchange.refuse_if_starved(Instant::now).is_some());
}

#[test]
fn partial_message_of_a_running_request_times_out() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    let mut harness = Harness::within(1, &budget);
    harness.send(headers(&[(":path", "/v1/completions")], true)).unwrap();
    assert!(matches!(harness.exchange.on_part(5000, Instant::now()), Step::Continue));
    harness.exchange.on_pending(Waker::noop(), false);
    let start = Instant::now();
    let mut look = |second| {
        budget.check_uploads(start + Duration::from_secs(second), Some(Duration::from_secs(30)));
    };
    look(0);
    assert!(matches!(harness.exchange.on_part(6000, Instant::now()), Step::Continue));
    (1..31).for_each(&mut look);
    assert!(harness.exchange.refuse_if_starved(Instant::now).is_none());
    assert_eq!(harness.in_flight(), 1);
    look(31);
    assert!(matches!(harness.exchange.refuse_if_starved(Instant::now), Some(Step::End)));
    assert_eq!(kinds(&harness.exchange.next_reply().into_iter().collect::<Vec<_>>()), ["immediate408"]);
    assert_eq!((harness.in_flight(), budget.used(Kind::Bodies)), (0, 0));
}

/// The rest of a message is not read while the gateway has no window for replies.
#[test]
fn message_does_not_time_out_behind_unread_replies() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    let mut harness = Harness::within(1, &budget);
    harness.send(headers(&[(":path", "/v1/completions")], true)).unwrap();
    assert!(matches!(harness.exchange.on_part(5000, Instant::now()), Step::Continue));
    let start = Instant::now();
    let look = |second| {
        budget.check_uploads(start + Duration::from_secs(second), Some(Duration::from_secs(30)));
    };
    // It is waited for, until there is something to say.
    harness.exchange.on_pending(Waker::noop(), false);
    (0..20).for_each(look);
    harness.exchange.on_pending(Waker::noop(), true);
    (20..200).for_each(look);
    assert!(harness.exchange.refuse_if_starved(Instant::now).is_none());
    harness.exchange.on_pending(Waker::noop(), false);
    (200..230).for_each(look);
    assert!(harness.exchange.refuse_if_starved(Instant::now).is_none());
    look(230);
    assert!(harness.exchange.refuse_if_starved(Instant::now).is_some());
}
