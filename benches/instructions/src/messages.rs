//! Messages of a gateway, encoded with Envoy's own definitions.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
};
use prost::Message;

/// Bytes of prose per token.
const BYTES_PER_TOKEN: usize = 4;
/// Bytes of a body that Envoy sends in one message.
const CHUNK: usize = 32 << 10;
/// One character in a hundred is escaped, as in prose with line breaks.
const PROSE: &str =
    r"the quick brown fox jumps over the lazy dog and then it does so again until the line is over.\n";

const REQUEST_HEADERS: [(&str, &str); 12] = [
    (":method", "POST"),
    (":path", "/v1/chat/completions"),
    (":authority", "models.example.com"),
    (":scheme", "https"),
    ("content-type", "application/json"),
    ("accept", "application/json"),
    ("accept-encoding", "gzip, deflate"),
    ("user-agent", "OpenAI/Python 1.99.0"),
    ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
    ("x-forwarded-for", "10.1.2.3"),
    ("x-forwarded-proto", "https"),
    ("x-request-id", "7e1b8d0c-6f3f-4f0e-9d0a-0d6f3a7e1b8d"),
];

const EVENT: &str = r#"data: {"id":"chatcmpl-7e1b8d0c6f3f4f0e9d0a0d6f3a7e1b8d","object":"chat.completion.chunk","created":1764000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}

"#;

/// The body of a chat request with this many tokens of prose, or few more; 1,000 at most
/// in each of its messages.
pub fn chat(tokens: usize, stream: bool) -> Vec<u8> {
    let mut messages = vec![r#"{"role":"system","content":"You are a helpful assistant."}"#.to_owned()];
    let mut rest = tokens * BYTES_PER_TOKEN;
    while rest > 0 {
        let lines = rest.min(1000 * BYTES_PER_TOKEN).div_ceil(PROSE.len());
        let role = if messages.len() % 2 == 1 { "user" } else { "assistant" };
        messages.push(format!(r#"{{"role":"{role}","content":"{}"}}"#, PROSE.repeat(lines)));
        rest = rest.saturating_sub(lines * PROSE.len());
    }
    let messages = messages.join(",");
    format!(r#"{{"model":"m","messages":[{messages}],"max_tokens":256,"temperature":0.7,"stream":{stream}}}"#)
        .into_bytes()
}

/// A request: its headers, and its body in chunks.
pub fn request(body: &[u8]) -> Vec<Bytes> {
    let chunks = body.chunks(CHUNK);
    let last = chunks.len() - 1;
    let chunks = chunks
        .enumerate()
        .map(|(index, chunk)| framed(Request::RequestBody(part(chunk, index == last)), false));
    let headers = framed(Request::RequestHeaders(headers(&REQUEST_HEADERS)), true);
    std::iter::once(headers).chain(chunks).collect()
}

/// A whole response: its headers and a body of one chunk.
pub fn response(body: &[u8]) -> Vec<Bytes> {
    let body = framed(Request::ResponseBody(part(body, true)), false);
    vec![response_headers("application/json"), body]
}

/// The headers of a response.
pub fn response_headers(content_type: &str) -> Bytes {
    let list = [
        (":status", "200"),
        ("content-type", content_type),
        ("server", "uvicorn"),
        ("date", "Mon, 24 Nov 2025 16:00:00 GMT"),
        ("x-request-id", "7e1b8d0c-6f3f-4f0e-9d0a-0d6f3a7e1b8d"),
    ];
    framed(Request::ResponseHeaders(headers(&list)), false)
}

/// A chunk of a streamed response: one event, not the last.
pub fn response_chunk() -> Bytes {
    framed(Request::ResponseBody(part(EVENT.as_bytes(), false)), false)
}

fn headers(list: &[(&str, &str)]) -> HttpHeaders {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    let headers = Some(HeaderMap { headers: list.iter().map(header).collect() });
    HttpHeaders { headers, ..HttpHeaders::default() }
}

fn part(data: &[u8], end_of_stream: bool) -> HttpBody {
    HttpBody { body: data.to_vec(), end_of_stream, ..HttpBody::default() }
}

/// A message in its gRPC frame. The first one of a stream says how bodies are sent.
fn framed(request: Request, first: bool) -> Bytes {
    let mode = BodySendMode::FullDuplexStreamed.into();
    let protocol_config = first.then(|| ProtocolConfiguration {
        request_body_mode: mode,
        response_body_mode: mode,
        ..ProtocolConfiguration::default()
    });
    let message =
        ProcessingRequest { request: Some(request), protocol_config, ..ProcessingRequest::default() };
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap());
    message.encode(&mut frame).unwrap();
    frame.freeze()
}

/// The replies in a stream of gRPC frames.
pub fn replies(mut frames: &[u8]) -> Vec<Response> {
    let mut replies = Vec::new();
    while frames.has_remaining() {
        frames.advance(1);
        let length = frames.get_u32() as usize;
        let (message, rest) = frames.split_at(length);
        replies.extend(ProcessingResponse::decode(message).unwrap().response);
        frames = rest;
    }
    replies
}
