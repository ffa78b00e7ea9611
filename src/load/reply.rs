//! Replies of an ext_proc server: gRPC frames out of HTTP/2 frames, and the few fields
//! that count, found by walking.

use bytes::{Buf, Bytes, BytesMut};

use crate::extproc::wire::{Field, Fields, Malformed, Value, pick};

const DESTINATION: &[u8] = b"x-gateway-destination-endpoint";

/// Length of what stands before a message: compression, and the message's length.
const HEAD: usize = 5;

/// What a server replied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// To the request's headers.
    RequestHeaders {
        /// The endpoints that were picked, in order; empty when none is named.
        destination: Bytes,
        /// The length that the body will have, when the server sets it.
        content_length: Option<usize>,
    },
    /// A part of the request's body.
    RequestBody(Part),
    /// To the response's headers.
    ResponseHeaders,
    /// A part of the response's body.
    ResponseBody(Part),
    /// An answer in place of the model server's.
    Immediate {
        /// HTTP status.
        status: u64,
        /// Its body.
        body: Bytes,
    },
    /// Anything else, which changes nothing.
    Other,
}

/// How much of a body a reply carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) bytes: usize,
    pub(super) end: bool,
}

/// Cuts the bytes of a stream into messages.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// What has come and was not given yet, as it came.
    whole: Bytes,
    /// The start of a message whose end was not there yet.
    partial: BytesMut,
}

impl Frames {
    /// Takes what came. All messages of what came before must have been taken out.
    pub(super) fn push(&mut self, data: Bytes) {
        if self.partial.is_empty() {
            self.whole = data;
        } else {
            self.partial.extend_from_slice(&data);
            if message_end(&self.partial).is_some_and(|end| end <= self.partial.len()) {
                self.whole = self.partial.split().freeze();
            }
        }
    }

    /// The next message that is whole.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        if let Some(end) = message_end(&self.whole).filter(|end| *end <= self.whole.len()) {
            let mut message = self.whole.split_to(end);
            message.advance(HEAD);
            return Some(message);
        }
        if !self.whole.is_empty() {
            self.partial.extend_from_slice(&std::mem::take(&mut self.whole));
        }
        None
    }
}

fn message_end(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(1..HEAD)?.try_into().map(u32::from_be_bytes).ok()?;
    Some(HEAD + length as usize)
}

/// Reads a `ProcessingResponse`.
pub(super) fn read(message: &Bytes) -> Result<Reply, Malformed> {
    for field in Fields::of(message) {
        let Field { number, value: Value::Bytes(content) } = field? else { continue };
        return Ok(match number {
            1 => request_headers(message, content)?,
            2 => Reply::ResponseHeaders,
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
    Ok(Reply::RequestHeaders { destination, content_length })
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
    let [status, body] = pick(content, [1, 3])?;
    let mut code = 0;
    for field in Fields::of(status) {
        if let Field { number: 1, value: Value::Varint(value) } = field? {
            code = value;
        }
    }
    Ok(Reply::Immediate { status: code, body: message.slice_ref(body) })
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
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    proptest! {
        #[test]
        fn messages_are_whole_however_they_are_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            cuts in prop::collection::vec(1usize..30, 1..60),
        ) {
            let mut bytes = Vec::new();
            for message in &messages {
                bytes.push(0);
                bytes.extend((message.len() as u32).to_be_bytes());
                bytes.extend(message);
            }
            let (mut rest, mut frames, mut found) = (&bytes[..], Frames::default(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                rest = later;
                frames.push(Bytes::copy_from_slice(now));
                found.extend(std::iter::from_fn(|| frames.next()));
            }
            prop_assert_eq!(found, messages);
        }
    }

    fn reply(response: Response) -> Reply {
        let message = ProcessingResponse {
            response: Some(response),
            dynamic_metadata: Some(Struct::default()),
            ..ProcessingResponse::default()
        };
        read(&message.encode_to_vec().into()).unwrap()
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
            let want = Reply::RequestHeaders { destination: "a:1,b:2".into(), content_length: Some(12) };
            assert_eq!(found, want);
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
    fn the_other_replies_are_told_apart() {
        let immediate = ImmediateResponse {
            status: Some(HttpStatus { code: 503 }),
            body: b"none".to_vec(),
            ..ImmediateResponse::default()
        };
        let table = [
            (Response::ImmediateResponse(immediate), Reply::Immediate { status: 503, body: "none".into() }),
            (Response::ResponseHeaders(HeadersResponse::default()), Reply::ResponseHeaders),
            (Response::RequestTrailers(TrailersResponse::default()), Reply::Other),
        ];
        for (response, want) in table {
            assert_eq!(reply(response), want);
        }
        assert_eq!(read(&Bytes::new()).unwrap(), Reply::Other);
        assert_eq!(read(&Bytes::from_static(b"\x0a\xff")), Err(Malformed));
    }
}
