//! Bodies against the memory budget: what is counted is what is kept.

use std::sync::Mutex;

use super::*;
use crate::memory::Sheddable;
use crate::request::MAX_NAME;

/// Large enough to be kept in replies as they are.
const PART: usize = 10_000;

/// For bodies of 100,000 bytes, and the three streams that are open at most.
const ROOM: u64 = 100_000 + 3 * Budget::STREAM;

pub(super) fn used(budget: &Arc<Budget>) -> usize {
    budget.used(Kind::Bodies) as usize
}

/// A part of a body that is read: white space, and with the last one a request.
pub(super) fn part(bytes: usize, end: bool) -> Event {
    let request = if end { PROMPT } else { "" };
    body(&(" ".repeat(bytes.saturating_sub(request.len())) + request), end)
}

pub(super) const COMPLETION: [(&str, &str); 1] = [(":path", "/v1/completions")];

fn step(exchange: &mut Exchange, event: Event) -> Step {
    exchange.on_message(message(event), Instant::now()).unwrap()
}

#[test]
fn body_counts_from_arrival_until_it_is_written() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    let mut harness = Harness::within(1, &budget);
    harness.send(headers(&COMPLETION, false)).unwrap();
    assert_eq!(used(&budget), 0);
    for chunks in 1..=10 {
        // Half of the message, then all of it, which is a little more than the body in it.
        assert!(matches!(harness.exchange.on_part(PART / 2, Instant::now()), Step::Continue));
        assert_eq!(used(&budget), (chunks - 1) * PART + PART / 2);
        harness.send(part(PART, false)).unwrap();
        assert_eq!(used(&budget), chunks * PART);
    }
    let replies = harness.send(part(PART, true)).unwrap();
    assert_eq!(kinds(&replies), ["headers", "body62000", "body48000!"]);
    assert_eq!(used(&budget), 11 * PART, "the replies are not written yet");
    let room = harness.exchange.settle();
    assert_eq!(room.as_ref().map(|room| room.bytes()), Some(11 * PART as u64));
    drop(room);
    assert_eq!(used(&budget), 0, "though the stream waits for its response");
    assert_eq!(harness.in_flight(), 1);
}

#[test]
fn a_small_body_counts_with_its_stream_once_it_is_there() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    for (bytes, counted) in [(4096, 0), (4097, 4097)] {
        let mut harness = Harness::within(1, &budget);
        harness.send(headers(&COMPLETION, false)).unwrap();
        harness.send(part(bytes, true)).unwrap();
        assert_eq!(used(&budget), counted);
    }
}

/// A part lies in a frame beside others, and keeps all of it.
#[test]
fn parts_are_copied_from_half_of_the_limit_on() {
    let budget = Arc::new(Budget::new(120_000, 0));
    let mut harness = Harness::within(1, &budget);
    harness.send(headers(&COMPLETION, false)).unwrap();
    let text = |end: bool| format!("{:>PART$}", if end { PROMPT } else { "" });
    let parts: Vec<Bytes> = (0..8).map(|number| Bytes::from(text(number == 7))).collect();
    let mut replies = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let data = part.clone().into();
        replies = harness.send(Event::RequestBody { data, end_of_stream: number == 7 }).unwrap();
    }
    let bodies = replies.into_iter().filter_map(|reply| match reply {
        Reply::RequestBody { data, .. } => Some(data),
        _ => None,
    });
    let is_own: Vec<bool> =
        bodies.flatten().zip(&parts).map(|(kept, part)| kept.as_ptr() == part.as_ptr()).collect();
    // With its stream the sixth part makes it 68,192 bytes.
    assert_eq!(is_own, [true, true, true, true, true, false, false, false]);
}

#[test]
fn large_headers_count_with_their_body() {
    let budget = Arc::new(Budget::new(ROOM, 0));
    let long = "v".repeat(60_000 - ":path/v1/completionsx-long".len());
    let large = [COMPLETION[0], ("x-long", &long)];
    // Without a body nothing waits.
    let mut harness = Harness::within(1, &budget);
    step(&mut harness.exchange, headers(&large, true));
    assert_eq!(used(&budget), 0);
    let mut first = Harness::within(1, &budget);
    step(&mut first.exchange, headers(&large, false));
    assert_eq!(used(&budget), 60_000);
    assert!(matches!(first.exchange.on_part(5, Instant::now()), Step::Continue));
    assert_eq!(used(&budget), 60_005);
    step(&mut first.exchange, part(10, false));
    assert_eq!(used(&budget), 60_010);
    let mut second = Harness::within(1, &budget);
    assert_eq!(kinds(&second.send(headers(&large, false)).unwrap()), ["immediate429"]);
    assert_eq!((used(&budget), budget.refused()), (60_010, 1));
    assert_eq!(first.send(part(30, true)).unwrap().len(), 2);
    assert_eq!(used(&budget), 60_040);
    drop(first);
    assert_eq!(used(&budget), 0);
    // A gateway that keeps the body to itself: the request waits for its decision.
    let modes = Some(Modes { request: Mode::None, response: Mode::FullDuplex });
    let mut harness = Harness::within(1, &budget);
    let message = Message { modes, ..message(headers(&large, false)) };
    let Step::Decide(question) = harness.exchange.on_message(message, Instant::now()).unwrap() else {
        panic!("it needs no body")
    };
    assert_eq!(used(&budget), 60_000);
    harness.decide(&question);
    assert_eq!(used(&budget), 0);
}

#[test]
fn partial_message_counts_in_every_stream_state() {
    let other = [(":path", "/other")];
    // Messages until then, whether the request is decided, and what is kept of it besides.
    let table: [(&str, Vec<Event>, bool, usize); 7] = [
        ("a response", vec![headers(&COMPLETION, false), part(PART, true)], true, 0),
        (
            "a response's body",
            vec![headers(&COMPLETION, false), part(PART, true), response_headers()],
            true,
            0,
        ),
        (
            "the end of a response",
            vec![
                headers(&COMPLETION, false),
                part(PART, true),
                response_headers(),
                response_body("x", false),
            ],
            true,
            0,
        ),
        ("a decision", vec![headers(&COMPLETION, false), part(PART, true)], false, PART),
        ("a decision without a body", vec![headers(&COMPLETION, true)], false, 0),
        ("a body that is relayed", vec![headers(&other, false)], true, 0),
        ("a gateway that went on", vec![headers(&COMPLETION, false), response_headers()], false, 0),
    ];
    for (what, events, is_decided, kept) in table {
        let budget = Arc::new(Budget::new(1 << 20, 0));
        let mut harness = Harness::within(1, &budget);
        for event in events {
            if let Step::Decide(question) = step(&mut harness.exchange, event)
                && is_decided
            {
                harness.decide(&question);
            }
        }
        if is_decided {
            while harness.exchange.next_reply().is_some() {}
            harness.exchange.settle();
        }
        assert_eq!(used(&budget), kept, "{what}");
        for bytes in [5, 70_000, 300_000] {
            assert!(matches!(harness.exchange.on_part(bytes, Instant::now()), Step::Continue), "{what}");
            assert_eq!(used(&budget), kept + bytes, "{what}");
        }
        let next = if what.contains("body that") { body("x", false) } else { response_body("x", false) };
        let _ = harness.exchange.on_message(message(next), Instant::now());
        let left = if what.contains("decision") { kept } else { 0 };
        while harness.exchange.next_reply().is_some() {}
        harness.exchange.settle();
        assert_eq!(used(&budget), left, "{what}");
        drop(harness);
        assert_eq!(used(&budget), 0, "{what}");
    }
}

#[test]
fn a_passed_through_part_is_refused_a_sixteenth_above_the_limit() {
    let limit = (ROOM + Budget::STREAM) as usize;
    let budget = Arc::new(Budget::new(limit as u64, 0));
    let most = limit + limit / 16 - Budget::STREAM as usize;
    // A request that is on its way, and one that waits.
    for is_decided in [true, false] {
        let before = budget.refused();
        let mut harness = Harness::within(1, &budget);
        if let Step::Decide(question) = step(&mut harness.exchange, headers(&COMPLETION, true))
            && is_decided
        {
            harness.decide(&question);
        }
        while harness.exchange.next_reply().is_some() {}
        assert!(matches!(harness.exchange.on_part(most, Instant::now()), Step::Continue));
        assert_eq!((used(&budget), budget.refused(), harness.in_flight()), (most, before, is_decided.into()));
        assert!(matches!(harness.exchange.on_part(most + 1, Instant::now()), Step::End));
        assert_eq!(kinds(&harness.exchange.next_reply().into_iter().collect::<Vec<_>>()), ["immediate429"]);
        assert_eq!((used(&budget), budget.refused(), harness.in_flight()), (0, before + 1, 0));
    }
}

#[test]
fn relayed_message_counts_until_it_is_written() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    let mut harness = Harness::within(1, &budget);
    harness.send(headers(&[(":path", "/other")], false)).unwrap();
    let body = |bytes: usize| body(&"z".repeat(bytes), false);
    let response = |bytes: usize| response_body(&"z".repeat(bytes), false);
    let table: [(fn(usize) -> Event, usize, usize); 4] =
        [(body, 200_000, 200_000), (body, 4096, 0), (response, 200_000, 200_000), (response, 4096, 0)];
    for (index, (event, length, kept)) in table.into_iter().enumerate() {
        if index == 2 {
            harness.send(response_headers()).unwrap();
        }
        assert!(matches!(harness.exchange.on_part(length, Instant::now()), Step::Continue));
        assert_eq!(used(&budget), length, "{index}");
        harness.send(event(length)).unwrap();
        assert_eq!(used(&budget), kept, "{index}");
        harness.exchange.settle();
        assert_eq!(used(&budget), 0, "{index}");
    }
}

#[test]
fn too_large_headers_are_refused_early() {
    let budget = Arc::new(Budget::new(4 << 20, 0));
    let mut harness = Harness::within(1, &budget);
    assert!(matches!(harness.exchange.on_part(1 << 20, Instant::now()), Step::Continue));
    assert_eq!(used(&budget), 1 << 20);
    assert!(matches!(harness.exchange.on_part((1 << 20) + 1, Instant::now()), Step::End));
    assert_eq!(kinds(&harness.exchange.next_reply().into_iter().collect::<Vec<_>>()), ["immediate413"]);
    assert_eq!((used(&budget), budget.refused()), (0, 0));
}

#[test]
fn parser_memory_counts_with_the_body() {
    let budget = Arc::new(Budget::new(ROOM, 0));
    let mut harness = Harness::within(1, &budget);
    harness.send(headers(&POST, false)).unwrap();
    let mut texts = r#"{"model":"m","prompt":["""#.to_owned() + &r#","""#.repeat(1000);
    harness.send(body(&texts, false)).unwrap();
    assert!(used(&budget) >= texts.len() + 1000 * 24, "{}", used(&budget));
    // The places of so many have no room, though the body has.
    texts = r#","""#.repeat(10_000);
    assert_eq!(kinds(&harness.send(body(&texts, false)).unwrap()), ["immediate429"]);
    assert_eq!((used(&budget), budget.refused()), (0, 1));
}

#[test]
fn overlong_name_is_counted_by_its_header() {
    let mut harness = Harness::new(1);
    let long = "x".repeat(MAX_NAME + 1);
    let sent = [("X-Request-Id", long.as_str()), ("x-other", &long)];
    harness.send(headers(&sent, false)).unwrap();
    let Reply::RequestHeaders(route) = &harness.send(body(PROMPT, true)).unwrap()[0] else { panic!() };
    assert!(route.request_id.is_some(), "as if there were none");
    assert_eq!((ignored(&harness, "x-request-id"), ignored(&harness, "x-other")), (Some(1.0), None));
}

/// Requests that were sent with this header, which was ignored.
fn ignored(harness: &Harness, header: &str) -> Option<f64> {
    harness.metric(&format!("usher_long_headers_ignored_total{{header=\"{header}\"}}"))
}

#[test]
fn every_long_name_of_a_request_is_counted() {
    const OBJECTIVE: &str = "x-llm-d-inference-objective";
    const REWRITE: &str = "x-llm-d-model-name-rewrite";
    const FLOW: &str = "x-llm-d-inference-fairness-id";
    let long = "x".repeat(MAX_NAME + 1);
    let names = [COMPLETION[0], (OBJECTIVE, &long), (REWRITE, &long), (FLOW, &long)];
    let room = |bytes: u64| Arc::new(Budget::new(bytes, 0));
    let plenty = || room(1 << 20);
    // Budget, what follows the headers, the last reply, and the names that are read by then.
    let table: [(Arc<Budget>, Vec<Event>, &str, &[&str]); 5] = [
        (plenty(), vec![body(PROMPT, true)], "body27!", &[OBJECTIVE, REWRITE, FLOW]),
        (plenty(), vec![body(r#"{"prompt":"x"}"#, true)], "immediate400", &[OBJECTIVE, REWRITE]),
        (room(Budget::STREAM + 40_000), vec![part(60_000, false)], "immediate429", &[OBJECTIVE]),
        (plenty(), vec![part(50_000, false), response_headers()], "response-headers", &[OBJECTIVE]),
        (room(Budget::STREAM - 100), vec![], "immediate429", &[OBJECTIVE]),
    ];
    for (budget, events, reply, read) in table {
        let mut harness = Harness::within(1, &budget);
        let objectives = [("some".to_owned(), 1)].into();
        harness.rules.replace(Rules { objectives, ..Rules::default() });
        let mut replies = harness.send(headers(&names, false)).unwrap();
        for event in events {
            replies.extend(harness.send(event).unwrap());
        }
        assert_eq!(kinds(&replies).last().map(String::as_str), Some(reply));
        for name in [OBJECTIVE, REWRITE, FLOW] {
            assert_eq!(ignored(&harness, name), read.contains(&name).then_some(1.0), "{name}: {reply}");
        }
    }
}

#[test]
fn body_is_refused_when_the_memory_budget_is_full() {
    let budget = Arc::new(Budget::new(ROOM, 0));
    let (mut first, mut second) = (Harness::within(1, &budget), Harness::within(1, &budget));
    first.send(headers(&COMPLETION, false)).unwrap();
    first.send(part(70_000, false)).unwrap();
    second.send(headers(&COMPLETION, false)).unwrap();
    second.send(part(20_000, false)).unwrap();
    let replies = second.send(part(20_000, false)).unwrap();
    let [Reply::Immediate(rejection)] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(
        (rejection.code.status(), rejection.reason, rejection.retry_after),
        (429, Some("rejected-saturated"), Some(1))
    );
    assert_eq!((used(&budget), budget.refused()), (70_000, 1));
    // A message that is still arriving has no room either.
    let mut third = Harness::within(1, &budget);
    third.send(headers(&COMPLETION, false)).unwrap();
    assert!(matches!(third.exchange.on_part(40_000, Instant::now()), Step::End));
    assert_eq!(
        kinds(&std::iter::from_fn(|| third.exchange.next_reply()).collect::<Vec<_>>()),
        ["immediate429"]
    );
    // The first goes on, and when it has gone there is room again.
    assert_eq!(first.send(part(30, true)).unwrap().len(), 3);
    first.exchange.settle();
    assert_eq!(used(&budget), 0);
    drop((second, third));
    let mut fourth = Harness::within(1, &budget);
    fourth.send(headers(&COMPLETION, false)).unwrap();
    fourth.send(part(100_000, false)).unwrap();
    assert_eq!((used(&budget), budget.refused()), (100_000, 2));
}

#[test]
fn negative_priorities_are_refused_first() {
    let budget = Arc::new(Budget::new(ROOM, 0));
    let mut tight = Reservation::new(&budget, Kind::Bodies);
    tight.grow_to(105_000, || None).unwrap();
    // What becomes of a request with a priority.
    let decided = |priority: i32| {
        let mut harness = Harness::within(1, &budget);
        let objectives = [("some".to_owned(), priority)].into();
        harness.rules.replace(Rules { objectives, ..Rules::default() });
        let named = [COMPLETION[0], ("x-llm-d-inference-objective", "some")];
        harness.send(headers(&named, false)).unwrap();
        let mut request = Request::default();
        request.body.push(Bytes::from_static(b"x"));
        harness.exchange.decide(request, BodyEnd::Flag, Instant::now())
    };
    for (priority, refused) in [(0, false), (-1, true), (5, false)] {
        assert_eq!(matches!(decided(priority), Step::End), refused, "{priority}");
    }
    drop(tight);
    assert!(matches!(decided(-1), Step::Decide(_)));
    assert_eq!(budget.refused(), 1);
}

/// Has nothing to give, and knows for whom it was asked.
#[derive(Default)]
struct Asked(Mutex<Vec<i32>>);

impl Sheddable for Asked {
    fn shed(&self, _: u64, highest: i32) -> u64 {
        self.0.lock().unwrap().push(highest);
        0
    }
}

#[test]
fn shedding_uses_the_priority_of_the_new_request() {
    let budget = Arc::new(Budget::new(ROOM, 0));
    let waiting = Arc::new(Asked::default());
    let weak = Arc::downgrade(&waiting);
    budget.shed_with(weak);
    let mut tight = Reservation::new(&budget, Kind::Bodies);
    tight.grow_to(105_000, || None).unwrap();
    for priority in [-3, 0, 7] {
        let mut harness = Harness::within(1, &budget);
        let objectives = [("some".to_owned(), priority)].into();
        harness.rules.replace(Rules { objectives, ..Rules::default() });
        // Nobody knows it before the headers are there.
        assert!(matches!(harness.exchange.on_part(5, Instant::now()), Step::Continue));
        let named = [COMPLETION[0], ("x-llm-d-inference-objective", "some")];
        step(&mut harness.exchange, headers(&named, false));
        assert!(matches!(harness.exchange.on_part(10, Instant::now()), Step::Continue));
        step(&mut harness.exchange, part(20, false));
        assert_eq!(std::mem::take(&mut *waiting.0.lock().unwrap()), [priority; 3]);
    }
    drop(tight);
    let mut harness = Harness::within(1, &budget);
    harness.send(headers(&COMPLETION, false)).unwrap();
    step(&mut harness.exchange, part(20, false));
    assert!(waiting.0.lock().unwrap().is_empty());
}

#[test]
fn stream_beyond_the_budget_is_refused_before_its_first_message() {
    let budget = Arc::new(Budget::new(ROOM, 0));
    let mut all = Reservation::new(&budget, Kind::Bodies);
    all.set(2 * ROOM);
    let mut harness = Harness::within(1, &budget);
    assert!(matches!(harness.exchange.refuse_if_starved(Instant::now), Some(Step::End)));
    assert_eq!(kinds(&harness.exchange.next_reply().into_iter().collect::<Vec<_>>()), ["immediate429"]);
    assert!(harness.exchange.refuse_if_starved(Instant::now).is_none(), "once");
    assert_eq!((budget.refused(), budget.used(Kind::Streams)), (1, Budget::STREAM));
    drop((harness, all));
    assert_eq!(budget.used(Kind::Streams), 0);
    let mut harness = Harness::within(1, &budget);
    assert!(harness.exchange.refuse_if_starved(Instant::now).is_none());
}

#[test]
fn local_reply_of_the_gateway_frees_the_body() {
    let budget = Arc::new(Budget::new(ROOM, 0));
    for ended in [false, true] {
        let mut harness = Harness::within(1, &budget);
        step(&mut harness.exchange, headers(&COMPLETION, false));
        // Not decided: it waits.
        step(&mut harness.exchange, part(50_000, ended));
        assert_eq!(used(&budget), 50_000);
        step(&mut harness.exchange, response_headers());
        assert_eq!(used(&budget), 0);
    }
}
