//! Messages that an encoder wrote which isn't ours, whole and in pieces, against what
//! that encoder's decoder makes of them.

use bytes::Buf;
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, Metadata};
use envoy_types::pb::envoy::service::ext_proc::v3 as theirs;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, ListValue, Struct, Value as AnyValue};
use prop::collection::{hash_map, vec};
use prop::sample::select;
use proptest::prelude::*;
use prost::Message as _;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use theirs::processing_request::Request;
use theirs::{HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest, ProtocolConfiguration};

use super::*;
use crate::inbox::Inbox;

/// Header names, in the case in which they are looked up.
const NAMES: [&str; 10] = [
    ":path",
    "content-type",
    "x-request-id",
    "x-long",
    "",
    ":status",
    "grpc-status",
    "x-envoy-overloaded",
    "content-encoding",
    "grpc-encoding",
];

/// Texts of metadata.
const TEXTS: [&str; 6] = ["10.0.0.1:8000", "10.0.0.2", "[::1]:80", " 10.0.0.3:1 ,10.0.0.4", "pod-1", ""];

/// Meaning of a message, in a form that can be compared.
#[derive(Debug, PartialEq)]
struct Meant {
    part: Part,
    modes: Option<Modes>,
    subset: Option<SubsetHint>,
    served: Served,
}

#[derive(Debug, PartialEq)]
enum Part {
    /// Number of headers, the value of each name, and whether they end the stream.
    Headers(usize, Vec<Option<Vec<u8>>>, bool),
    Body(Vec<u8>, bool),
    Trailers,
    /// Status, and whether an event stream follows, is encoded, or nothing follows.
    ResponseHeaders(ResponseStatus, bool, bool, bool),
    ResponseBody(Vec<u8>, bool),
    ResponseTrailers,
}

/// Meaning of a message that was read.
fn read_of(message: Message) -> Meant {
    let bytes = |data: Pieces| data.iter().flatten().copied().collect();
    let part = match message.event {
        Event::RequestHeaders { headers, end_of_stream } => {
            let values = NAMES.map(|name| headers.get(name).map(<[u8]>::to_vec));
            Part::Headers(headers.len(), values.into(), end_of_stream)
        }
        Event::RequestBody { data, end_of_stream } => Part::Body(bytes(data), end_of_stream),
        Event::RequestTrailers => Part::Trailers,
        Event::ResponseHeaders { status, event_stream, encoded, end_of_stream } => {
            Part::ResponseHeaders(status, event_stream, encoded, end_of_stream)
        }
        Event::ResponseBody { data, end_of_stream } => Part::ResponseBody(bytes(data), end_of_stream),
        Event::ResponseTrailers => Part::ResponseTrailers,
    };
    Meant { part, modes: message.modes, subset: message.subset, served: message.served }
}

/// Meaning of a decoded message; `None` when it has no content.
fn meant(message: &ProcessingRequest) -> Option<Meant> {
    let (mut subset, mut served) = (None, Served::Unknown);
    if let Some(metadata) = &message.metadata_context {
        subset = lookup(metadata, SUBSET_NAMESPACE, SUBSET_KEY).and_then(hint);
        if metadata.filter_metadata.contains_key(LB_NAMESPACE) {
            let text = lookup(metadata, LB_NAMESPACE, SERVED).and_then(text_of);
            let text = text.filter(|text| !text.trim().is_empty());
            served = text.map_or(Served::Missing, |text| Served::By(text.trim().to_owned()));
        }
    }
    let part = match message.request.as_ref()? {
        Request::RequestHeaders(part) => {
            let pairs = pairs(part.headers.as_ref());
            let last = |name: &&str| {
                let named = pairs.iter().rfind(|(other, _)| other.eq_ignore_ascii_case(name));
                named.map(|(_, value)| value.clone())
            };
            Part::Headers(pairs.len(), NAMES.iter().map(last).collect(), part.end_of_stream)
        }
        Request::RequestBody(part) => Part::Body(part.body.clone(), part.end_of_stream),
        Request::RequestTrailers(_) => Part::Trailers,
        Request::ResponseHeaders(part) => {
            let pairs = pairs(part.headers.as_ref());
            let last = |name: &str| {
                let named = pairs.iter().rfind(|(other, _)| other.eq_ignore_ascii_case(name));
                named.map(|(_, value)| String::from_utf8_lossy(value).to_ascii_lowercase())
            };
            let event_stream = last("content-type").is_some_and(|kind| kind.contains("text/event-stream"));
            let status = ResponseStatus {
                http: last(":status").and_then(|status| status.trim().parse().ok()),
                grpc: last("grpc-status").and_then(|status| status.trim().parse().ok()),
                overloaded: last("x-envoy-overloaded").is_some(),
            };
            let is_encoding = |value: String| !matches!(value.trim_ascii(), "" | "identity");
            let encoded = ["content-encoding", "grpc-encoding"];
            let encoded = encoded.map(|name| last(name).is_some_and(is_encoding)).contains(&true);
            Part::ResponseHeaders(status, event_stream, encoded, part.end_of_stream)
        }
        Request::ResponseBody(part) => Part::ResponseBody(part.body.clone(), part.end_of_stream),
        Request::ResponseTrailers(_) => Part::ResponseTrailers,
    };
    // Each is read where it counts.
    if !matches!(part, Part::Headers(..) | Part::Body(..) | Part::Trailers) {
        subset = None;
    }
    if !matches!(part, Part::ResponseHeaders(..)) {
        served = Served::Unknown;
    }
    let mode = |mode: i32| match mode {
        0 => Mode::None,
        4 => Mode::FullDuplex,
        _ => Mode::OneToOne,
    };
    let modes = message.protocol_config.as_ref().map(|config| Modes {
        request: mode(config.request_body_mode),
        response: mode(config.response_body_mode),
    });
    Some(Meant { part, modes, subset, served })
}

fn pairs(map: Option<&HeaderMap>) -> Vec<(String, Vec<u8>)> {
    let value = |header: &HeaderValue| {
        if header.raw_value.is_empty() { header.value.clone().into_bytes() } else { header.raw_value.clone() }
    };
    let headers = map.into_iter().flat_map(|map| &map.headers);
    headers.map(|header| (header.key.clone(), value(header))).collect()
}

fn lookup<'a>(metadata: &'a Metadata, namespace: &str, key: &str) -> Option<&'a AnyValue> {
    metadata.filter_metadata.get(namespace)?.fields.get(key)
}

fn text_of(value: &AnyValue) -> Option<&str> {
    match value.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

fn hint(value: &AnyValue) -> Option<SubsetHint> {
    let texts: Vec<&str> = match value.kind.as_ref()? {
        Kind::ListValue(list) => list.values.iter().filter_map(text_of).collect(),
        _ => vec![text_of(value)?],
    };
    Some(SubsetHint::from_entries(texts))
}

fn value() -> impl Strategy<Value = AnyValue> {
    let leaf = prop_oneof![
        6 => select(&TEXTS[..]).prop_map(|text| Some(Kind::StringValue(text.to_owned()))),
        1 => any::<f64>().prop_map(|number| Some(Kind::NumberValue(number))),
        1 => any::<bool>().prop_map(|flag| Some(Kind::BoolValue(flag))),
        1 => Just(Some(Kind::NullValue(0))),
        1 => Just(None),
    ];
    let leaf = leaf.prop_map(|kind| AnyValue { kind });
    leaf.prop_recursive(2, 12, 4, |inner| {
        let list = vec(inner.clone(), 0..4).prop_map(|values| Kind::ListValue(ListValue { values }));
        let nested = fields(inner).prop_map(Kind::StructValue);
        prop_oneof![2 => list, 1 => nested].prop_map(|kind| AnyValue { kind: Some(kind) })
    })
}

fn fields(value: impl Strategy<Value = AnyValue>) -> impl Strategy<Value = Struct> {
    let key = select(&[SUBSET_KEY, SERVED, "other", ""][..]).prop_map(str::to_owned);
    hash_map(key, value, 0..4).prop_map(|fields| Struct { fields })
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let namespace = select(&[SUBSET_NAMESPACE, LB_NAMESPACE, "other"][..]).prop_map(str::to_owned);
    let any = vec(any::<u8>(), 0..9).prop_map(|value| Any { type_url: "type".to_owned(), value });
    (hash_map(namespace, fields(value()), 0..4), hash_map("[a-c]", any, 0..2)).prop_map(
        |(filter_metadata, typed_filter_metadata)| Metadata { filter_metadata, typed_filter_metadata },
    )
}

fn header_map() -> impl Strategy<Value = Option<HeaderMap>> {
    let name = (select(&NAMES[..]), any::<bool>())
        .prop_map(|(name, upper)| if upper { name.to_uppercase() } else { name.to_owned() });
    let text =
        prop_oneof![Just("Text/Event-Stream; q=1".to_owned()), "[0-9]{1,4}", "[ -~]{0,12}", "[a-z]{300}"];
    let raw = prop_oneof![Just(Vec::new()), Just(b"text/event-stream".to_vec()), vec(any::<u8>(), 0..200)];
    let header = (name, text, raw).prop_map(|(key, value, raw_value)| HeaderValue { key, value, raw_value });
    prop::option::weighted(0.9, vec(header, 0..12).prop_map(|headers| HeaderMap { headers }))
}

fn part() -> impl Strategy<Value = Option<Request>> {
    let headers = || {
        (header_map(), any::<bool>()).prop_map(|(headers, end_of_stream)| HttpHeaders {
            headers,
            end_of_stream,
            ..HttpHeaders::default()
        })
    };
    let body = || {
        let length = prop_oneof![Just(0usize), 1..9usize, 1024..1100usize, 1024..9000usize];
        let bytes = (length, any::<u8>())
            .prop_map(|(length, first)| (0..length).map(|i| first.wrapping_add((i / 7) as u8)).collect());
        (bytes, any::<[bool; 4]>()).prop_map(|(body, flags): (Vec<u8>, _)| HttpBody {
            body,
            end_of_stream: flags[0],
            end_of_stream_without_message: flags[1],
            grpc_message_compressed: flags[2],
            drain_complete: flags[3],
        })
    };
    let trailers = || header_map().prop_map(|trailers| HttpTrailers { trailers });
    let part = prop_oneof![
        4 => headers().prop_map(Request::RequestHeaders),
        2 => headers().prop_map(Request::ResponseHeaders),
        8 => body().prop_map(Request::RequestBody),
        4 => body().prop_map(Request::ResponseBody),
        1 => trailers().prop_map(Request::RequestTrailers),
        1 => trailers().prop_map(Request::ResponseTrailers),
    ];
    prop::option::weighted(0.95, part)
}

fn message() -> impl Strategy<Value = ProcessingRequest> {
    let modes =
        (-1..6i32, -1..6i32, any::<bool>()).prop_map(|(request, response, early)| ProtocolConfiguration {
            request_body_mode: request,
            response_body_mode: response,
            send_body_without_waiting_for_header_response: early,
        });
    let attributes = hash_map("envoy.[a-c]", fields(value()), 0..2);
    let beside =
        (prop::option::of(modes), prop::option::weighted(0.7, metadata()), attributes, any::<bool>());
    (part(), beside).prop_map(|(request, (protocol_config, metadata_context, attributes, observed))| {
        ProcessingRequest {
            request,
            protocol_config,
            metadata_context,
            attributes,
            observability_mode: observed,
            ..ProcessingRequest::default()
        }
    })
}

/// Lengths of frames, of which the first often ends within the heads of messages, and the
/// others stay what they are or are put together.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    let first = prop_oneof![1..24usize, 1024..1100usize];
    let others = vec(prop_oneof![1..40usize, 1000..1050usize, 1024..4000usize], 1..6);
    (first, others).prop_map(|(first, others)| [vec![first], others].concat())
}

/// A message as it arrives in frames of these lengths; the last is as long as it takes.
fn arrived(encoded: &[u8], cuts: &[usize]) -> Payload {
    let mut sent = Bytes::from([&[0][..], &(encoded.len() as u32).to_be_bytes(), encoded].concat());
    let mut inbox = Inbox::new(encoded.len());
    inbox.push(sent.split_to(5));
    let mut cuts = cuts.iter();
    loop {
        if let Some(payload) = inbox.next_message().unwrap() {
            assert!(!sent.has_remaining());
            return payload;
        }
        let length = cuts.next().map_or(sent.len(), |cut| sent.len().min(*cut));
        inbox.push(sent.split_to(length));
    }
}

/// Messages with messages in them.
#[derive(Clone, Copy)]
enum Level {
    Request,
    Headers,
    Metadata,
    NamespaceEntry,
    Struct,
    ValueEntry,
    Value,
    List,
    /// No message below is read.
    Flat,
}

impl Level {
    /// Level of the message in the field with this number; `None` if that is no message.
    fn within(self, number: u32) -> Option<Self> {
        match (self, number) {
            (Self::Request, 2 | 3) => Some(Self::Headers),
            (Self::Request, 4..=7 | 11) | (Self::Headers, 1) => Some(Self::Flat),
            (Self::Request, 8) => Some(Self::Metadata),
            (Self::Metadata, 1) => Some(Self::NamespaceEntry),
            (Self::NamespaceEntry, 2) | (Self::Value, 5) => Some(Self::Struct),
            (Self::Struct, 1) => Some(Self::ValueEntry),
            (Self::ValueEntry, 2) | (Self::List, 1) => Some(Self::Value),
            (Self::Value, 6) => Some(Self::List),
            _ => None,
        }
    }
}

/// A message with the fields of both, in turns, on every level, and with fields that
/// nobody knows: what decoders have to merge.
fn weave(messages: [&[u8]; 2], level: Level, random: &mut StdRng) -> Vec<u8> {
    let mut rest = messages.map(Fields::of);
    let mut out = Vec::new();
    loop {
        if random.random_ratio(1, 8) {
            out.extend(unknown(random));
        }
        let mut turn = usize::from(random.random::<bool>());
        if rest[turn].rest().is_empty() {
            turn = 1 - turn;
        }
        let before = rest[turn].rest();
        let Some(field) = rest[turn].next() else { return out };
        let field = field.unwrap();
        let raw = &before[..before.len() - rest[turn].rest().len()];
        let (Some(within), Value::Bytes(content)) = (level.within(field.number), field.value) else {
            out.extend(raw);
            continue;
        };
        // Two that follow each other on both sides become one, or stay two.
        let mut other = rest[1 - turn].clone();
        let mut contents = [content, &[]];
        if let Some(Ok(wire::Field { number, value: Value::Bytes(content) })) = other.next()
            && number == field.number
            && random.random()
        {
            contents[1] = content;
            rest[1 - turn] = other;
        }
        let woven = weave(contents, within, random);
        wire::put_bytes(&mut out, field.number as u8, &woven);
    }
}

/// The field `metadata_context` of a message, with this value where it is looked for.
fn metadata_with((namespace, key): (&str, &str), value: &[u8]) -> Vec<u8> {
    let wrap = |key: &str, value: &[u8]| {
        let mut entry = Vec::new();
        wire::put_bytes(&mut entry, 1, key.as_bytes());
        wire::put_bytes(&mut entry, 2, value);
        let mut field = Vec::new();
        wire::put_bytes(&mut field, 1, &entry);
        field
    };
    let mut field = Vec::new();
    wire::put_bytes(&mut field, 8, &wrap(namespace, &wrap(key, value)));
    field
}

/// A field with a number that no message has.
fn unknown(random: &mut StdRng) -> Vec<u8> {
    let (content, kind) = match random.random_range(0..4) {
        0 => (vec![0x80 | random.random::<u8>(), 1], 0),
        1 => (vec![random.random(); 8], 1),
        2 => {
            let mut bytes = Vec::new();
            wire::put_bytes(&mut bytes, 0, &vec![random.random(); random.random_range(0..2000)]);
            (bytes.split_off(1), 2)
        }
        _ => (vec![random.random(); 4], 5),
    };
    let key: u32 = random.random_range(100..1 << 29) << 3 | kind;
    let mut field: Vec<u8> = (0..4).map(|i| (key >> (7 * i)) as u8 | 0x80).collect();
    field.push((key >> 28) as u8);
    [field, content].concat()
}

/// Checks that a message means this in one piece and in these, on every way to read it.
fn check(encoded: &[u8], cuts: &[usize], want: Option<&Meant>) -> Result<(), TestCaseError> {
    let read_as = |payload| read(payload).ok().map(read_of);
    let one = read_as(Payload::One(Bytes::copy_from_slice(encoded)));
    prop_assert_eq!(one.as_ref(), want, "in one piece");
    let payload = arrived(encoded, cuts);
    if let Payload::Many(body) = &payload
        && let Some(message) = read_body(body)
    {
        prop_assert_eq!(Some(&read_of(message)), want, "in its pieces");
    }
    let many = read_as(payload);
    prop_assert_eq!(many.as_ref(), want, "in pieces");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn encoded_messages_are_read_whole_and_in_pieces(message in message(), cuts in cuts()) {
        let encoded = message.encode_to_vec();
        check(&encoded, &cuts, meant(&message).as_ref())?;
        // What is large and common stays in the pieces that it came in.
        if let (Payload::Many(body), Some(Request::RequestBody(part) | Request::ResponseBody(part))) =
            (arrived(&encoded, &cuts), &message.request)
            && !part.body.is_empty()
            && body.chunks()[0].len() >= 8
        {
            prop_assert!(read_body(&body).is_some(), "a body was put together");
        }
    }

    #[test]
    fn repeated_fields_are_merged_and_unknown_ones_skipped(
        messages in [message(), message()],
        values in [value(), value()],
        place in select(&[(SUBSET_NAMESPACE, SUBSET_KEY), (LB_NAMESPACE, SERVED)][..]),
        seed in any::<u64>(),
        cuts in cuts(),
    ) {
        let mut random = StdRng::seed_from_u64(seed);
        let [one, other] = messages.map(|message| message.encode_to_vec());
        let mut woven = weave([&one, &other], Level::Request, &mut random);
        if random.random() {
            let [one, other] = values.map(|value| value.encode_to_vec());
            let value = weave([&one, &other], Level::Value, &mut random);
            woven.extend(metadata_with(place, &value));
        }
        let message = ProcessingRequest::decode(&woven[..]).unwrap();
        check(&woven, &cuts, meant(&message).as_ref())?;
    }
}
