//! The protobuf messages of a gateway, and those that it gets.

use bytes::{Buf, Bytes};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, Metadata};
use envoy_types::pb::envoy::service::ext_proc::v3 as theirs;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use prost::Message as _;
use theirs::body_mutation::Mutation;
use theirs::processing_request::Request as Incoming;
use theirs::processing_response::Response as Outgoing;
use usher::endpoints::SubsetHint;
use usher::request::{Body, Headers, Pieces};
use usher::schedule::Served;
use usher_wire::envoy;
use usher_wire::event::{Event, Message, Mode, Modes};
use usher_wire::inbox::Payload;
use usher_wire::outbox::Outbox;
use usher_wire::reply::Reply;

const SUBSET: (&str, &str) = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
const SERVED: (&str, &str) = ("envoy.lb", "x-gateway-destination-endpoint-served");
const DESTINATION: &str = "x-gateway-destination-endpoint";

/// An encoded `ProcessingRequest`, or any bytes.
///
/// - Nothing panics.
/// - A message says the same wherever the frames that it comes in are cut.
/// - What `envoy-types` decodes we read, and what it holds is what we read of it,
///   written again as an encoder writes it: no field of a message twice.
pub fn wire(bytes: &[u8]) {
    // A field that nobody knows, long enough that no piece is joined with another.
    let unknown = [&[15 << 3 | 2, 0x80, 0x10][..], &[0; 2048]].concat();
    let padded = [bytes, &unknown].concat();
    let whole = shown(envoy::read(Payload::One(padded.clone().into())));
    for cut in [1, 9, bytes.len() / 3, bytes.len() / 2, bytes.len()] {
        let (first, rest) = padded.split_at(cut.min(bytes.len()));
        let mut body = Body::default();
        body.push(Bytes::copy_from_slice(first));
        body.push(Bytes::copy_from_slice(rest));
        body.seal();
        assert_eq!(shown(envoy::read(Payload::Many(body))), whole, "cut after {cut} bytes");
    }
    let Ok(message) = theirs::ProcessingRequest::decode(bytes) else { return };
    let read = envoy::read(Payload::One(message.encode_to_vec().into()));
    match (&message.request, read) {
        (None, read) => assert!(read.is_err()),
        (Some(request), Ok(read)) => check(&message, request, &read),
        (Some(_), Err(status)) => panic!("refused with {status:?}: {message:?}"),
    }
}

/// A message as text, in which it doesn't matter where a body is cut.
fn shown<E: std::fmt::Debug>(read: Result<Message, E>) -> String {
    let mut message = match read {
        Ok(message) => message,
        Err(error) => return format!("{error:?}"),
    };
    if let Event::RequestBody { data, .. } | Event::ResponseBody { data, .. } = &mut message.event {
        *data = Bytes::from(bytes_of(data)).into();
    }
    format!("{message:?}")
}

/// The bytes of a body, in one piece.
fn bytes_of(data: &Pieces) -> Vec<u8> {
    data.iter().flatten().copied().collect()
}

fn check(message: &theirs::ProcessingRequest, request: &Incoming, read: &Message) {
    let modes = message.protocol_config.as_ref().map(|config| Modes {
        request: mode(config.request_body_mode),
        response: mode(config.response_body_mode),
    });
    assert_eq!(read.modes, modes);
    let metadata = message.metadata_context.as_ref();
    let mut subset = metadata.and_then(|metadata| value(metadata, SUBSET)).and_then(hint);
    let mut served = Served::Unknown;
    if metadata.is_some_and(|metadata| metadata.filter_metadata.contains_key(SERVED.0)) {
        let text =
            metadata.and_then(|metadata| value(metadata, SERVED)).and_then(|value| match &value.kind {
                Some(Kind::StringValue(text)) => Some(text.trim()),
                _ => None,
            });
        let text = text.filter(|text| !text.is_empty());
        served = text.map_or(Served::Missing, |text| Served::By(text.to_owned()));
    }
    match (&read.event, request) {
        (Event::RequestHeaders { headers, end_of_stream }, Incoming::RequestHeaders(part)) => {
            served = Served::Unknown;
            assert_eq!(*end_of_stream, part.end_of_stream);
            check_headers(headers, part.headers.as_ref());
        }
        (Event::RequestBody { data, end_of_stream }, Incoming::RequestBody(part)) => {
            served = Served::Unknown;
            assert_eq!((bytes_of(data), *end_of_stream), (part.body.clone(), part.end_of_stream));
        }
        (Event::RequestTrailers, Incoming::RequestTrailers(_)) => served = Served::Unknown,
        (
            Event::ResponseHeaders { status, event_stream, encoded, end_of_stream },
            Incoming::ResponseHeaders(part),
        ) => {
            subset = None;
            assert_eq!(*end_of_stream, part.end_of_stream);
            let last = |name: &str| {
                pairs(part.headers.as_ref())
                    .filter(|(other, _)| other.eq_ignore_ascii_case(name))
                    .last()
                    .map(|(_, value)| String::from_utf8_lossy(value).to_ascii_lowercase())
            };
            let kind = last("content-type");
            assert_eq!(*event_stream, kind.is_some_and(|value| value.contains("text/event-stream")));
            let is_encoding = |value: String| !matches!(value.trim_ascii(), "" | "identity");
            let by = ["content-encoding", "grpc-encoding"].map(|name| last(name).is_some_and(is_encoding));
            assert_eq!(*encoded, by.contains(&true));
            assert_eq!(status.http, last(":status").and_then(|value| value.trim().parse().ok()));
            assert_eq!(status.grpc, last("grpc-status").and_then(|value| value.trim().parse().ok()));
            assert_eq!(status.overloaded, last("x-envoy-overloaded").is_some());
        }
        (Event::ResponseBody { data, end_of_stream }, Incoming::ResponseBody(part)) => {
            (subset, served) = (None, Served::Unknown);
            assert_eq!((bytes_of(data), *end_of_stream), (part.body.clone(), part.end_of_stream));
        }
        (Event::ResponseTrailers, Incoming::ResponseTrailers(_)) => {
            (subset, served) = (None, Served::Unknown)
        }
        (event, request) => panic!("{request:?} was read as {event:?}"),
    }
    assert_eq!(read.subset, subset);
    assert_eq!(read.served, served);
}

fn mode(value: i32) -> Mode {
    // FULL_DUPLEX_STREAMED and NONE of the processing mode.
    match value {
        4 => Mode::FullDuplex,
        0 => Mode::None,
        _ => Mode::OneToOne,
    }
}

/// Names and values of headers; the value is in `raw_value`, or in `value`.
fn pairs(map: Option<&HeaderMap>) -> impl Iterator<Item = (&str, &[u8])> {
    map.into_iter().flat_map(|map| &map.headers).map(|header| {
        let raw = header.raw_value.as_slice();
        (header.key.as_str(), if raw.is_empty() { header.value.as_bytes() } else { raw })
    })
}

fn check_headers(headers: &Headers, map: Option<&HeaderMap>) {
    assert_eq!(headers.len(), pairs(map).count());
    for (name, _) in pairs(map) {
        let name = name.to_ascii_lowercase();
        let last = pairs(map).filter(|(other, _)| other.eq_ignore_ascii_case(&name)).last();
        assert_eq!(headers.get(&name), last.map(|(_, value)| value), "{name}");
    }
}

fn value<'a>(metadata: &'a Metadata, (namespace, key): (&str, &str)) -> Option<&'a Value> {
    metadata.filter_metadata.get(namespace)?.fields.get(key)
}

fn hint(value: &Value) -> Option<SubsetHint> {
    let text = |value: &Value| match &value.kind {
        Some(Kind::StringValue(text)) => Some(text.clone()),
        _ => None,
    };
    let texts: Vec<String> = match &value.kind {
        Some(Kind::ListValue(list)) => list.values.iter().filter_map(text).collect(),
        _ => vec![text(value)?],
    };
    Some(SubsetHint::from_entries(texts.iter().map(String::as_str)))
}

/// Checks that a reply arrives at a gateway as it was meant.
pub fn check_reply(reply: &Reply) {
    let mut out = Outbox::new(usize::MAX);
    envoy::write(reply.clone(), &mut out);
    let mut framed = out.take();
    assert_eq!((framed.get_u8(), framed.get_u32() as usize), (0, framed.remaining()), "the frame's head");
    let message = theirs::ProcessingResponse::decode(framed).expect("what we encode they decode");
    let response = message.response.expect("a reply has content");
    match (reply, response) {
        (Reply::RequestHeaders(route), Outgoing::RequestHeaders(headers)) => {
            let common = headers.response.expect("it changes headers");
            let mutation = common.header_mutation.expect("it changes headers");
            let set = |name: &str| {
                let option = mutation.set_headers.iter().filter_map(|option| option.header.as_ref());
                let found: Vec<_> = option.filter(|header| header.key == name).collect();
                assert!(found.len() < 2, "{name} is set twice");
                found.first().map(|header| header.raw_value.clone())
            };
            assert!(common.clear_route_cache);
            assert_eq!(set(DESTINATION).as_deref(), Some(route.destination.as_ref()));
            assert_eq!(set("x-request-id"), route.request_id.clone().map(String::into_bytes));
            let length = route.content_length.map(|length| length.to_string().into_bytes());
            assert_eq!(set("content-length"), length);
            assert!(!mutation.remove_headers.iter().any(|name| name == DESTINATION));
            let metadata = message.dynamic_metadata.expect("the destination is metadata, too");
            check_metadata(&metadata, &route.destination);
        }
        (Reply::RequestBody { data, end_of_stream }, Outgoing::RequestBody(body))
        | (Reply::ResponseBody { data, end_of_stream, .. }, Outgoing::ResponseBody(body)) => {
            match body.response.and_then(|common| common.body_mutation).and_then(|body| body.mutation) {
                Some(Mutation::StreamedResponse(streamed)) => {
                    assert_eq!((bytes_of(data), *end_of_stream), (streamed.body, streamed.end_of_stream));
                }
                other => panic!("not a streamed body: {other:?}"),
            }
        }
        (Reply::RequestBodyAsIs, Outgoing::RequestBody(body))
        | (Reply::ResponseBodyAsIs { .. }, Outgoing::ResponseBody(body)) => {
            assert!(body.response.is_none_or(|common| common.body_mutation.is_none()));
        }
        (Reply::Immediate(rejection), Outgoing::ImmediateResponse(immediate)) => {
            let status = immediate.status.expect("it has a status").code;
            assert_eq!(status, i32::from(rejection.code.status()));
            assert_eq!(immediate.body, rejection.body().into_bytes());
        }
        (Reply::RequestTrailers, Outgoing::RequestTrailers(_))
        | (Reply::ResponseHeaders(_), Outgoing::ResponseHeaders(_))
        | (Reply::ResponseTrailers { .. }, Outgoing::ResponseTrailers(_)) => {}
        (reply, response) => panic!("{reply:?} was sent as {response:?}"),
    }
}

fn check_metadata(metadata: &Struct, destination: &[u8]) {
    let lb = metadata.fields.get("envoy.lb").and_then(|value| value.kind.as_ref());
    let Some(Kind::StructValue(lb)) = lb else { panic!("no envoy.lb in {metadata:?}") };
    let named = lb.fields.get(DESTINATION).and_then(|value| value.kind.as_ref());
    assert_eq!(named, Some(&Kind::StringValue(String::from_utf8_lossy(destination).into_owned())));
}
