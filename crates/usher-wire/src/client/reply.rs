//! Replies of an ext_proc server: the few fields that count, found by walking.

use bytes::Bytes;

use crate::inbox::Payload;
use crate::protobuf::{Field, Fields, Malformed, Value, pick};
use usher_core::request::Span;

const DESTINATION: &[u8] = b"x-gateway-destination-endpoint";

/// Reply of a server.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// To the request's headers.
    RequestHeaders {
        /// The endpoints that were picked, in order; empty when none is named.
        destination: Bytes,
        /// The length that the body will have, when the server sets it.
        content_length: Option<usize>,
        /// The headers that change, for [`headers`].
        mutation: Bytes,
    },
    /// A part of the request's body.
    RequestBody(Part),
    /// To the response's headers.
    ResponseHeaders {
        /// The headers that change, for [`headers`].
        mutation: Bytes,
    },
    /// A part of the response's body.
    ResponseBody(Part),
    /// A response in place of the model server's.
    Immediate {
        /// HTTP status.
        status: u64,
        /// Body of the response.
        body: Bytes,
        /// Headers, for [`headers`].
        mutation: Bytes,
    },
    /// Anything else, which changes nothing.
    Other,
}

impl Reply {
    /// The kind, for messages: `an immediate response`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RequestHeaders { .. } => "a reply to the request's headers",
            Self::RequestBody(_) => "a reply to the request's body",
            Self::ResponseHeaders { .. } => "a reply to the response's headers",
            Self::ResponseBody(_) => "a reply to the response's body",
            Self::Immediate { .. } => "an immediate response",
            Self::Other => "a reply",
        }
    }
}

/// Part of a body that a reply carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Number of bytes.
    pub bytes: usize,
    /// Nothing follows.
    pub end: bool,
}

/// Largest reply. Servers cut bodies into chunks of 64 KiB.
pub const MOST: usize = 64 << 20;

/// Reads a `ProcessingResponse`.
pub fn read(message: Payload) -> Result<Reply, Malformed> {
    match message {
        Payload::One(message) => read_whole(&message),
        Payload::Many(body) => {
            let all = Span { start: 0, end: body.len() };
            read_whole(&body.bytes(all).into_owned().into())
        }
    }
}

fn read_whole(message: &Bytes) -> Result<Reply, Malformed> {
    for field in Fields::of(message) {
        let Field { number, value: Value::Bytes(content) } = field? else { continue };
        return Ok(match number {
            1 => request_headers(message, content)?,
            2 => {
                let [common] = pick(content, [1])?;
                let [mutation] = pick(common, [2])?;
                Reply::ResponseHeaders { mutation: message.slice_ref(mutation) }
            }
            3 => Reply::RequestBody(part(content)?),
            4 => Reply::ResponseBody(part(content)?),
            7 => immediate(message, content)?,
            // Metadata and settings can stand before the reply itself.
            8..=10 => continue,
            _ => Reply::Other,
        });
    }
    Ok(Reply::Other)
}

fn request_headers(message: &Bytes, content: &[u8]) -> Result<Reply, Malformed> {
    let [common] = pick(content, [1])?;
    let [mutation] = pick(common, [2])?;
    let (mut destination, mut content_length) = (Bytes::new(), None);
    for field in Fields::of(mutation) {
        if let Field { number: 1, value: Value::Bytes(option) } = field? {
            let [header] = pick(option, [1])?;
            let [key, value, raw_value] = pick(header, [1, 2, 3])?;
            let value = if raw_value.is_empty() { value } else { raw_value };
            if key.eq_ignore_ascii_case(DESTINATION) {
                destination = message.slice_ref(value);
            } else if key.eq_ignore_ascii_case(b"content-length") {
                content_length = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            }
        }
    }
    Ok(Reply::RequestHeaders { destination, content_length, mutation: message.slice_ref(mutation) })
}

/// The headers that a reply sets, with names in lower case.
pub fn headers(mutation: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
    let mut headers = Vec::new();
    for field in Fields::of(mutation) {
        if let Field { number: 1, value: Value::Bytes(option) } = field? {
            let [header] = pick(option, [1])?;
            let [key, value, raw_value] = pick(header, [1, 2, 3])?;
            let value = if raw_value.is_empty() { value } else { raw_value };
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            headers.push((text(key).to_ascii_lowercase(), text(value)));
        }
    }
    Ok(headers)
}

/// A `BodyResponse`: a part of a body that is streamed, or one that replaces it.
fn part(content: &[u8]) -> Result<Part, Malformed> {
    let [common] = pick(content, [1])?;
    let [mutation] = pick(common, [3])?;
    let mut part = Part::default();
    for field in Fields::of(mutation) {
        match field? {
            Field { number: 1, value: Value::Bytes(body) } => part.bytes = body.len(),
            Field { number: 3, value: Value::Bytes(streamed) } => {
                for field in Fields::of(streamed) {
                    match field? {
                        Field { number: 1, value: Value::Bytes(body) } => part.bytes = body.len(),
                        Field { number: 2, value: Value::Varint(end) } => part.end = end != 0,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(part)
}

fn immediate(message: &Bytes, content: &[u8]) -> Result<Reply, Malformed> {
    let [status, mutation, body] = pick(content, [1, 2, 3])?;
    let mut code = 0;
    for field in Fields::of(status) {
        if let Field { number: 1, value: Value::Varint(value) } = field? {
            code = value;
        }
    }
    let [body, mutation] = [body, mutation].map(|part| message.slice_ref(part));
    Ok(Reply::Immediate { status: code, body, mutation })
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
    use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
    use envoy_types::pb::envoy::service::ext_proc::v3::{
        BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
        ProcessingResponse, StreamedBodyResponse, TrailersResponse, body_mutation::Mutation,
    };
    use envoy_types::pb::envoy::r#type::v3::HttpStatus;
    use envoy_types::pb::google::protobuf::Struct;
    use prost::Message;

    use super::*;

    fn reply(response: Response) -> Reply {
        let message = ProcessingResponse {
            response: Some(response),
            dynamic_metadata: Some(Struct::default()),
            ..ProcessingResponse::default()
        };
        read_whole(&message.encode_to_vec().into()).unwrap()
    }

    fn body(mutation: Mutation) -> BodyResponse {
        let mutation = BodyMutation { mutation: Some(mutation) };
        BodyResponse {
            response: Some(CommonResponse { body_mutation: Some(mutation), ..CommonResponse::default() }),
        }
    }

    #[test]
    fn headers_name_the_destination_in_either_field() {
        for raw in [true, false] {
            let option = |key: &str, text: &str| HeaderValueOption {
                header: Some(HeaderValue {
                    key: key.to_owned(),
                    value: if raw { String::new() } else { text.to_owned() },
                    raw_value: if raw { text.as_bytes().to_vec() } else { Vec::new() },
                }),
                ..HeaderValueOption::default()
            };
            let set_headers =
                vec![option("Content-Length", "12"), option("X-Gateway-Destination-Endpoint", "a:1,b:2")];
            let mutation = HeaderMutation { set_headers, ..HeaderMutation::default() };
            let response = CommonResponse { header_mutation: Some(mutation), ..CommonResponse::default() };
            let found = reply(Response::RequestHeaders(HeadersResponse { response: Some(response) }));
            let Reply::RequestHeaders { destination, content_length, mutation } = found else {
                panic!("{found:?}")
            };
            assert_eq!((&destination[..], content_length), (&b"a:1,b:2"[..], Some(12)));
            let set = [("content-length", "12"), ("x-gateway-destination-endpoint", "a:1,b:2")];
            assert_eq!(
                headers(&mutation).unwrap(),
                set.map(|(name, value)| (name.to_owned(), value.to_owned()))
            );
        }
    }

    #[test]
    fn bodies_are_counted() {
        let streamed = |text: &str, end_of_stream| {
            let body = text.as_bytes().to_vec();
            Mutation::StreamedResponse(StreamedBodyResponse { body, end_of_stream, ..Default::default() })
        };
        let table = [
            (streamed("abc", false), Part { bytes: 3, end: false }),
            (streamed("", true), Part { bytes: 0, end: true }),
            (Mutation::Body(b"ab".to_vec()), Part { bytes: 2, end: false }),
            (Mutation::ClearBody(true), Part::default()),
        ];
        for (mutation, part) in table {
            assert_eq!(reply(Response::RequestBody(body(mutation.clone()))), Reply::RequestBody(part));
            assert_eq!(reply(Response::ResponseBody(body(mutation))), Reply::ResponseBody(part));
        }
    }

    #[test]
    fn other_reply_kinds_are_distinguished() {
        let immediate = ImmediateResponse {
            status: Some(HttpStatus { code: 503 }),
            body: b"none".to_vec(),
            ..ImmediateResponse::default()
        };
        let table = [
            (
                Response::ImmediateResponse(immediate),
                Reply::Immediate { status: 503, body: "none".into(), mutation: Bytes::new() },
            ),
            (
                Response::ResponseHeaders(HeadersResponse::default()),
                Reply::ResponseHeaders { mutation: Bytes::new() },
            ),
            (Response::RequestTrailers(TrailersResponse::default()), Reply::Other),
        ];
        for (response, want) in table {
            assert_eq!(reply(response), want);
        }
        assert_eq!(read_whole(&Bytes::new()).unwrap(), Reply::Other);
        assert_eq!(read_whole(&Bytes::from_static(b"\x0a\xff")), Err(Malformed));
    }
}
