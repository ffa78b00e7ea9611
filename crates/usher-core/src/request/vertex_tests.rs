use super::super::protos::{HttpBody, PredictRequest, framed};
use super::super::testing::{Shown, parse, parts, refused};
use super::*;

const CHAT: &str =
    r#"{"model":"m","messages":[{"role":"user","content":"h\u0069"}],"max_tokens":5,"stream":true}"#;

#[test]
fn json_is_parsed_inside_the_grpc_frame() {
    for api in [Api::VertexChatCompletions, Api::VertexPredict] {
        let (parsed, body) = parse(api, framed(&PredictRequest::around(CHAT))).unwrap();
        let shown: Vec<_> = parsed.prompt.parts.iter().map(|part| Shown::of(part, &body)).collect();
        assert_eq!(shown, [(PartKind::Role, "user"), (PartKind::Text, "hi")]);
        assert_eq!(parsed.model.unwrap().bytes(&body).as_ref(), b"m");
        assert_eq!((parsed.stream, parsed.max_output_tokens), (true, Some(5)));
    }
}

#[test]
fn a_prediction_is_a_chat_or_a_response() {
    let response = r#"{"model":"m","input":"hi","instructions":"be kind","max_output_tokens":7}"#;
    let response = framed(&PredictRequest::around(response));
    let want = [(PartKind::Text, "be kind"), (PartKind::Text, "hi")];
    assert_eq!(parts(Api::VertexPredict, &response), want);
    assert_eq!(parse(Api::VertexPredict, &response).unwrap().0.max_output_tokens, Some(7));
    refused(Api::VertexChatCompletions, &response, "messages must be");
    for json in ["{}", r#"{"messages":[]}"#, r#"{"input":null}"#] {
        refused(Api::VertexPredict, framed(&PredictRequest::around(json)), "the body must have messages");
    }
}

#[test]
fn last_of_several_bodies_counts() {
    let body = |json: &str| PredictRequest::around(json);
    let message = [
        prost::Message::encode_to_vec(&body("{broken")),
        prost::Message::encode_to_vec(&body(r#"{"input":"last"}"#)),
    ]
    .concat();
    let framed = [&[0, 0, 0, 0][..], &[u8::try_from(message.len()).unwrap()], &message].concat();
    assert_eq!(parts(Api::VertexPredict, framed), [(PartKind::Text, "last")]);
}

#[test]
fn invalid_frame_or_json_is_refused() {
    let frame = |json: &str| framed(&PredictRequest::around(json));
    refused(Api::VertexPredict, [], "invalid or unsupported gRPC payload: the frame is cut off");
    refused(
        Api::VertexPredict,
        [1, 0, 0, 0, 0],
        "invalid or unsupported gRPC payload: the message is compressed",
    );
    refused(Api::VertexPredict, frame("[1]"), "the body must be a JSON object");
    let nothing = PredictRequest { http_body: None, ..PredictRequest::around("") };
    for body in [framed(&nothing), frame(""), frame("{"), frame("{}x")] {
        refused(Api::VertexPredict, body, "the request body is not valid JSON: ");
    }
    // What is said of a place counts from the body's first byte.
    let error = parse(
        Api::VertexPredict,
        framed(&PredictRequest { endpoint: String::new(), ..PredictRequest::around("{x") }),
    );
    assert_eq!(error.unwrap_err(), "the request body is not valid JSON: unexpected 'x' at byte 28");
}

#[test]
fn usage_is_found_in_the_data_of_frames() {
    let frame = |data: &str| {
        framed(&HttpBody { content_type: "text/event-stream".to_owned(), data: data.as_bytes().to_vec() })
    };
    let whole = [
        frame("data: {\"usage\":null}\n\ndata: {\"usa"),
        frame("ge\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n"),
    ];
    let whole = whole.concat();
    for size in 1..=whole.len() {
        let mut reading = UsageReading::default();
        whole.chunks(size).for_each(|chunk| reading.feed(chunk));
        let want = Usage { prompt_tokens: Some(7), completion_tokens: Some(2), cached_tokens: None };
        assert_eq!(reading.found(), Some(want), "in chunks of {size} bytes");
    }
    let mut reading = UsageReading::default();
    reading.feed(br#"{"usage":{"prompt_tokens":7}}"#);
    assert_eq!(reading.found(), None, "that is no frame");
}
