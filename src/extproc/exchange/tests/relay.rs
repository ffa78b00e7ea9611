//! Bodies that nobody reads, and those that are wrong before their end.

use super::*;

fn whole(harness: &Harness, family: &str) -> Option<f64> {
    let labels = r#"fairness_id="default-flow",model_name="",priority="0",target_model_name="""#;
    harness.metric(&format!("{family}{{{labels}}}"))
}

#[test]
fn unparsed_body_is_relayed_without_buffering() {
    let budget = Arc::new(Budget::new(100_000, 0));
    let mut harness = Harness::within(1, &budget);
    assert_eq!(kinds(&harness.send(headers(&OTHER, false)).unwrap()), ["headers"]);
    assert_eq!(whole(&harness, "llm_d_epp_request_total"), Some(1.0));
    for _ in 0..20 {
        // More than the limit, and more than there is memory for.
        let chunk = Bytes::from(vec![b'z'; 70_000]);
        let event = Event::RequestBody { data: chunk.clone().into(), end_of_stream: false };
        let replies = harness.send(event).unwrap();
        assert_eq!(kinds(&replies), ["body62000", "body8000"]);
        let Reply::RequestBody { data, .. } = &replies[0] else { panic!() };
        assert_eq!(data.iter().next().unwrap().as_ptr(), chunk.as_ptr(), "it isn't copied");
        assert_eq!(budget.used(Kind::Bodies), 0);
    }
    assert!(harness.send(body("", false)).unwrap().is_empty());
    assert_eq!(whole(&harness, "llm_d_epp_request_size_bytes_count"), None);
    assert_eq!(kinds(&harness.send(body("x", true)).unwrap()), ["body1!"]);
    assert_eq!(whole(&harness, "llm_d_epp_request_size_bytes_sum"), Some(1_400_001.0));
    // As gateways of some versions do.
    assert!(harness.send(body("x", true)).unwrap().is_empty());
    assert_eq!(harness.in_flight(), 1);
}

#[test]
fn trailers_end_an_unparsed_body() {
    let mut harness = Harness::new(1);
    harness.send(headers(&OTHER, false)).unwrap();
    assert_eq!(kinds(&harness.send(body("x", false)).unwrap()), ["body1"]);
    assert_eq!(kinds(&harness.send(Event::RequestTrailers).unwrap()), ["trailers"]);
    assert!(harness.exchange.on_message(message(Event::RequestTrailers), Instant::now()).is_err());
}

/// As calls with messages in both directions have it.
#[test]
fn a_response_may_begin_and_end_before_its_request_does() {
    let mut harness = Harness::new(1);
    harness.send(headers(&OTHER, false)).unwrap();
    assert_eq!(kinds(&harness.send(body("a", false)).unwrap()), ["body1"]);
    assert_eq!(kinds(&harness.send(response_headers()).unwrap()), ["response-headers"]);
    assert_eq!(kinds(&harness.send(response_body("b", false)).unwrap()), ["response-body1"]);
    assert_eq!(kinds(&harness.send(body("c", false)).unwrap()), ["body1"]);
    assert_eq!(kinds(&harness.send(response_body("d", true)).unwrap()), ["response-body1!"]);
    assert_eq!(harness.in_flight(), 0);
    assert_eq!(kinds(&harness.send(body("e", true)).unwrap()), ["body1!"]);
}

#[test]
fn a_body_is_kept_and_counts_while_its_request_waits() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    let mut harness = Harness::within(1, &budget);
    let step = harness.exchange.on_message(message(headers(&OTHER, false)), Instant::now()).unwrap();
    let Step::Decide(question) = step else { panic!("it needs no body") };
    assert!(question.request.is_uploading);
    assert!(harness.send(body(&"z".repeat(65_535), false)).unwrap().is_empty());
    assert!(harness.send(body("z", false)).unwrap().is_empty());
    assert_eq!(budget.used(Kind::Bodies), 65_536);
    harness.decide(&question);
    assert_eq!(budget.used(Kind::Bodies), 65_536, "until it is on its way");
    let replies: Vec<Reply> = std::iter::from_fn(|| harness.exchange.next_reply()).collect();
    assert_eq!(kinds(&replies), ["headers", "body62000", "body3536"]);
    harness.exchange.settle();
    assert_eq!(budget.used(Kind::Bodies), 0);
    // A part of a message counts until its rest is there.
    assert!(matches!(harness.exchange.on_part(5000, Instant::now()), Step::Continue));
    assert_eq!(budget.used(Kind::Bodies), 5000);
    assert_eq!(kinds(&harness.send(body(&"z".repeat(6000), true)).unwrap()), ["body6000!"]);
    assert_eq!(budget.used(Kind::Bodies), 5000, "until it is written");
    harness.exchange.settle();
    assert_eq!(budget.used(Kind::Bodies), 0);
}

#[test]
fn a_waiting_body_over_the_limit_is_refused() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    let mut harness = Harness::within(1, &budget);
    harness.exchange.on_message(message(headers(&OTHER, false)), Instant::now()).unwrap();
    assert!(harness.send(body(&"z".repeat(LIMIT), false)).unwrap().is_empty());
    assert_eq!(kinds(&harness.send(body("z", false)).unwrap()), ["immediate429"]);
    assert_eq!(budget.used(Kind::Bodies), 0);
}

#[test]
fn a_small_body_may_end_while_its_request_waits() {
    for by_trailers in [false, true] {
        let mut harness = Harness::new(1);
        let step = harness.exchange.on_message(message(headers(&OTHER, false)), Instant::now()).unwrap();
        let Step::Decide(question) = step else { panic!("it needs no body") };
        assert!(harness.send(body("abc", !by_trailers)).unwrap().is_empty());
        // Twice, as gateways of some versions do, or its trailers.
        let event = if by_trailers { Event::RequestTrailers } else { body("abc", true) };
        assert!(harness.send(event).unwrap().is_empty());
        harness.decide(&question);
        let replies: Vec<Reply> = std::iter::from_fn(|| harness.exchange.next_reply()).collect();
        let end = if by_trailers { vec!["headers", "body3", "trailers"] } else { vec!["headers", "body3!"] };
        assert_eq!(kinds(&replies), end);
        assert_eq!(whole(&harness, "llm_d_epp_request_size_bytes_sum"), Some(3.0));
    }
}

#[test]
fn a_local_reply_drops_the_kept_body() {
    let budget = Arc::new(Budget::new(1 << 20, 0));
    let mut harness = Harness::within(1, &budget);
    harness.exchange.on_message(message(headers(&OTHER, false)), Instant::now()).unwrap();
    harness.send(body("abc", false)).unwrap();
    assert_eq!(kinds(&harness.send(response_headers()).unwrap()), ["response-headers"]);
    assert_eq!(budget.used(Kind::Bodies), 0);
    assert!(harness.send(body("def", true)).unwrap().is_empty());
}

#[test]
fn unclaimed_path_is_refused_on_the_headers() {
    let mut harness = Harness::with_parsers(1, &[ParserKind::OpenAi]);
    let replies = harness.send(headers(&OTHER, false)).unwrap();
    let [Reply::Immediate(rejection)] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(
        rejection.body(),
        "inference error: BadRequest - no parser claims the path /other; list one for it under requestHandler.parsers"
    );
}

/// The same is said as at the end of the body, and its memory given back.
#[test]
fn an_invalid_body_is_refused_at_its_first_wrong_byte() {
    let grpc = "/vllm.grpc.engine.VllmEngine/Generate";
    let json = "inference error: BadRequest - the request body is not valid JSON: ";
    let wrong = "inference error: BadRequest - invalid or unsupported gRPC payload: ";
    let table: [(&str, &[u8], String); 4] = [
        (POST[0].1, b"no healthy upstream", format!("{json}unexpected 'o' at byte 1")),
        (POST[0].1, b"<", format!("{json}unexpected '<' at byte 0")),
        (
            POST[0].1,
            b"{\"prompt\":\"a\nb",
            format!("{json}control character 0x0a inside a string at byte 12; escape it"),
        ),
        (grpc, b"\x01\0\0\x10\0", format!("{wrong}the message is compressed; send it as it is")),
    ];
    for (path, text, want) in table {
        for ends in [false, true] {
            let budget = Arc::new(Budget::new(1 << 20, 0));
            let mut harness = Harness::within(1, &budget);
            harness.send(headers(&[(":path", path)], false)).unwrap();
            let data = Bytes::copy_from_slice(text).into();
            let replies = harness.send(Event::RequestBody { data, end_of_stream: ends }).unwrap();
            let [Reply::Immediate(rejection)] = &replies[..] else { panic!("{ends}: {replies:?}") };
            assert_eq!((rejection.code.status(), rejection.body()), (400, want.clone()));
            assert_eq!(budget.used(Kind::Bodies), 0);
        }
    }
}
