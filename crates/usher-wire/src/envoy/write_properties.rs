//! Replies against what a decoder makes of them that isn't ours.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3 as theirs;
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use prop::collection::{btree_map, vec};
use prop::option;
use prop::sample::select;
use proptest::prelude::*;
use prost::Message as _;
use theirs::body_mutation::Mutation;
use theirs::processing_response::Response;
use theirs::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
    ProcessingResponse, StreamedBodyResponse, TrailersResponse,
};

use super::*;
use usher_core::request::Code;

/// A header that replaces those of its name.
fn header(name: &str, value: &[u8]) -> HeaderValueOption {
    let header = HeaderValue { key: name.to_owned(), raw_value: value.to_vec(), ..HeaderValue::default() };
    HeaderValueOption { header: Some(header), ..HeaderValueOption::default() }
}

fn structure(fields: impl IntoIterator<Item = (String, Kind)>) -> Struct {
    let fields = fields.into_iter().map(|(key, kind)| (key, Value { kind: Some(kind) }));
    Struct { fields: fields.collect() }
}

/// Message that a decoder should make of a reply.
fn meant(reply: &Reply) -> ProcessingResponse {
    let mut metadata = None;
    let headers = |common| HeadersResponse { response: Some(common) };
    let body = |data: &Pieces, end_of_stream: &bool| {
        let body = data.iter().flatten().copied().collect();
        let streamed =
            StreamedBodyResponse { body, end_of_stream: *end_of_stream, ..StreamedBodyResponse::default() };
        let mutation = BodyMutation { mutation: Some(Mutation::StreamedResponse(streamed)) };
        BodyResponse {
            response: Some(CommonResponse { body_mutation: Some(mutation), ..CommonResponse::default() }),
        }
    };
    let as_is = BodyResponse { response: Some(CommonResponse::default()) };
    let response = match reply {
        Reply::RequestHeaders(route) => {
            metadata = Some(metadata_of(route));
            Response::RequestHeaders(headers(CommonResponse {
                header_mutation: Some(mutation_of(route)),
                clear_route_cache: true,
                ..CommonResponse::default()
            }))
        }
        Reply::RequestBody { data, end_of_stream } => Response::RequestBody(body(data, end_of_stream)),
        Reply::ResponseBody { data, end_of_stream, attributes } => {
            metadata = numbers(attributes);
            Response::ResponseBody(body(data, end_of_stream))
        }
        Reply::RequestBodyAsIs => Response::RequestBody(as_is),
        Reply::ResponseBodyAsIs { attributes } => {
            metadata = numbers(attributes);
            Response::ResponseBody(as_is)
        }
        Reply::RequestTrailers => Response::RequestTrailers(TrailersResponse::default()),
        Reply::ResponseTrailers { attributes } => {
            metadata = numbers(attributes);
            Response::ResponseTrailers(TrailersResponse::default())
        }
        Reply::ResponseHeaders(set) => {
            let mut set_headers = vec![header("x-went-into-resp-headers", b"true")];
            set_headers.extend(set.iter().map(|set| header(&set.name, &set.value)));
            let mutation = HeaderMutation { set_headers, ..HeaderMutation::default() };
            Response::ResponseHeaders(headers(CommonResponse {
                header_mutation: Some(mutation),
                ..CommonResponse::default()
            }))
        }
        Reply::Immediate(rejection) => Response::ImmediateResponse(immediate_of(rejection)),
    };
    ProcessingResponse {
        response: Some(response),
        dynamic_metadata: metadata,
        ..ProcessingResponse::default()
    }
}

fn mutation_of(route: &Route) -> HeaderMutation {
    let mut set_headers = vec![header(DESTINATION, &route.destination)];
    set_headers.extend(route.request_id.as_ref().map(|id| header("x-request-id", id.as_bytes())));
    let length = route.content_length.map(|length| length.to_string());
    set_headers.extend(length.map(|length| header("content-length", length.as_bytes())));
    set_headers.extend(route.headers.iter().map(|set| header(&set.name, &set.value)));
    let is_set = |name: &str| route.headers.iter().any(|header| &*header.name == name);
    let encodings: &[&str] = if route.plain { &ENCODINGS } else { &[] };
    let removed = ROUTING_HEADERS.iter().filter(|name| **name != DESTINATION);
    let removed = removed.chain(encodings).filter(|name| !is_set(name));
    HeaderMutation { set_headers, remove_headers: removed.map(|name| (*name).to_owned()).collect() }
}

fn metadata_of(route: &Route) -> Struct {
    let destination = String::from_utf8(route.destination.to_vec()).unwrap();
    let mut lb = vec![(DESTINATION.to_owned(), Kind::StringValue(destination))];
    if let Some(scores) = &route.scores {
        let scores = scores.iter().map(|(endpoint, score)| (endpoint.to_string(), Kind::NumberValue(*score)));
        lb.push((SCORES.to_owned(), Kind::StructValue(structure(scores))));
    }
    structure([(LB_NAMESPACE.to_owned(), Kind::StructValue(structure(lb)))])
}

/// Numbers by namespace; of several with a name the last counts.
fn numbers(attributes: &[Attribute]) -> Option<Struct> {
    let mut namespaces: BTreeMap<String, BTreeMap<String, Kind>> = BTreeMap::new();
    for Attribute { namespace, name, value } in attributes {
        let numbers = namespaces.entry(namespace.to_string()).or_default();
        numbers.insert(name.to_string(), Kind::NumberValue(*value));
    }
    let namespaces =
        namespaces.into_iter().map(|(name, numbers)| (name, Kind::StructValue(structure(numbers))));
    (!attributes.is_empty()).then(|| structure(namespaces))
}

fn immediate_of(rejection: &Rejection) -> ImmediateResponse {
    let seconds = rejection.retry_after.map(|seconds| seconds.to_string());
    let reason = rejection.reason.map(|reason| header(DROPPED_REASON, reason.as_bytes()));
    let retry = seconds.map(|seconds| header("retry-after", seconds.as_bytes()));
    let set_headers: Vec<_> = reason.into_iter().chain(retry).collect();
    let headers = HeaderMutation { set_headers, ..HeaderMutation::default() };
    ImmediateResponse {
        status: Some(HttpStatus { code: rejection.code.status().into() }),
        headers: (!headers.set_headers.is_empty()).then_some(headers),
        body: rejection.body().into_bytes(),
        ..ImmediateResponse::default()
    }
}

fn route() -> impl Strategy<Value = Route> {
    let score = prop_oneof![Just(0.0), any::<f64>()];
    let scores = btree_map(".{0,30}", score, 0..20)
        .prop_map(|scores| scores.into_iter().map(|(name, score)| (Arc::from(name), score)).collect());
    let ids = (option::of(".{0,40}"), option::of(any::<usize>()));
    (".{0,300}", ids, option::of(scores), headers(), any::<bool>()).prop_map(
        |(destination, (request_id, content_length), scores, headers, plain)| Route {
            destination: destination.into(),
            request_id,
            content_length,
            scores,
            headers,
            plain,
        },
    )
}

/// Headers that plugins set, some of which would be removed otherwise.
fn headers() -> impl Strategy<Value = Vec<Header>> {
    let name = prop_oneof![select(&ROUTING_HEADERS[1..]).prop_map(str::to_owned), "[a-z-]{1,20}"];
    let header = (name, vec(any::<u8>(), 0..40))
        .prop_map(|(name, value)| Header { name: name.into(), value: value.into() });
    vec(header, 0..3)
}

fn attributes() -> impl Strategy<Value = Vec<Attribute>> {
    let attribute = ("[ab]", "[a-c]", any::<f64>()).prop_map(|(namespace, name, value)| Attribute {
        namespace: namespace.into(),
        name: name.into(),
        value,
    });
    vec(attribute, 0..4)
}

/// Bytes in as many pieces as there may be, some of which are kept and some copied.
fn pieces() -> impl Strategy<Value = Pieces> {
    let length = prop_oneof![0..40usize, 1000..1050usize, 1024..20_000usize];
    let pieces = vec((length, any::<u8>()), 0..40);
    pieces.prop_map(|pieces| pieces.iter().map(|(length, byte)| Bytes::from(vec![*byte; *length])).collect())
}

fn rejection() -> impl Strategy<Value = Rejection> {
    let code = select(vec![
        Code::BadRequest,
        Code::RequestTimeout,
        Code::PayloadTooLarge,
        Code::ResourceExhausted,
        Code::ServiceUnavailable,
        Code::Evicted,
    ]);
    let reason = option::of(select(vec!["rejected-no-endpoints", "rejected-saturated", ""]));
    (code, reason, option::of(any::<u32>()), ".{0,300}").prop_map(|(code, reason, retry_after, message)| {
        Rejection { reason, retry_after, ..Rejection::new(code, message) }
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    let plain = vec![Reply::RequestBodyAsIs, Reply::RequestTrailers];
    prop_oneof![
        3 => route().prop_map(|route| Reply::RequestHeaders(Box::new(route))),
        2 => (pieces(), any::<bool>())
            .prop_map(|(data, end_of_stream)| Reply::RequestBody { data, end_of_stream }),
        2 => (pieces(), any::<bool>(), attributes()).prop_map(|(data, end_of_stream, attributes)| {
            Reply::ResponseBody { data, end_of_stream, attributes }
        }),
        1 => headers().prop_map(Reply::ResponseHeaders),
        1 => attributes().prop_map(|attributes| Reply::ResponseTrailers { attributes }),
        1 => attributes().prop_map(|attributes| Reply::ResponseBodyAsIs { attributes }),
        1 => select(plain),
        1 => rejection().prop_map(Reply::Immediate),
    ]
}

proptest! {
    #[test]
    fn replies_are_decoded_by_an_independent_decoder(replies in vec(reply(), 0..8)) {
        let mut out = Outbox::new(usize::MAX);
        replies.iter().for_each(|reply| write(reply.clone(), &mut out));
        let mut sent = out.take();
        for reply in &replies {
            prop_assert_eq!(sent.get_u8(), 0, "compressed");
            let length = sent.get_u32() as usize;
            let message = sent.copy_to_bytes(length);
            prop_assert_eq!(ProcessingResponse::decode(message).unwrap(), meant(reply));
        }
        prop_assert!(!sent.has_remaining());
    }

    #[test]
    fn header_values_may_be_any_bytes(values in vec(("[a-z-]{1,20}", vec(any::<u8>(), 0..300)), 0..5)) {
        let mut out = Vec::new();
        values.iter().for_each(|(name, value)| put_header(&mut out, name, value));
        let want: Vec<_> = values.iter().map(|(name, value)| header(name, value)).collect();
        prop_assert_eq!(HeaderMutation::decode(&out[..]).unwrap().set_headers, want);
    }
}
