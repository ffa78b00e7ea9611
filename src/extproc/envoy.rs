//! Envoy's messages and ours: the only file that knows what a protobuf message is
//! made of. Incoming messages become [`Message`]s, [`Reply`]s become outgoing ones.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tonic::Status;

use crate::endpoints::SubsetHint;
use crate::flow::Rejection;
use crate::request::Headers;

use super::event::{Event, Message, Mode, Modes};
use super::reply::{Reply, Route};
use super::wire::{self, Fields, Malformed, Value};

/// Generated from `proto/external_processor.proto`.
#[allow(missing_docs, clippy::all, reason = "generated code")]
pub mod pb {
    tonic::include_proto!("envoy.service.ext_proc.v3");
}

use pb::processing_request::Request as Incoming;
use pb::processing_response::Response as Outgoing;

/// Where the picked endpoints are named, as a header and as metadata.
const DESTINATION: &str = "x-gateway-destination-endpoint";
const SCORES: &str = "x-gateway-destination-endpoint-scores";
const SERVED: &str = "x-gateway-destination-endpoint-served";
const LB_NAMESPACE: &str = "envoy.lb";
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET_KEY: &str = "x-gateway-destination-endpoint-subset";
const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";

/// Headers by which a client could steer a request past us. They are removed
/// from every request, also from one whose headers the gateway did not show us,
/// except for those that we set.
const ROUTING_HEADERS: [&str; 7] = [
    DESTINATION,
    SERVED,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    DROPPED_REASON,
];

/// Reads a message.
///
/// # Errors
/// A status when the message is malformed or has no content.
pub fn read(message: pb::ProcessingRequest) -> Result<Message, Status> {
    let malformed = |Malformed| Status::invalid_argument("malformed ProcessingRequest");
    let modes = message.protocol_config.map(|config| Modes {
        request: mode(config.request_body_mode),
        response: mode(config.response_body_mode),
    });
    let event = match message.request {
        Some(Incoming::RequestHeaders(part)) => Event::RequestHeaders {
            headers: headers(&part.headers).map_err(malformed)?,
            end_of_stream: part.end_of_stream,
        },
        Some(Incoming::RequestBody(part)) => {
            Event::RequestBody { data: part.body, end_of_stream: part.end_of_stream }
        }
        Some(Incoming::RequestTrailers(_)) => Event::RequestTrailers,
        Some(Incoming::ResponseHeaders(part)) => {
            let event_stream = is_event_stream(&part.headers).map_err(malformed)?;
            Event::ResponseHeaders { event_stream, end_of_stream: part.end_of_stream }
        }
        Some(Incoming::ResponseBody(part)) => {
            Event::ResponseBody { data: part.body, end_of_stream: part.end_of_stream }
        }
        Some(Incoming::ResponseTrailers(_)) => Event::ResponseTrailers,
        None => {
            return Err(Status::invalid_argument(
                "a ProcessingRequest has to carry headers, a body or trailers",
            ));
        }
    };
    let (mut subset, mut served) = (None, None);
    if !message.metadata_context.is_empty() {
        match event {
            Event::ResponseHeaders { .. } => {
                served = read_served(&message.metadata_context).map_err(malformed)?
            }
            Event::RequestHeaders { .. } | Event::RequestBody { .. } | Event::RequestTrailers => {
                subset = read_subset(&message.metadata_context).map_err(malformed)?;
            }
            Event::ResponseBody { .. } | Event::ResponseTrailers => {}
        }
    }
    Ok(Message { event, modes, subset, served })
}

fn mode(value: i32) -> Mode {
    match pb::BodySendMode::try_from(value) {
        Ok(pb::BodySendMode::FullDuplexStreamed) => Mode::FullDuplex,
        Ok(pb::BodySendMode::None) => Mode::None,
        _ => Mode::OneToOne,
    }
}

/// Calls `each` with the name and the value of every header of a `HeaderMap`.
fn walk_headers(map: &Bytes, mut each: impl FnMut(Bytes, Bytes)) -> Result<(), Malformed> {
    for field in Fields::of(map) {
        let field = field?;
        if let (1, Value::Bytes(header)) = (field.number, field.value) {
            // Envoy fills raw_value, other clients value.
            let [key, value, raw_value] = wire::pick(&header, [1, 2, 3])?;
            each(key, if raw_value.is_empty() { value } else { raw_value });
        }
    }
    Ok(())
}

fn headers(map: &Bytes) -> Result<Headers, Malformed> {
    let mut headers = Headers::default();
    walk_headers(map, |key, value| headers.push(key, value))?;
    Ok(headers)
}

fn is_event_stream(map: &Bytes) -> Result<bool, Malformed> {
    let mut found = false;
    walk_headers(map, |key, value| {
        if key.eq_ignore_ascii_case(b"content-type") {
            let wanted = b"text/event-stream";
            found = value.windows(wanted.len()).any(|part| part.eq_ignore_ascii_case(wanted));
        }
    })?;
    Ok(found)
}

/// The value at `filter_metadata[namespace][key]`: an encoded `Value`.
fn metadata_value(context: &Bytes, namespace: &str, key: &str) -> Result<Option<Bytes>, Malformed> {
    // Metadata.filter_metadata = 1, Struct.fields = 1; a map entry has key 1 and value 2.
    let entry = |message: &Bytes, wanted: &str| -> Result<Option<Bytes>, Malformed> {
        let mut found = None;
        for field in Fields::of(message) {
            let field = field?;
            if let (1, Value::Bytes(entry)) = (field.number, field.value) {
                let [name, value] = wire::pick(&entry, [1, 2])?;
                if name == wanted.as_bytes() {
                    found = Some(value);
                }
            }
        }
        Ok(found)
    };
    match entry(context, namespace)? {
        Some(fields) => entry(&fields, key),
        None => Ok(None),
    }
}

/// The text of a `Value.string_value`.
fn string_value(value: &Bytes) -> Result<Option<Bytes>, Malformed> {
    for field in Fields::of(value) {
        let field = field?;
        if let (3, Value::Bytes(text)) = (field.number, field.value) {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// The subset hint: a string or a list of strings; anything else is no hint.
fn read_subset(context: &Bytes) -> Result<Option<SubsetHint>, Malformed> {
    let Some(value) = metadata_value(context, SUBSET_NAMESPACE, SUBSET_KEY)? else { return Ok(None) };
    let mut entries = Vec::new();
    let mut is_hint = false;
    for field in Fields::of(&value) {
        match field? {
            wire::Field { number: 3, value: Value::Bytes(text) } => {
                is_hint = true;
                entries.push(text);
            }
            wire::Field { number: 6, value: Value::Bytes(list) } => {
                is_hint = true;
                for item in Fields::of(&list) {
                    if let wire::Field { number: 1, value: Value::Bytes(item) } = item? {
                        entries.extend(string_value(&item)?);
                    }
                }
            }
            _ => {}
        }
    }
    let texts = entries.iter().filter_map(|entry| std::str::from_utf8(entry).ok());
    Ok(is_hint.then(|| SubsetHint::from_entries(texts)))
}

/// Which endpoint served, as the gateway tells with the response headers.
fn read_served(context: &Bytes) -> Result<Option<SocketAddr>, Malformed> {
    let Some(value) = metadata_value(context, LB_NAMESPACE, SERVED)? else { return Ok(None) };
    let text = string_value(&value)?.unwrap_or_default();
    Ok(std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()))
}

/// Writes a reply.
pub fn write(reply: Reply) -> pb::ProcessingResponse {
    let mut metadata = None;
    let response = match reply {
        Reply::RequestHeaders(route) => {
            metadata = Some(route_metadata(&route));
            Outgoing::RequestHeaders(headers_response(route_headers(*route), true))
        }
        Reply::RequestBody { data, end_of_stream } => {
            Outgoing::RequestBody(body_response(Some((data, end_of_stream))))
        }
        Reply::RequestBodyAsIs => Outgoing::RequestBody(body_response(None)),
        Reply::RequestTrailers => Outgoing::RequestTrailers(pb::TrailersResponse {}),
        Reply::ResponseHeaders => {
            let set_headers = vec![set_header("x-went-into-resp-headers", Bytes::from_static(b"true"))];
            let mutation = pb::HeaderMutation { set_headers, remove_headers: Vec::new() };
            Outgoing::ResponseHeaders(headers_response(mutation, false))
        }
        Reply::ResponseBody { data, end_of_stream } => {
            Outgoing::ResponseBody(body_response(Some((data, end_of_stream))))
        }
        Reply::ResponseBodyAsIs => Outgoing::ResponseBody(body_response(None)),
        Reply::ResponseTrailers => Outgoing::ResponseTrailers(pb::TrailersResponse {}),
        Reply::Immediate(rejection) => Outgoing::ImmediateResponse(immediate(&rejection)),
    };
    pb::ProcessingResponse { response: Some(response), dynamic_metadata: metadata }
}

fn set_header(name: &'static str, value: Bytes) -> pb::HeaderValueOption {
    let header = pb::HeaderValue { key: Bytes::from_static(name.as_bytes()), raw_value: value };
    pb::HeaderValueOption { header: Some(header) }
}

fn headers_response(mutation: pb::HeaderMutation, clear_route_cache: bool) -> pb::HeadersResponse {
    let common =
        pb::CommonResponse { header_mutation: Some(mutation), body_mutation: None, clear_route_cache };
    pb::HeadersResponse { response: Some(common) }
}

fn body_response(chunk: Option<(Bytes, bool)>) -> pb::BodyResponse {
    let body_mutation = chunk.map(|(body, end_of_stream)| {
        let streamed = pb::StreamedBodyResponse { body, end_of_stream };
        pb::BodyMutation { mutation: Some(pb::body_mutation::Mutation::StreamedResponse(streamed)) }
    });
    let common = pb::CommonResponse { header_mutation: None, body_mutation, clear_route_cache: false };
    pb::BodyResponse { response: Some(common) }
}

fn route_headers(route: Route) -> pb::HeaderMutation {
    let mut set_headers = Vec::with_capacity(3);
    set_headers.push(set_header(DESTINATION, route.destination));
    if let Some(id) = route.request_id {
        set_headers.push(set_header("x-request-id", id.into()));
    }
    if let Some(length) = route.content_length {
        set_headers.push(set_header("content-length", length.to_string().into()));
    }
    let removed = ROUTING_HEADERS.iter().filter(|name| **name != DESTINATION);
    let remove_headers = removed.map(|name| Bytes::from_static(name.as_bytes())).collect();
    pb::HeaderMutation { set_headers, remove_headers }
}

/// `{"envoy.lb": {<destination>: "…", <scores>: {…}}}` as an encoded `Struct`.
fn route_metadata(route: &Route) -> Bytes {
    let mut fields = BytesMut::with_capacity(route.destination.len() + 64);
    let mut text = BytesMut::with_capacity(route.destination.len() + 4);
    wire::put_bytes(&mut text, 3, &route.destination);
    put_entry(&mut fields, DESTINATION, &text);
    if let Some(scores) = &route.scores {
        let mut numbers = BytesMut::with_capacity(scores.len() * 48);
        for (endpoint, score) in scores {
            // Value.number_value = 2, a fixed 64-bit field.
            let mut number = [0; 9];
            number[0] = 2 << 3 | 1;
            number[1..].copy_from_slice(&score.to_le_bytes());
            put_entry(&mut numbers, endpoint, &number);
        }
        put_entry(&mut fields, SCORES, &struct_value(&numbers));
    }
    let mut metadata = BytesMut::with_capacity(fields.len() + 32);
    put_entry(&mut metadata, LB_NAMESPACE, &struct_value(&fields));
    metadata.freeze()
}

/// An entry of a `Struct`'s map; `value` is an encoded `Value`.
fn put_entry(out: &mut BytesMut, key: &str, value: &[u8]) {
    wire::put_head(out, 1, wire::field_len(key.len()) + wire::field_len(value.len()));
    wire::put_bytes(out, 1, key.as_bytes());
    wire::put_bytes(out, 2, value);
}

/// A `Value` that holds a `Struct` with these encoded entries.
fn struct_value(fields: &[u8]) -> BytesMut {
    let mut value = BytesMut::with_capacity(fields.len() + 4);
    wire::put_bytes(&mut value, 5, fields);
    value
}

fn immediate(rejection: &Rejection) -> pb::ImmediateResponse {
    let mut set_headers = Vec::new();
    if let Some(reason) = rejection.reason {
        set_headers.push(set_header(DROPPED_REASON, Bytes::from_static(reason.as_bytes())));
    }
    if let Some(seconds) = rejection.retry_after {
        set_headers.push(set_header("retry-after", seconds.to_string().into()));
    }
    let headers =
        (!set_headers.is_empty()).then_some(pb::HeaderMutation { set_headers, remove_headers: Vec::new() });
    let status = pb::HttpStatus { code: rejection.code.status().into() };
    pb::ImmediateResponse { status: Some(status), headers, body: rejection.body().into() }
}
