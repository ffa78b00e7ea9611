//! Any messages of a gateway, in any order.

use super::*;
use proptest::prelude::*;
use usher_wire::reply::CHUNK_LIMIT;

pub(super) fn any_event() -> impl Strategy<Value = Event> {
    let path = prop_oneof![Just("/v1/completions"), Just("/v1/chat/completions"), Just("/other")];
    let text = prop_oneof![
        Just(PROMPT.to_owned()),
        Just(String::new()),
        Just("{\"usage\":".to_owned()),
        "[ -~]{0,20}",
        Just("z".repeat(70_000)),
    ];
    prop_oneof![
        (path, any::<bool>()).prop_map(|(path, end)| headers(&[(":path", path)], end)),
        (text.clone(), any::<bool>()).prop_map(|(text, end)| body(&text, end)),
        Just(Event::RequestTrailers),
        any::<[bool; 3]>().prop_map(|[event_stream, encoded, end_of_stream]| {
            let status = ResponseStatus::default();
            Event::ResponseHeaders { status, event_stream, encoded, end_of_stream }
        }),
        (text, any::<bool>()).prop_map(|(text, end)| response_body(&text, end)),
        Just(Event::ResponseTrailers),
    ]
}

fn any_modes() -> impl Strategy<Value = Option<Modes>> {
    let mode = || prop_oneof![4 => Just(Mode::FullDuplex), 1 => Just(Mode::None), 1 => Just(Mode::OneToOne)];
    prop::option::of((mode(), mode()).prop_map(|(request, response)| Modes { request, response }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any messages of a gateway cause no panic, and replies only in the order that it can take, each after
    /// the message that it responds to.
    #[test]
    fn replies_are_in_order_for_any_messages(
        modes in any_modes(),
        events in prop::collection::vec(any_event(), 0..10),
        endpoints in 0u8..3,
        late in prop::option::of(0usize..10),
    ) {
        let mut harness = Harness::new(endpoints);
        let mut replies = Vec::new();
        let mut waiting = None;
        let (mut response_seen, mut request_seen) = (false, false);
        for (index, event) in events.iter().enumerate() {
            request_seen |= matches!(event, Event::RequestHeaders { .. });
            response_seen |= matches!(event, Event::ResponseHeaders { .. });
            let first = if index == 0 { modes } else { None };
            let step = harness.exchange.on_message(Message { modes: first, ..message(event.clone()) }, Instant::now());
            match step {
                Ok(Step::Continue) => {}
                Ok(Step::Decide(question)) if late.is_some() => waiting = Some((index, question)),
                Ok(Step::Decide(question)) => {
                    if matches!(harness.decide(&question), Step::End) {
                        break;
                    }
                }
                Ok(Step::End) | Err(_) => break,
            }
            if let (Some(late), Some((since, question))) = (late, &waiting)
                && index >= since + late
            {
                if matches!(harness.decide(question), Step::End) {
                    break;
                }
                waiting = None;
            }
            replies.extend(std::iter::from_fn(|| harness.exchange.next_reply()));
            for reply in &replies {
                match reply {
                    Reply::RequestHeaders(_) | Reply::RequestBody { .. } | Reply::RequestTrailers => prop_assert!(request_seen),
                    Reply::ResponseHeaders(_) | Reply::ResponseBody { .. } | Reply::ResponseTrailers { .. } => prop_assert!(response_seen),
                    _ => {}
                }
            }
        }
        replies.extend(std::iter::from_fn(|| harness.exchange.next_reply()));
        check_order(&replies)?;
        let Harness { exchange, store, .. } = harness;
        drop(exchange);
        prop_assert!(store.snapshot().endpoints().iter().all(|e| e.load().in_flight() == 0));
    }
}

fn check_order(replies: &[Reply]) -> Result<(), TestCaseError> {
    let full_duplex = !replies.iter().any(|r| matches!(r, Reply::RequestBodyAsIs));
    let (mut headers, mut ended, mut trailers) = (0, false, 0);
    let (mut response_headers, mut response_ended) = (0, false);
    for (index, reply) in replies.iter().enumerate() {
        match reply {
            Reply::RequestHeaders(_) => {
                headers += 1;
                prop_assert_eq!(headers, 1);
            }
            Reply::RequestBody { data, end_of_stream } => {
                prop_assert!(headers == 1 && !ended && trailers == 0 && data.len() <= CHUNK_LIMIT);
                ended = *end_of_stream;
            }
            Reply::RequestTrailers => {
                trailers += 1;
                prop_assert!(headers == 1 && (!full_duplex || (trailers == 1 && !ended)));
            }
            Reply::RequestBodyAsIs => prop_assert_eq!(headers, 1),
            Reply::ResponseHeaders(_) => {
                response_headers += 1;
                prop_assert_eq!(response_headers, 1);
            }
            Reply::ResponseBody { data, end_of_stream, .. } => {
                prop_assert!(response_headers == 1 && !response_ended && data.len() <= CHUNK_LIMIT);
                response_ended = *end_of_stream;
            }
            Reply::ResponseBodyAsIs { .. } | Reply::ResponseTrailers { .. } => {
                prop_assert_eq!(response_headers, 1);
            }
            Reply::Immediate(_) => prop_assert_eq!(index + 1, replies.len(), "nothing may follow"),
        }
    }
    Ok(())
}
