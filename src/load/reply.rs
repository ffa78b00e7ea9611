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
            1 => request_headers(&content)?,
            2 => Reply::ResponseHeaders,
            3 => Reply::RequestBody(part(&content)?),
            4 => Reply::ResponseBody(part(&content)?),
            7 => immediate(&content)?,
            // Metadata and settings can stand before the reply itself.
            8..=10 => continue,
            _ => Reply::Other,
        });
    }
    Ok(Reply::Other)
}

fn request_headers(content: &Bytes) -> Result<Reply, Malformed> {
    let [common] = pick(content, [1])?;
    let [mutation] = pick(&common, [2])?;
    let (mut destination, mut content_length) = (Bytes::new(), None);
    for field in Fields::of(&mutation) {
        if let Field { number: 1, value: Value::Bytes(option) } = field? {
            let [header] = pick(&option, [1])?;
            let [key, value, raw_value] = pick(&header, [1, 2, 3])?;
            let value = if raw_value.is_empty() { value } else { raw_value };
            if key.eq_ignore_ascii_case(DESTINATION) {
                destination = value;
            } else if key.eq_ignore_ascii_case(b"content-length") {
                content_length = std::str::from_utf8(&value).ok().and_then(|text| text.trim().parse().ok());
            }
        }
    }
    Ok(Reply::RequestHeaders { destination, content_length })
}

/// A `BodyResponse`: a part of a body that is streamed, or one that replaces it.
fn part(content: &Bytes) -> Result<Part, Malformed> {
    let [common] = pick(content, [1])?;
    let [mutation] = pick(&common, [3])?;
    let mut part = Part::default();
    for field in Fields::of(&mutation) {
        match field? {
            Field { number: 1, value: Value::Bytes(body) } => part.bytes = body.len(),
            Field { number: 3, value: Value::Bytes(streamed) } => {
                for field in Fields::of(&streamed) {
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

fn immediate(content: &Bytes) -> Result<Reply, Malformed> {
    let [status, body] = pick(content, [1, 3])?;
    let mut code = 0;
    for field in Fields::of(&status) {
        if let Field { number: 1, value: Value::Varint(value) } = field? {
            code = value;
        }
    }
    Ok(Reply::Immediate { status: code, body })
}
