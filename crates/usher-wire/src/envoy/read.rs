//! Reader of a gateway's messages: `ProcessingRequest`.

use bytes::Bytes;
use smallvec::SmallVec;
use tonic::Status;

use super::names::{LB_NAMESPACE, SERVED, SUBSET_KEY, SUBSET_NAMESPACE};
use crate::event::{Event, Message, Mode, Modes};
use crate::inbox::Payload;
use crate::protobuf::{self as wire, Field, Fields, Malformed, Value};
use usher_core::endpoints::health::ResponseStatus;
use usher_core::endpoints::{MAX_ADDRESSES, SubsetHint};
use usher_core::request::{Body, Headers, MAX_NAME, Pieces, Served, Span};

/// Parts of a `ProcessingRequest`, by their number.
mod part {
    pub(super) const REQUEST_HEADERS: u32 = 2;
    pub(super) const RESPONSE_HEADERS: u32 = 3;
    pub(super) const REQUEST_BODY: u32 = 4;
    pub(super) const RESPONSE_BODY: u32 = 5;
    pub(super) const REQUEST_TRAILERS: u32 = 6;
    pub(super) const RESPONSE_TRAILERS: u32 = 7;
    pub(super) const METADATA_CONTEXT: u32 = 8;
    pub(super) const PROTOCOL_CONFIG: u32 = 11;
}

/// Reads a message.
///
/// # Errors
/// `Status` if the message is malformed or has no content.
pub fn read(payload: Payload) -> Result<Message, Status> {
    let read = match payload {
        Payload::One(message) => read_whole(&message),
        Payload::Many(body) => match read_body(&body) {
            Some(message) => Ok(Some(message)),
            None => read_whole(&body.into_bytes()),
        },
    };
    match read {
        Ok(Some(message)) => Ok(message),
        Ok(None) => {
            Err(Status::invalid_argument("a ProcessingRequest has to carry headers, a body or trailers"))
        }
        Err(Malformed) => Err(Status::invalid_argument("malformed ProcessingRequest")),
    }
}

/// The runs of bytes that encode a message in a message: one, unless it comes several
/// times. Then it means what they mean one behind the other.
type Runs<'a> = SmallVec<[&'a [u8]; 1]>;

/// Runs of one message at most: a place takes eight times an empty run.
const MAX_RUNS: usize = 64;

/// Headers of a message at most: a place takes eight times an empty header.
const MAX_HEADERS: usize = 10_000;

fn add<'a>(run: &'a [u8], runs: &mut Runs<'a>) -> Result<(), Malformed> {
    if runs.len() == MAX_RUNS {
        return Err(Malformed);
    }
    runs.push(run);
    Ok(())
}

/// The fields of a message in a message, in order.
fn fields<'a>(runs: &Runs<'a>) -> impl Iterator<Item = Result<Field<'a>, Malformed>> {
    runs.iter().flat_map(|run| Fields::of(run))
}

/// Fields of a message besides its part.
#[derive(Default)]
struct Beside<'a> {
    metadata: Runs<'a>,
    modes: Option<Modes>,
}

impl<'a> Beside<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match (field.number, field.value) {
            // Gateways send it empty when there is nothing to say.
            (part::METADATA_CONTEXT, Value::Bytes(metadata)) if !metadata.is_empty() => {
                add(metadata, &mut self.metadata)?;
            }
            (part::PROTOCOL_CONFIG, Value::Bytes(config)) => {
                let modes = self.modes.get_or_insert(Modes { request: Mode::None, response: Mode::None });
                read_modes(config, modes)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn message(self, event: Event) -> Result<Message, Malformed> {
        let (mut subset, mut served) = (None, Served::Unknown);
        if !self.metadata.is_empty() {
            match event {
                Event::ResponseHeaders { .. } => served = read_served(&self.metadata)?,
                Event::RequestHeaders { .. } | Event::RequestBody { .. } | Event::RequestTrailers => {
                    subset = read_subset(&self.metadata)?;
                }
                Event::ResponseBody { .. } | Event::ResponseTrailers => {}
            }
        }
        Ok(Message { event, modes: self.modes, subset, served })
    }
}

/// The part of a message: headers, a chunk of a body, or trailers.
struct Content<'a> {
    number: u32,
    /// Encoded `HeaderMap`.
    headers: Runs<'a>,
    body: &'a [u8],
    end_of_stream: bool,
}

impl<'a> Content<'a> {
    fn of(number: u32) -> Self {
        Self { number, headers: Runs::new(), body: &[], end_of_stream: false }
    }

    fn take(&mut self, content: &'a [u8]) -> Result<(), Malformed> {
        let flag = match self.number {
            part::REQUEST_HEADERS | part::RESPONSE_HEADERS => 3,
            part::REQUEST_BODY | part::RESPONSE_BODY => 2,
            _ => return Ok(()),
        };
        for field in Fields::of(content) {
            match field? {
                Field { number: 1, value: Value::Bytes(bytes) } if flag == 3 => {
                    add(bytes, &mut self.headers)?
                }
                Field { number: 1, value: Value::Bytes(bytes) } => self.body = bytes,
                Field { number, value: Value::Varint(value) } if number == flag => {
                    self.end_of_stream = value != 0;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads a message that lies in one piece; `None` when it has no content.
fn read_whole(message: &Bytes) -> Result<Option<Message>, Malformed> {
    let mut content: Option<Content<'_>> = None;
    let mut beside = Beside::default();
    for field in Fields::of(message) {
        let field = field?;
        match field.value {
            Value::Bytes(bytes)
                if (part::REQUEST_HEADERS..=part::RESPONSE_TRAILERS).contains(&field.number) =>
            {
                // Of different parts the last counts, as in every oneof.
                match &mut content {
                    Some(content) if content.number == field.number => content.take(bytes)?,
                    content => content.insert(Content::of(field.number)).take(bytes)?,
                }
            }
            _ => beside.take(field)?,
        }
    }
    let Some(Content { number, headers, body, end_of_stream }) = content else { return Ok(None) };
    let event = match number {
        part::REQUEST_HEADERS => {
            Event::RequestHeaders { headers: read_headers(message, &headers)?, end_of_stream }
        }
        part::RESPONSE_HEADERS => {
            let ResponseHead { status, event_stream, encoded } = read_response(&headers)?;
            Event::ResponseHeaders { status, event_stream, encoded, end_of_stream }
        }
        part::REQUEST_BODY | part::RESPONSE_BODY => {
            body_event(number, message.slice_ref(body).into(), end_of_stream)
        }
        part::REQUEST_TRAILERS => Event::RequestTrailers,
        _ => Event::ResponseTrailers,
    };
    beside.message(event).map(Some)
}

/// Reads a chunk of a body that lies in several pieces, without putting them together.
/// `None` when it isn't laid out as Envoy does: the body first, its flag behind it. Then
/// it has to be read as any other message, errors included.
fn read_body(message: &Body) -> Option<Message> {
    let first = message.chunks().first()?;
    let mut head = Fields::of(first);
    let number = |head: &mut Fields<'_>| head.varint().ok().and_then(|value| usize::try_from(value).ok());
    // The key of a length-delimited field is its number and 2.
    let part = match number(&mut head)? {
        0x22 => part::REQUEST_BODY,
        0x2a => part::RESPONSE_BODY,
        _ => return None,
    };
    let part_length = number(&mut head)?;
    let part_start = first.len() - head.rest().len();
    if number(&mut head)? != 0x0a {
        return None;
    }
    let body_length = number(&mut head)?;
    let body_start = first.len() - head.rest().len();
    let body_end = body_start.checked_add(body_length)?;
    let part_end = part_start.checked_add(part_length)?;
    if body_end > part_end || part_end > message.len() {
        return None;
    }
    let mut end_of_stream = false;
    for field in Fields::of(&message.bytes(Span { start: body_end, end: part_end })) {
        match field.ok()? {
            Field { number: 1, .. } => return None,
            Field { number: 2, value: Value::Varint(flag) } => end_of_stream = flag != 0,
            _ => {}
        }
    }
    let rest = message.bytes(Span { start: part_end, end: message.len() });
    let mut beside = Beside::default();
    for field in Fields::of(&rest) {
        let field = field.ok()?;
        if (part::REQUEST_HEADERS..=part::RESPONSE_TRAILERS).contains(&field.number) {
            return None;
        }
        beside.take(field).ok()?;
    }
    let data = message.slice(Span { start: body_start, end: body_end });
    beside.message(body_event(part, data, end_of_stream)).ok()
}

fn body_event(number: u32, data: Pieces, end_of_stream: bool) -> Event {
    if number == part::REQUEST_BODY {
        Event::RequestBody { data, end_of_stream }
    } else {
        Event::ResponseBody { data, end_of_stream }
    }
}

/// `ProtocolConfiguration`
fn read_modes(config: &[u8], modes: &mut Modes) -> Result<(), Malformed> {
    for field in Fields::of(config) {
        match field? {
            Field { number: 1, value: Value::Varint(value) } => modes.request = mode(value),
            Field { number: 2, value: Value::Varint(value) } => modes.response = mode(value),
            _ => {}
        }
    }
    Ok(())
}

/// `ProcessingMode.BodySendMode`
fn mode(value: u64) -> Mode {
    match value {
        0 => Mode::None,
        4 => Mode::FullDuplex,
        _ => Mode::OneToOne,
    }
}

/// Calls `each` with the name and the value of every header of a `HeaderMap`.
fn walk_headers<'a>(map: &Runs<'a>, mut each: impl FnMut(&'a [u8], &'a [u8])) -> Result<(), Malformed> {
    for run in map {
        for field in Fields::of(run) {
            let Field { number: 1, value: Value::Bytes(header) } = field? else { continue };
            // Envoy fills raw_value, other clients value.
            let [key, value, raw_value] = wire::pick(header, [1, 2, 3])?;
            each(key, if raw_value.is_empty() { value } else { raw_value });
        }
    }
    Ok(())
}

/// The headers of a `HeaderMap` that lies in `message`.
fn read_headers(message: &Bytes, map: &Runs<'_>) -> Result<Headers, Malformed> {
    let mut headers = Headers::of(message.clone());
    let mut is_full = false;
    let place = |part: &[u8]| {
        // An empty one may be anywhere.
        let start = (part.as_ptr().addr()).saturating_sub(message.as_ptr().addr()).min(message.len());
        start..start + part.len()
    };
    walk_headers(map, |key, value| {
        if headers.len() < MAX_HEADERS {
            headers.push(place(key), place(value));
        } else {
            is_full = true;
        }
    })?;
    if is_full { Err(Malformed) } else { Ok(headers) }
}

/// Status and encoding of a response, from its headers.
#[derive(Default)]
struct ResponseHead {
    status: ResponseStatus,
    /// `true` for `text/event-stream`.
    event_stream: bool,
    encoded: bool,
}

/// Reads the headers of a response. Of several with a name the last counts; HTTP and gRPC have
/// an encoding each.
fn read_response(map: &Runs<'_>) -> Result<ResponseHead, Malformed> {
    let ResponseHead { mut status, mut event_stream, .. } = ResponseHead::default();
    let (mut content, mut messages) = (false, false);
    let is_encoding = |value: &[u8]| {
        let value = value.trim_ascii();
        !value.is_empty() && !value.eq_ignore_ascii_case(b"identity")
    };
    walk_headers(map, |key, value| match key.len() {
        7 if key.eq_ignore_ascii_case(b":status") => status.http = number(value),
        11 if key.eq_ignore_ascii_case(b"grpc-status") => status.grpc = number(value),
        12 if key.eq_ignore_ascii_case(b"content-type") => {
            let wanted = b"text/event-stream";
            event_stream = value.windows(wanted.len()).any(|part| part.eq_ignore_ascii_case(wanted));
        }
        13 if key.eq_ignore_ascii_case(b"grpc-encoding") => messages = is_encoding(value),
        16 if key.eq_ignore_ascii_case(b"content-encoding") => content = is_encoding(value),
        18 if key.eq_ignore_ascii_case(b"x-envoy-overloaded") => status.overloaded = true,
        _ => {}
    })?;
    Ok(ResponseHead { status, event_stream, encoded: content || messages })
}

/// A header that is a number.
fn number<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// The value under a key of a map: an encoded `Struct.fields` or `Metadata.filter_metadata`,
/// which are field 1, with entries of key 1 and value 2.
fn entry<'a>(message: &Runs<'a>, wanted: &str) -> Result<Option<Runs<'a>>, Malformed> {
    let mut found = None;
    for field in fields(message) {
        let Field { number: 1, value: Value::Bytes(entry) } = field? else { continue };
        let (mut name, mut value) = (&[][..], Runs::new());
        for field in Fields::of(entry) {
            match field? {
                Field { number: 1, value: Value::Bytes(bytes) } => name = bytes,
                Field { number: 2, value: Value::Bytes(bytes) } => add(bytes, &mut value)?,
                _ => {}
            }
        }
        // Of several entries with a key the last counts.
        if name == wanted.as_bytes() {
            found = Some(value);
        }
    }
    Ok(found)
}

/// Number of the last field of a `Value` that its kind may be in: 1 to 6.
const KINDS: u32 = 6;

/// The text of a `Value.string_value`.
fn string_value<'a>(
    value: impl Iterator<Item = Result<Field<'a>, Malformed>>,
) -> Result<Option<&'a [u8]>, Malformed> {
    let mut text = None;
    for field in value {
        match field? {
            Field { number: 3, value: Value::Bytes(bytes) } => text = Some(bytes),
            Field { number: 1..=KINDS, .. } => text = None,
            _ => {}
        }
    }
    Ok(text)
}

/// The subset hint: a string or a list of strings; anything else is no hint.
fn read_subset(context: &Runs<'_>) -> Result<Option<SubsetHint>, Malformed> {
    let Some(namespace) = entry(context, SUBSET_NAMESPACE)? else { return Ok(None) };
    let Some(value) = entry(&namespace, SUBSET_KEY)? else { return Ok(None) };
    let mut entries = Vec::new();
    let mut kind = None;
    for field in fields(&value) {
        let Field { number: number @ 1..=KINDS, value } = field? else { continue };
        // A list goes on, everything else begins anew.
        if kind != Some(6) || number != 6 {
            entries.clear();
        }
        kind = Some(number);
        match (number, value) {
            (3, Value::Bytes(text)) => entries.push(text),
            (6, Value::Bytes(list)) => {
                for item in Fields::of(list) {
                    if let Field { number: 1, value: Value::Bytes(item) } = item?
                        && entries.len() < MAX_ADDRESSES
                    {
                        entries.extend(string_value(Fields::of(item))?);
                    }
                }
            }
            _ => {}
        }
    }
    let texts = entries.iter().filter_map(|entry| std::str::from_utf8(entry).ok());
    Ok(matches!(kind, Some(3 | 6)).then(|| SubsetHint::from_entries(texts)))
}

/// Endpoint that served, as the gateway says with the response headers.
fn read_served(context: &Runs<'_>) -> Result<Served, Malformed> {
    let Some(namespace) = entry(context, LB_NAMESPACE)? else { return Ok(Served::Unknown) };
    let Some(value) = entry(&namespace, SERVED)? else { return Ok(Served::Missing) };
    let text = string_value(fields(&value))?.and_then(|text| std::str::from_utf8(text).ok()).map(str::trim);
    Ok(text
        .filter(|text| !text.is_empty() && text.len() <= MAX_NAME)
        .map_or(Served::Missing, |text| Served::By(text.to_owned())))
}

#[cfg(test)]
#[path = "read_properties.rs"]
mod properties;
