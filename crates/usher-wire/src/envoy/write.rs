//! Writer of replies to a gateway: `ProcessingResponse`.
//!
//! A message begins with its length, and so does each message in it. So the innermost
//! is measured or written first; the rest is a few bytes around it.

use std::sync::LazyLock;

use super::names::{DESTINATION, DROPPED_REASON, ENCODINGS, LB_NAMESPACE, ROUTING_HEADERS, SCORES};
use crate::outbox::Outbox;
use crate::protobuf::{field_len, put_bytes, put_head, put_true};
use crate::reply::{Reply, Route};
use usher_core::request::{Attribute, Header, Pieces, Rejection};

/// Parts of a `ProcessingResponse`, by their number.
mod part {
    pub(super) const REQUEST_HEADERS: u8 = 1;
    pub(super) const RESPONSE_HEADERS: u8 = 2;
    pub(super) const REQUEST_BODY: u8 = 3;
    pub(super) const RESPONSE_BODY: u8 = 4;
    pub(super) const REQUEST_TRAILERS: u8 = 5;
    pub(super) const RESPONSE_TRAILERS: u8 = 6;
    pub(super) const IMMEDIATE_RESPONSE: u8 = 7;
    pub(super) const DYNAMIC_METADATA: u8 = 8;
}

/// `HeaderMutation.remove_headers` of every request: what a client may not set. That of those
/// whose response is read is the whole of it, of others the part before the length.
static REMOVED: LazyLock<(Vec<u8>, usize)> = LazyLock::new(|| {
    let mut fields = Vec::new();
    put_removed(&mut fields, &[], false);
    let length = fields.len();
    fields.clear();
    put_removed(&mut fields, &[], true);
    (fields, length)
});

/// The names to remove: all but those that are set.
fn put_removed(out: &mut Vec<u8>, set: &[Header], plain: bool) {
    let is_set = |name: &str| name == DESTINATION || set.iter().any(|header| &*header.name == name);
    let encodings: &[&str] = if plain { &ENCODINGS } else { &[] };
    for name in ROUTING_HEADERS.iter().chain(encodings).filter(|name| !is_set(name)) {
        put_bytes(out, 2, name.as_bytes());
    }
}

/// The reply to the headers of every response: `HeadersResponse` with one header to set.
static RESPONSE_HEADERS: LazyLock<Vec<u8>> = LazyLock::new(|| response_headers(&[]));

fn response_headers(set: &[Header]) -> Vec<u8> {
    let mut mutation = Vec::new();
    put_header(&mut mutation, "x-went-into-resp-headers", b"true");
    for header in set {
        put_header(&mut mutation, &header.name, &header.value);
    }
    let mut common = Vec::new();
    put_bytes(&mut common, 2, &mutation);
    let mut response = Vec::new();
    put_bytes(&mut response, 1, &common);
    response
}

/// A `BodyResponse` with an empty `CommonResponse`: go on with what you have.
const AS_IS: [u8; 2] = [1 << 3 | 2, 0];

/// Writes a reply.
pub fn write(reply: Reply, out: &mut Outbox) {
    match reply {
        Reply::RequestHeaders(route) => request_headers(&route, out),
        Reply::RequestBody { data, end_of_stream } => body(part::REQUEST_BODY, data, end_of_stream, &[], out),
        Reply::ResponseBody { data, end_of_stream, attributes } => {
            body(part::RESPONSE_BODY, data, end_of_stream, &attributes, out);
        }
        Reply::RequestBodyAsIs => small(part::REQUEST_BODY, &AS_IS, out),
        Reply::ResponseBodyAsIs { attributes } => {
            with_metadata(part::RESPONSE_BODY, &AS_IS, &attributes, out)
        }
        Reply::RequestTrailers => small(part::REQUEST_TRAILERS, &[], out),
        Reply::ResponseTrailers { attributes } => {
            with_metadata(part::RESPONSE_TRAILERS, &[], &attributes, out)
        }
        Reply::ResponseHeaders(set) if set.is_empty() => {
            small(part::RESPONSE_HEADERS, &RESPONSE_HEADERS, out)
        }
        Reply::ResponseHeaders(set) => small(part::RESPONSE_HEADERS, &response_headers(&set), out),
        Reply::Immediate(rejection) => small(part::IMMEDIATE_RESPONSE, &immediate(&rejection), out),
    }
}

/// A message with this part.
fn small(part: u8, content: &[u8], out: &mut Outbox) {
    with_metadata(part, content, &[], out);
}

/// A message with this part and dynamic metadata.
fn with_metadata(part: u8, content: &[u8], attributes: &[Attribute], out: &mut Outbox) {
    let metadata = attributes_metadata(attributes);
    let length = field_len(content.len()) + metadata.len();
    out.message(length, |out| put_bytes(out, part, content), [], &metadata);
}

/// A chunk of a body: `BodyResponse.response.body_mutation.streamed_response`.
fn body(part: u8, data: Pieces, end_of_stream: bool, attributes: &[Attribute], out: &mut Outbox) {
    let length = data.len();
    // As in every message, what is empty or false is left out.
    let flag: &[u8] = if end_of_stream { &[2 << 3, 1] } else { &[] };
    let streamed = if length > 0 { field_len(length) } else { 0 } + flag.len();
    let mutation = field_len(streamed);
    let common = field_len(mutation);
    let response = field_len(common);
    let head = |out: &mut Vec<u8>| {
        put_head(out, part, response);
        put_head(out, 1, common);
        put_head(out, 3, mutation);
        put_head(out, 3, streamed);
        if length > 0 {
            put_head(out, 1, length);
        }
    };
    if attributes.is_empty() {
        return out.message(field_len(response), head, data, flag);
    }
    let metadata = attributes_metadata(attributes);
    let tail = [flag, &metadata].concat();
    out.message(field_len(response) + metadata.len(), head, data, &tail);
}

/// The field `dynamic_metadata` with these numbers; nothing when there are none.
fn attributes_metadata(attributes: &[Attribute]) -> Vec<u8> {
    let mut namespaces: Vec<(&str, Vec<u8>)> = Vec::new();
    for Attribute { namespace, name, value } in attributes {
        let known = namespaces.iter().position(|(known, _)| *known == &**namespace);
        let at = known.unwrap_or_else(|| {
            namespaces.push((&**namespace, Vec::new()));
            namespaces.len() - 1
        });
        put_entry(&mut namespaces[at].1, name, &number_value(*value));
    }
    let mut metadata = Vec::new();
    for (namespace, fields) in &namespaces {
        put_entry(&mut metadata, namespace, &struct_value(fields));
    }
    let mut field = Vec::new();
    if !metadata.is_empty() {
        put_bytes(&mut field, part::DYNAMIC_METADATA, &metadata);
    }
    field
}

/// A `Value` that holds a number: field 2, 64 bits.
fn number_value(value: f64) -> [u8; 9] {
    let mut number = [0; 9];
    number[0] = 2 << 3 | 1;
    number[1..].copy_from_slice(&value.to_le_bytes());
    number
}

/// `HeadersResponse.response` with the destination, and the same as metadata.
fn request_headers(route: &Route, out: &mut Outbox) {
    let mut mutation = Vec::with_capacity(512);
    put_header(&mut mutation, DESTINATION, &route.destination);
    if let Some(id) = &route.request_id {
        put_header(&mut mutation, "x-request-id", id.as_bytes());
    }
    if let Some(length) = route.content_length {
        put_header(&mut mutation, "content-length", length.to_string().as_bytes());
    }
    if route.headers.is_empty() {
        let (all, length) = &*REMOVED;
        mutation.extend_from_slice(if route.plain { all } else { &all[..*length] });
    } else {
        for header in &route.headers {
            put_header(&mut mutation, &header.name, &header.value);
        }
        put_removed(&mut mutation, &route.headers, route.plain);
    }
    let metadata = route_metadata(route);
    // And `clear_route_cache`.
    let common = field_len(mutation.len()) + 2;
    let response = field_len(common);
    let head = |out: &mut Vec<u8>| {
        put_head(out, part::REQUEST_HEADERS, response);
        put_head(out, 1, common);
        put_bytes(out, 2, &mutation);
        put_true(out, 5);
        put_bytes(out, part::DYNAMIC_METADATA, &metadata);
    };
    out.message(field_len(response) + field_len(metadata.len()), head, [], &[]);
}

/// A `HeaderValueOption` of `HeaderMutation.set_headers`.
fn put_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    let header = field_len(name.len()) + field_len(value.len());
    put_head(out, 1, field_len(header));
    put_head(out, 1, header);
    put_bytes(out, 1, name.as_bytes());
    // `raw_value`: gateways refuse `value`.
    put_bytes(out, 3, value);
}

/// `{"envoy.lb": {<destination>: "…", <scores>: {…}}}` as an encoded `Struct`.
fn route_metadata(route: &Route) -> Vec<u8> {
    let mut fields = Vec::with_capacity(route.destination.len() + 64);
    let mut text = Vec::with_capacity(route.destination.len() + 4);
    put_bytes(&mut text, 3, &route.destination);
    put_entry(&mut fields, DESTINATION, &text);
    if let Some(scores) = &route.scores {
        let mut numbers = Vec::with_capacity(scores.len() * 48);
        for (endpoint, score) in scores {
            put_entry(&mut numbers, endpoint, &number_value(*score));
        }
        put_entry(&mut fields, SCORES, &struct_value(&numbers));
    }
    let mut metadata = Vec::with_capacity(fields.len() + 32);
    put_entry(&mut metadata, LB_NAMESPACE, &struct_value(&fields));
    metadata
}

/// An entry of a `Struct`'s map; `value` is an encoded `Value`.
fn put_entry(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    put_head(out, 1, field_len(key.len()) + field_len(value.len()));
    put_bytes(out, 1, key.as_bytes());
    put_bytes(out, 2, value);
}

/// A `Value` that holds a `Struct` with these encoded entries.
fn struct_value(fields: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(fields.len() + 4);
    put_bytes(&mut value, 5, fields);
    value
}

/// `ImmediateResponse`
fn immediate(rejection: &Rejection) -> Vec<u8> {
    let mut response = Vec::new();
    // HttpStatus.code = 1, which every status has in two bytes.
    let code = rejection.code.status();
    put_bytes(&mut response, 1, &[1 << 3, (code & 0x7f) as u8 | 0x80, (code >> 7) as u8]);
    let mut mutation = Vec::new();
    if let Some(reason) = rejection.reason {
        put_header(&mut mutation, DROPPED_REASON, reason.as_bytes());
    }
    if let Some(seconds) = rejection.retry_after {
        put_header(&mut mutation, "retry-after", seconds.to_string().as_bytes());
    }
    if !mutation.is_empty() {
        put_bytes(&mut response, 2, &mutation);
    }
    put_bytes(&mut response, 3, rejection.body().as_bytes());
    response
}

#[cfg(test)]
#[path = "write_properties.rs"]
mod properties;
