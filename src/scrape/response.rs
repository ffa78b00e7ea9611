//! An HTTP/1.1 response as it arrives, without a socket: what of it is head, what is body,
//! and where it ends.
//!
//! Bytes are looked at where they lie. Only a head or a chunk's length that is split
//! between two reads is copied.

use httparse::{EMPTY_HEADER, Status};

/// A longer head, or all trailers together, are refused.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// More lines of a head are refused.
const MAX_HEADERS: usize = 64;
/// A longer line with a chunk's length is refused.
const MAX_LINE_BYTES: usize = 1 << 10;
/// Most interim responses (`103 Early Hints` …) before the response.
const MAX_INTERIM: u8 = 4;

/// Error of a response that can't be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// Not HTTP/1.1.
    #[error("what the server sent is not HTTP/1.1: {0}")]
    Malformed(&'static str),
    /// A part that should be short is not.
    #[error("{0} is too long")]
    TooLong(&'static str),
    /// The connection was closed before the first byte.
    #[error("the server closed the connection without a response")]
    Closed,
    /// The connection was closed before the end.
    #[error("the server closed the connection in the middle of its response")]
    Cut,
}

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Unchanged.
    Identity,
    /// Compressed with gzip.
    Gzip,
    /// Some other way, or several.
    Other,
}

/// Status, encoding and length from the head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The status code, from 200.
    pub status: u16,
    /// Encoding of the body.
    pub encoding: Encoding,
    /// Bytes of the body, where the head says it.
    pub length: Option<u64>,
}

/// A part of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The head. It comes once and first.
    Head(Head),
    /// A piece of the body, as it is encoded.
    Body(&'a [u8]),
    /// The response is complete.
    End {
        /// `true` if the connection can take another request.
        reusable: bool,
    },
    /// All bytes are used, and the response isn't complete.
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head {
        interim: u8,
    },
    /// Bytes of the body to come.
    Sized(u64),
    UntilClosed,
    ChunkLength,
    Chunk(u64),
    ChunkEnd,
    /// Bytes of them so far.
    Trailers(usize),
    Ended,
}

/// Reads one response after the other.
#[derive(Debug)]
pub struct ResponseReader {
    state: State,
    reusable: bool,
    /// Bytes of a head or line that has not arrived in full.
    partial: Vec<u8>,
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self { state: State::Head { interim: 0 }, reusable: false, partial: Vec::new() }
    }
}

impl ResponseReader {
    /// Expects the start of a response.
    pub fn restart(&mut self) {
        self.state = State::Head { interim: 0 };
        self.partial.clear();
    }

    /// The next part; what it was read from is taken off the front of `bytes`. After
    /// [`Part::End`] come more of them, and bytes that are left belong to no response.
    ///
    /// # Errors
    /// `ResponseError` if the bytes are no response, or one without a length. The connection can't be used
    /// again.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Part<'a>, ResponseError> {
        loop {
            match self.state {
                State::Ended => return Ok(Part::End { reusable: self.reusable }),
                _ if bytes.is_empty() && self.state != State::Sized(0) => return Ok(Part::More),
                State::Head { interim } => match self.head(bytes)? {
                    None => return Ok(Part::More),
                    Some(Head { status: 100..200, .. }) if interim < MAX_INTERIM => {
                        self.state = State::Head { interim: interim + 1 };
                    }
                    Some(Head { status: 0..200, .. }) => {
                        return Err(ResponseError::Malformed("the status is below 200"));
                    }
                    Some(head) => return Ok(Part::Head(head)),
                },
                State::Sized(0) => self.state = State::Ended,
                State::Sized(left) => {
                    let (piece, left) = take(bytes, left);
                    self.state = State::Sized(left);
                    return Ok(Part::Body(piece));
                }
                State::UntilClosed => return Ok(Part::Body(std::mem::take(bytes))),
                State::ChunkLength => {
                    let Some(length) = self.line(bytes, chunk_length)? else {
                        return Ok(Part::More);
                    };
                    self.state = match length? {
                        0 => State::Trailers(0),
                        length => State::Chunk(length),
                    };
                }
                State::Chunk(0) => self.state = State::ChunkEnd,
                State::Chunk(left) => {
                    let (piece, left) = take(bytes, left);
                    self.state = State::Chunk(left);
                    return Ok(Part::Body(piece));
                }
                State::ChunkEnd => match self.line(bytes, |line| line.is_empty())? {
                    None => return Ok(Part::More),
                    Some(true) => self.state = State::ChunkLength,
                    Some(false) => {
                        return Err(ResponseError::Malformed("a chunk is longer than it says"));
                    }
                },
                State::Trailers(so_far) => match self.line(bytes, |line| line.len())? {
                    None => return Ok(Part::More),
                    Some(0) => self.state = State::Ended,
                    Some(length) if so_far + length > MAX_HEAD_BYTES => {
                        return Err(ResponseError::TooLong("what follows the body"));
                    }
                    Some(length) => self.state = State::Trailers(so_far + length),
                },
            }
        }
    }

    /// The connection was closed by the server.
    ///
    /// # Errors
    /// `ResponseError` if the response is incomplete.
    pub fn closed(&mut self) -> Result<(), ResponseError> {
        match self.state {
            State::UntilClosed | State::Sized(0) | State::Ended => {
                self.state = State::Ended;
                Ok(())
            }
            State::Head { interim: 0 } if self.partial.is_empty() => Err(ResponseError::Closed),
            _ => Err(ResponseError::Cut),
        }
    }

    /// Reads a head, from where it lies if it is whole. What follows depends on it.
    fn head(&mut self, bytes: &mut &[u8]) -> Result<Option<Head>, ResponseError> {
        let before = self.partial.len();
        let parsed = if before == 0 {
            parse(bytes)?
        } else {
            let room = MAX_HEAD_BYTES.saturating_sub(before).min(bytes.len());
            self.partial.extend_from_slice(bytes.get(..room).unwrap_or_default());
            parse(&self.partial)?
        };
        let Some(parsed) = parsed else {
            if before == 0 {
                self.partial.extend_from_slice(bytes);
            }
            *bytes = &[];
            let fits = self.partial.len() < MAX_HEAD_BYTES;
            return if fits { Ok(None) } else { Err(ResponseError::TooLong("the head")) };
        };
        *bytes = bytes.get(parsed.bytes - before..).unwrap_or_default();
        self.partial.clear();
        (self.state, self.reusable) = (parsed.body, parsed.reusable);
        Ok(Some(parsed.head))
    }

    /// Reads a line up to its CRLF; `None` until it is whole.
    fn line<T>(
        &mut self,
        bytes: &mut &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, ResponseError> {
        let end = memchr::memchr(b'\n', bytes);
        let (start, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        *bytes = rest;
        if self.partial.len() + start.len() > MAX_LINE_BYTES {
            return Err(ResponseError::TooLong("a line between chunks"));
        }
        self.partial.extend_from_slice(start);
        if end.is_none() {
            return Ok(None);
        }
        let line = self.partial.strip_suffix(b"\r\n");
        let line = line.ok_or(ResponseError::Malformed("a line between chunks ends without CR"))?;
        let value = read(line);
        self.partial.clear();
        Ok(Some(value))
    }
}

/// Takes up to `left` bytes off the front. Also what then is left to take.
fn take<'a>(bytes: &mut &'a [u8], left: u64) -> (&'a [u8], u64) {
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    let (piece, rest) = bytes.split_at(count);
    *bytes = rest;
    (piece, left - count as u64)
}

/// A length in hexadecimal digits; extensions may follow.
fn chunk_length(line: &[u8]) -> Result<u64, ResponseError> {
    let length = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let digits = std::str::from_utf8(length).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.ok_or(ResponseError::Malformed("a chunk's length is no number"))
}

/// A whole head, how long it is and what follows.
struct Parsed {
    bytes: usize,
    head: Head,
    body: State,
    reusable: bool,
}

fn parse(bytes: &[u8]) -> Result<Option<Parsed>, ResponseError> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
        Ok(Status::Complete(_)) => return Err(ResponseError::TooLong("the head")),
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(ResponseError::TooLong("the head")),
        Err(_) => return Err(ResponseError::Malformed("the head can't be read")),
    };
    let status = response.code.unwrap_or_default();
    let mut head = Head { status, encoding: Encoding::Identity, length: None };
    let (mut chunked, mut close, mut keep) = (false, false, false);
    for header in response.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = content_length(value)?;
            if head.length.is_some_and(|other| other != length) {
                return Err(ResponseError::Malformed("it has two lengths"));
            }
            head.length = Some(length);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(ResponseError::Malformed("its transfer coding is not chunked"));
            }
            chunked = true;
        } else if header.name.eq_ignore_ascii_case("content-encoding") {
            head.encoding = match head.encoding {
                Encoding::Identity => encoding(value),
                Encoding::Gzip | Encoding::Other => Encoding::Other,
            };
        } else if header.name.eq_ignore_ascii_case("connection") {
            for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                close |= word.eq_ignore_ascii_case(b"close");
                keep |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        }
    }
    // HTTP/1.0 closes unless it says otherwise.
    let mut reusable = !close && (keep || response.version == Some(1));
    let body = match (chunked, head.length) {
        _ if matches!(status, 100..200) => State::Head { interim: 0 },
        _ if matches!(status, 204 | 304) => State::Ended,
        (true, length) => {
            // Chunks count, but whoever sends both may mean something else by it.
            reusable &= length.is_none();
            head.length = None;
            State::ChunkLength
        }
        (false, Some(length)) => State::Sized(length),
        (false, None) => {
            reusable = false;
            State::UntilClosed
        }
    };
    Ok(Some(Parsed { bytes: length, head, body, reusable }))
}

fn content_length(value: &[u8]) -> Result<u64, ResponseError> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    length.ok_or(ResponseError::Malformed("its length is no number"))
}

fn encoding(value: &[u8]) -> Encoding {
    let is = |name: &[u8]| value.eq_ignore_ascii_case(name);
    if value.is_empty() || is(b"identity") {
        Encoding::Identity
    } else if is(b"gzip") || is(b"x-gzip") {
        Encoding::Gzip
    } else {
        Encoding::Other
    }
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
