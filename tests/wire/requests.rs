//! The request's direction.

use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Kind;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest, ProtocolConfiguration};
use tonic::Code;

use crate::support::*;

const ONE: [(&str, &str, u16); 1] = [("a", "127.0.0.1", 1)];
const POST: [(&str, &str); 3] = [(":method", "POST"), (":path", "/v1/completions"), ("x-request-id", "r-1")];

#[tokio::test]
async fn header_values_are_read_from_either_field() {
    let picker = Picker::start(&ONE, &[]).await;
    for encoding in [Encoding::Raw, Encoding::Value, Encoding::Both] {
        let mut stream = picker.stream().await;
        let pairs =
            [(":path", "/v1/completions"), ("X-LLM-D-Model-Name-Rewrite", "t"), ("x-request-id", "mine")];
        let map = header_map(&pairs, encoding);
        stream.send(message(Kind::RequestHeaders(HttpHeaders { headers: map, ..HttpHeaders::default() })));
        stream.send(body(PROMPT, true));
        let mutation = stream.request_headers().await;
        assert_eq!(mutation.destination(), "127.0.0.1:1", "{encoding:?}");
        assert_eq!(mutation.get("x-request-id"), None, "the client's id stays");
        let (text, end) = stream.request_body().await;
        assert_eq!((text.as_slice(), end), (br#"{"model":"t","prompt":"hi"}"#.as_slice(), true));
    }
}

#[tokio::test]
async fn destination_is_sent_and_forged_headers_are_removed() {
    let picker = Picker::start(&ONE, &[]).await;
    let mut stream = picker.stream().await;
    let forged = [
        (":path", "/v1/completions"),
        ("x-gateway-destination-endpoint", "6.6.6.6:6"),
        ("x-prefiller-host-port", "6.6.6.6:6"),
    ];
    stream.send(headers(&forged, false));
    stream.send(body(PROMPT, true));
    let mutation = stream.request_headers().await;
    assert_eq!(mutation.destination(), "127.0.0.1:1");
    assert_eq!(mutation.lb("x-gateway-destination-endpoint"), Some(&string("127.0.0.1:1")));
    assert_eq!(mutation.lb("x-gateway-destination-endpoint-scores"), None);
    let mut removed = mutation.removed.clone();
    removed.sort();
    let want = [
        "x-data-parallel-host-port",
        "x-encoder-hosts-ports",
        "x-gateway-destination-endpoint-served",
        "x-kv-cache-source-host-port",
        "x-llm-d-request-dropped-reason",
        "x-prefiller-host-port",
    ];
    assert_eq!(removed, want);
    assert_eq!(mutation.get("x-request-id").map(str::len), Some(36), "a missing id is made");
    assert_eq!(mutation.get("content-length"), None, "the length did not change");
}

#[tokio::test]
async fn scores_are_sent_when_asked_for() {
    let endpoints = [("a", "127.0.0.1", 1), ("b", "127.0.0.2", 1)];
    let picker = Picker::start(&endpoints, &["--emit-endpoint-scores"]).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&POST, false));
    stream.send(body(PROMPT, true));
    let mutation = stream.request_headers().await;
    let scores = mutation.lb("x-gateway-destination-endpoint-scores").unwrap();
    let Some(envoy_types::pb::google::protobuf::value::Kind::StructValue(scores)) = &scores.kind else {
        panic!()
    };
    let mut names: Vec<_> = scores.fields.keys().collect();
    names.sort();
    assert_eq!(names, ["127.0.0.1:1", "127.0.0.2:1"]);
    // Nothing was scraped, so all are alike: queue 2 × 1 and KV cache 2 × 1.
    assert!(scores.fields.values().all(|score| *score == number(4.0)), "{scores:?}");
}

#[tokio::test]
async fn body_is_relayed_unchanged_in_bounded_chunks() {
    let picker = Picker::start(&ONE, &[]).await;
    let prompt = "x".repeat(299_000);
    let text = format!(r#"{{ "prompt" : "{prompt}", "model":"m" , "n":1e2}}"#);
    for size in [1_000, 32_768, 200_000, text.len()] {
        let mut stream = picker.stream().await;
        stream.send(headers(&POST, false));
        for chunk in text.as_bytes().chunks(size) {
            stream.send(body(chunk, false));
        }
        stream.send(body("", true));
        stream.request_headers().await;
        let mut got = Vec::new();
        loop {
            let (chunk, end) = stream.request_body().await;
            assert!(chunk.len() <= 62_000);
            got.extend(chunk);
            if end {
                break;
            }
        }
        assert!(got == text.as_bytes(), "chunks of {size}");
    }
}

#[tokio::test]
async fn trailers_end_a_body() {
    let picker = Picker::start(&ONE, &[]).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&POST, false));
    stream.send(body(PROMPT, false));
    stream.send(trailers());
    stream.request_headers().await;
    assert_eq!(stream.request_body().await, (PROMPT.as_bytes().to_vec(), false));
    assert!(matches!(stream.reply().await.response, Some(Reply::RequestTrailers(_))));
}

#[tokio::test]
async fn subset_hints_limit_the_candidates() {
    let endpoints = [("a", "127.0.0.1", 1), ("b", "127.0.0.1", 2), ("c", "127.0.0.2", 1), ("d", "::1", 1)];
    let picker = Picker::start(&endpoints, &[]).await;
    let table = [
        (list(vec![string("127.0.0.1:2")]), "127.0.0.1:2"),
        (string("127.0.0.1:2"), "127.0.0.1:2"),
        (list(vec![string("127.0.0.2")]), "127.0.0.2:1"),
        (list(vec![number(1.0), string("127.0.0.2:1")]), "127.0.0.2:1"),
        (list(vec![string("[::1]:1")]), "[::1]:1"),
    ];
    for (hint, want) in table {
        // On the headers, on the last body message, and on both.
        for (first, last) in [(true, false), (false, true), (true, true)] {
            let mut stream = picker.stream().await;
            let mark = |message: ProcessingRequest, marked: bool| {
                if marked { with_subset(message, hint.clone()) } else { message }
            };
            stream.send(mark(headers(&POST, false), first));
            stream.send(mark(body(PROMPT, true), last));
            assert_eq!(stream.request_headers().await.destination(), want, "{hint:?}");
        }
        let mut stream = picker.stream().await;
        stream.send(with_subset(headers(&[(":path", "/v1/models")], true), hint));
        assert_eq!(stream.request_headers().await.destination(), want, "without a body");
    }
    for nobody in [list(vec![]), list(vec![string("10.9.9.9:1")]), list(vec![number(1.0)])] {
        let mut stream = picker.stream().await;
        stream.send(with_subset(headers(&POST, false), nobody));
        stream.send(body(PROMPT, true));
        let refusal = stream.immediate().await;
        assert_eq!(refusal.status.unwrap().code, 503);
    }
    let mut stream = picker.stream().await;
    stream.send(with_subset(headers(&POST, false), number(5.0)));
    stream.send(body(PROMPT, true));
    stream.request_headers().await;
}

#[tokio::test]
async fn subset_hints_can_be_switched_off() {
    let picker = Picker::start(&ONE, &["--disable-endpoint-subset-filter"]).await;
    let mut stream = picker.stream().await;
    stream.send(with_subset(headers(&POST, false), list(vec![])));
    stream.send(body(PROMPT, true));
    assert_eq!(stream.request_headers().await.destination(), "127.0.0.1:1");
}

#[tokio::test]
async fn refusals_carry_status_reason_and_body() {
    let empty = Picker::start(&[], &["--max-request-body-bytes=1k"]).await;
    let long = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(1000));
    let no_endpoints = Some("rejected-no-endpoints");
    let table = [
        ("/v1/completions", PROMPT, 503, no_endpoints, "inference error: ServiceUnavailable - "),
        ("/v1/completions", "no json", 400, None, "inference error: BadRequest - "),
        ("/v1/completions", r#"{"prompt":"x"}"#, 400, None, "inference error: BadRequest - model not found"),
        (
            "/v1/chat/completions",
            r#"{"model":"m","messages":5}"#,
            400,
            None,
            "inference error: BadRequest - messages",
        ),
        ("/v1/completions", long.as_str(), 413, None, "inference error: PayloadTooLarge - "),
    ];
    for (path, text, status, reason, prefix) in table {
        let mut stream = empty.stream().await;
        stream.send(headers(&[(":path", path)], false));
        stream.send(body(text, true));
        let refusal = stream.immediate().await;
        assert_eq!(refusal.status.unwrap().code, status, "{text}");
        let got = String::from_utf8(refusal.body).unwrap();
        assert!(got.starts_with(prefix), "{got}");
        let header = refusal.headers.iter().flat_map(|mutation| &mutation.set_headers).find_map(|option| {
            let header = option.header.as_ref()?;
            (header.key == "x-llm-d-request-dropped-reason").then(|| header.raw_value.clone())
        });
        assert_eq!(header.as_deref(), reason.map(str::as_bytes));
        stream.end().await.unwrap();
    }
    let mut stream = empty.stream().await;
    stream.send(headers(&[(":path", "/v1/models")], true));
    assert_eq!(stream.immediate().await.status.unwrap().code, 503, "a GET has nowhere to go either");
}

#[tokio::test]
async fn invalid_messages_end_the_stream_with_a_status() {
    let picker = Picker::start(&ONE, &[]).await;
    let table = [
        (vec![body("x", true)], Code::FailedPrecondition),
        (vec![headers(&POST, false), headers(&POST, false)], Code::FailedPrecondition),
        (vec![trailers()], Code::FailedPrecondition),
        (vec![ProcessingRequest::default()], Code::InvalidArgument),
    ];
    for (messages, code) in table {
        let mut stream = picker.stream().await;
        for message in messages {
            stream.send(message);
        }
        assert_eq!(stream.end().await.unwrap_err().code(), code);
    }
    assert_eq!(picker.metric("usher_extproc_protocol_violations_total"), Some(3.0));
}

#[tokio::test]
async fn gateway_without_full_duplex_gets_one_reply_per_message() {
    let picker = Picker::start(&ONE, &[]).await;
    let mut stream = picker.stream().await;
    let mut first = headers(&POST, false);
    first.protocol_config = Some(ProtocolConfiguration {
        request_body_mode: 1,
        response_body_mode: 2,
        ..ProtocolConfiguration::default()
    });
    stream.send(first);
    assert_eq!(stream.request_headers().await.destination(), "127.0.0.1:1", "before any body");
    for end in [false, true] {
        stream.send(body(PROMPT, end));
        let Some(Reply::RequestBody(reply)) = stream.reply().await.response else { panic!() };
        assert_eq!(reply.response.unwrap().body_mutation, None);
    }
    let series = "usher_extproc_unsupported_body_mode_total{direction=\"request\",mode=\"one-to-one\"}";
    assert_eq!(picker.metric(series), Some(1.0));
}

#[tokio::test]
async fn disconnected_client_leaves_no_state() {
    let picker = Picker::start(&ONE, &["--enable-grpc-stream-metrics"]).await;
    for stage in 0..4 {
        let mut stream = picker.stream().await;
        stream.send(headers(&POST, false));
        if stage > 0 {
            stream.send(body(&PROMPT[..5], false));
        }
        if stage > 1 {
            stream.send(body(&PROMPT[5..], true));
            stream.request_headers().await;
            assert_eq!(picker.in_flight(), 1);
        }
        if stage > 2 {
            stream.send(response_headers(&[(":status", "200")], false));
            stream.send(response_body("{", false));
        }
        stream.disconnect();
        // The picker learns of it when the reset arrives; nothing else tells us.
        while picker.in_flight() != 0 || picker.metric("llm_d_epp_extproc_streams_inflight") != Some(0.0) {
            tokio::task::yield_now().await;
        }
    }
    let running = "inference_objective_running_requests{model_name=\"m\"}";
    assert_eq!(picker.metric(running), Some(0.0));
}

#[tokio::test]
async fn half_close_ends_the_stream_with_ok() {
    let picker = Picker::start(&ONE, &[]).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&POST, false));
    stream.send(body(PROMPT, true));
    stream.request_headers().await;
    stream.request_body().await;
    assert!(stream.half_close().message().await.unwrap().is_none());
}
