//! Envoy's messages as frames of gRPC, encoded by hand: most are made once and sent
//! many times.

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memmem;
use smallvec::SmallVec;

use crate::protobuf::{field_len, put_bytes};
use usher_core::random::mix;

/// Envoy passes bodies on in pieces of this size.
const CHUNK: usize = 32 << 10;

/// Envoy sends no larger HTTP/2 frames, whatever the server would take.
const FRAME: usize = 16 << 10;

/// `protocol_config`: full duplex both ways.
const FULL_DUPLEX: [u8; 6] = [11 << 3 | 2, 4, 1 << 3, 4, 2 << 3, 4];

/// `end_of_stream` of an `HttpBody`.
const END_OF_BODY: [u8; 2] = [2 << 3, 1];

/// Stands where a request's own id comes.
const NO_ID: [u8; 36] = *b"00000000-0000-4000-8000-000000000000";

// Fields of a ProcessingRequest.
const REQUEST_HEADERS: u8 = 2;
const RESPONSE_HEADERS: u8 = 3;
const REQUEST_BODY: u8 = 4;
const RESPONSE_BODY: u8 = 5;
const METADATA: u8 = 8;

/// One message with a piece of a body, in the HTTP/2 frames that carry it.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// To be sent one after the other.
    pub frames: SmallVec<[Bytes; 1]>,
    /// Bytes of the body in it.
    pub bytes: usize,
}

/// The first message of an exchange. Each request has an id of its own.
#[derive(Clone, Debug)]
pub struct RequestHead {
    frame: Bytes,
    id_at: Option<usize>,
}

impl RequestHead {
    /// The message with the id that follows from `number`.
    pub fn with_id(&self, number: u64) -> Bytes {
        let Some(at) = self.id_at else { return self.frame.clone() };
        let mut frame = BytesMut::from(&self.frame[..]);
        let bits = (u128::from(mix(number)) << 64) | u128::from(mix(!number));
        let mut digits = (0..32).map(|digit| b"0123456789abcdef"[(bits >> (4 * digit)) as usize & 15]);
        // The places of a UUID that say how it was made keep what they say.
        let places = frame[at..at + NO_ID.len()].iter_mut().filter(|place| **place == b'0');
        for (place, digit) in places.zip(&mut digits) {
            *place = digit;
        }
        frame.freeze()
    }
}

/// Metadata that a gateway sends with every message of a request.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// An encoded `Metadata`; empty is what Envoy sends when it forwards none.
    metadata: Bytes,
}

impl Context {
    /// The hint that only these endpoints may be picked: addresses, separated by commas.
    pub fn with_subset(list: &str) -> Self {
        let value = field(3, list.as_bytes());
        let hint = entry("x-gateway-destination-endpoint-subset", &value);
        let fields = field(1, &hint);
        let namespace = entry("envoy.lb.subset_hint", &fields);
        Self { metadata: field(1, &namespace) }
    }

    /// The request's headers.
    pub fn request_headers(&self, headers: &[(&str, &str)]) -> RequestHead {
        let mut with_id = headers.to_vec();
        let id = String::from_utf8_lossy(&NO_ID);
        with_id.push(("x-request-id", &id));
        let mut rest = self.encoded();
        rest.put_slice(&FULL_DUPLEX);
        let frame = framed(REQUEST_HEADERS, &header_map(&with_id), &rest);
        RequestHead { id_at: memmem::find(&frame, &NO_ID), frame }
    }

    /// The response's headers.
    pub fn response_headers(&self, headers: &[(&str, &str)]) -> Bytes {
        framed(RESPONSE_HEADERS, &header_map(headers), &self.encoded())
    }

    /// A request's body, the last chunk of which ends it.
    pub fn request_body(&self, body: &[u8]) -> Vec<Chunk> {
        self.body(REQUEST_BODY, body)
    }

    /// A response's body, the last chunk of which ends it.
    pub fn response_body(&self, body: &[u8]) -> Vec<Chunk> {
        self.body(RESPONSE_BODY, body)
    }

    /// A part of a response's body that is not the last.
    pub fn response_chunk(&self, body: &[u8]) -> Chunk {
        self.chunk(RESPONSE_BODY, body, false)
    }

    fn body(&self, field: u8, body: &[u8]) -> Vec<Chunk> {
        let last = body.len().div_ceil(CHUNK).max(1) - 1;
        (0..=last)
            .map(|index| {
                let end = body.len().min((index + 1) * CHUNK);
                self.chunk(field, &body[index * CHUNK..end], index == last)
            })
            .collect()
    }

    fn chunk(&self, field: u8, body: &[u8], last: bool) -> Chunk {
        let mut content = Vec::with_capacity(field_len(body.len()) + END_OF_BODY.len());
        put_bytes(&mut content, 1, body);
        if last {
            content.put_slice(&END_OF_BODY);
        }
        let mut message = framed(field, &content, &self.encoded());
        let mut frames = SmallVec::new();
        while message.len() > FRAME {
            frames.push(message.split_to(FRAME));
        }
        frames.push(message);
        Chunk { frames, bytes: body.len() }
    }

    fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, METADATA, &self.metadata);
        out
    }
}

/// A gRPC frame of a message with `content` in one field, and more fields after it.
fn framed(field: u8, content: &[u8], rest: &[u8]) -> Bytes {
    let length = field_len(content.len()) + rest.len();
    let mut out = Vec::with_capacity(5 + length);
    out.put_u8(0);
    // Chunks and headers are far below 4 GiB.
    out.put_u32(length as u32);
    put_bytes(&mut out, field, content);
    out.put_slice(rest);
    out.into()
}

/// An `HttpHeaders`, with values where Envoy writes them.
fn header_map(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut map = Vec::new();
    for (name, value) in headers {
        let mut header = Vec::new();
        put_bytes(&mut header, 1, name.as_bytes());
        put_bytes(&mut header, 3, value.as_bytes());
        put_bytes(&mut map, 1, &header);
    }
    let mut out = Vec::new();
    put_bytes(&mut out, 1, &map);
    out
}

/// A message with `content` in one field.
fn field(number: u8, content: &[u8]) -> Bytes {
    let mut out = Vec::new();
    put_bytes(&mut out, number, content);
    out.into()
}

/// An entry of a map from strings to messages.
fn entry(key: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, key.as_bytes());
    put_bytes(&mut out, 2, value);
    out
}
