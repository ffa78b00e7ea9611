//! RESP3, the protocol of Redis and Valkey: commands are written, values are read. No I/O.
//!
//! A server may send anything: lengths, depth and number of values have bounds, and what breaks them is an
//! error, never memory. A text or list that is too long is none of a replica: it is left out, and what is behind it is read.

use std::ops::Range;

use bytes::{Buf, BytesMut};

/// Bytes of one text at most. No replica sends larger messages.
pub(super) const MOST_TEXT: usize = 1 << 20;

/// Bytes of the longest text of a replica.
const LONGEST_SENT: usize = 64 << 10;

/// Bytes of one reply up to which a text has room, by its length: long texts, then a page of entries as replicas add
/// them, then the ids of entries that somebody else added.
const ROOMS: [(usize, usize); 3] = [(2 << 20, MOST_TEXT), (3 << 20, LONGEST_SENT), (MOST_REPLY, 64)];

/// Values of one reply at most, counting those within others.
const MOST_VALUES: usize = 4096;

/// Values of a list that always has room: a page of entries, and an entry as replicas add it.
const SHORT_LIST: usize = 16;

/// Values of one reply behind which only short lists are read, so that the rest of it has room.
const MOST_LISTS: usize = MOST_VALUES / 2;

/// Values of a list at most that is left out: the arguments of a command.
const MOST_SKIPPED: usize = 1 << 20;

/// Lists within lists.
const MOST_DEPTH: usize = 8;

/// Bytes of a line that is a number or a short text, without its end.
const MOST_LINE: usize = 4096;

/// Bytes of one reply at most.
const MOST_REPLY: usize = 4 << 20;

/// A value of the server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// Simple, bulk and verbatim texts, and numbers that are no integers.
    Text(Vec<u8>),
    /// Refusal of a command: a code in capital letters, and words.
    Error(Vec<u8>),
    /// A whole number; booleans are 0 and 1.
    Integer(i64),
    /// Nothing.
    Null,
    /// A text or list that is too long and was left out: its bytes.
    LeftOut(u64),
    /// Lists and sets; maps have keys and values in turn.
    List(Vec<Value>),
    /// Message that no command asked for, or the confirmation of a subscription.
    Push(Vec<Value>),
}

impl Value {
    /// The bytes of a text.
    pub(super) fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text behind a key of a map.
    pub(super) fn field(&self, key: &[u8]) -> Option<&[u8]> {
        let Self::List(values) = self else { return None };
        let pairs = values.chunks_exact(2);
        let mut found = pairs.filter(|pair| pair.first().and_then(Self::text) == Some(key));
        found.next()?.get(1)?.text()
    }
}

/// Error in bytes that are no RESP3, or more of it than is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(&'static str);

/// Writes a command with its arguments.
pub(super) fn command(arguments: &[&[u8]], out: &mut Vec<u8>) {
    let length = |sign: u8, length: usize, out: &mut Vec<u8>| {
        out.push(sign);
        out.extend_from_slice(length.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    length(b'*', arguments.len(), out);
    for argument in arguments {
        length(b'$', argument.len(), out);
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// Bytes of a connection, of which whole values are taken.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    pub(super) bytes: BytesMut,
    skipped: Option<Skipped>,
    /// Places among the bytes of what stands for a part that was left out, the first one first, and the bytes of each.
    left_out: Vec<(usize, u64)>,
}

/// Part of a reply that is left out.
#[derive(Debug)]
struct Skipped {
    /// Its place among the bytes.
    at: usize,
    /// Bytes of a text that have still to come.
    bytes: usize,
    /// Values behind these that have still to come.
    values: usize,
}

impl Decoder {
    /// The next value; `None`: it isn't complete yet.
    ///
    /// # Errors
    /// `Malformed` if the bytes are no RESP3, or a value is above its limit.
    pub(super) fn next(&mut self) -> Result<Option<Value>, Malformed> {
        loop {
            if !self.skip()? {
                return Ok(None);
            }
            let mut reader = Reader::of(&self.bytes, &self.left_out);
            match reader.value(0) {
                Ok(value) => {
                    let read = reader.read();
                    self.bytes.advance(read);
                    self.left_out.clear();
                    return Ok(Some(value));
                }
                Err(Stop::TooLong { header, part }) => {
                    // The end of a text is the end of what stands for it.
                    let (mark, bytes, values): (&[u8], _, _) = match part {
                        Part::Text(length) => (b"_", length, 0),
                        Part::List(values) => (b"_\r\n", 0, values),
                    };
                    let at = header.start + mark.len();
                    self.bytes[header.start..at].copy_from_slice(mark);
                    self.cut(at..header.end);
                    self.left_out.push((header.start, 0));
                    self.skipped = Some(Skipped { at, bytes, values });
                }
                Err(Stop::Incomplete) if self.bytes.len() > MOST_REPLY => {
                    return Err(Malformed("a reply is too long"));
                }
                Err(Stop::Incomplete) => return Ok(None),
                Err(Stop::Malformed(error)) => return Err(error),
            }
        }
    }

    /// Drops what is there of a part that is left out. Returns `true` once nothing of it has still to come.
    fn skip(&mut self) -> Result<bool, Malformed> {
        let Some(mut skipped) = self.skipped.take() else { return Ok(true) };
        let mut behind = &self.bytes[skipped.at..];
        let is_over = skipped.drop_from(&mut behind)?;
        let end = self.bytes.len() - behind.len();
        self.count(end - skipped.at);
        self.cut(skipped.at..end);
        if !is_over {
            self.skipped = Some(skipped);
        }
        Ok(is_over)
    }

    /// Received part of an incomplete value, if a part of it is left out, or it ends within a text longer than any of a
    /// replica. The rest must not be read.
    pub(super) fn cut_short(&mut self) -> Option<Value> {
        if let Some(Skipped { at, bytes, .. }) = self.skipped.take() {
            self.count(bytes);
            self.bytes.truncate(at);
            if self.bytes.ends_with(b"_") {
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
        if let Err(Stop::TooLong { header, part: Part::Text(length) }) = self.cut_value() {
            self.bytes.truncate(header.start);
            self.bytes.extend_from_slice(b"_\r\n");
            self.left_out.push((header.start, length as u64));
        }
        self.cut_value().ok().filter(|_| !self.left_out.is_empty())
    }

    fn cut_value(&self) -> Result<Value, Stop> {
        Reader { is_cut: true, ..Reader::of(&self.bytes, &self.left_out) }.value(0)
    }

    /// Adds bytes to those of the last part that was left out.
    fn count(&mut self, bytes: usize) {
        if let Some((_, counted)) = self.left_out.last_mut() {
            *counted = counted.saturating_add(bytes as u64);
        }
    }

    /// Takes bytes out, without a copy of those before them.
    fn cut(&mut self, cut: Range<usize>) {
        let left = self.bytes.len() - cut.len();
        self.bytes.copy_within(cut.end.., cut.start);
        self.bytes.truncate(left);
    }
}

impl Skipped {
    /// Drops what is there, in one step each for the bytes of a text and for a value. Returns `true` at its end.
    fn drop_from(&mut self, behind: &mut &[u8]) -> Result<bool, Malformed> {
        loop {
            let here = self.bytes.min(behind.len());
            behind.advance(here);
            self.bytes -= here;
            if self.bytes > 0 || self.values == 0 {
                return Ok(self.bytes == 0);
            }
            let mut reader = Reader::of(behind, &[]);
            let (bytes, values) = match reader.header() {
                Ok(left) => left,
                Err(Stop::Malformed(error)) => return Err(error),
                Err(_) => return Ok(false),
            };
            let read = reader.read();
            behind.advance(read);
            self.bytes = bytes;
            self.values = (self.values - 1).saturating_add(values);
            if self.values > MOST_SKIPPED {
                return Err(LONG_LIST);
            }
        }
    }
}

const LONG_LIST: Malformed = Malformed("a list is too long");

/// Reason to stop before the end of a value.
enum Stop {
    Incomplete,
    /// A text or list is too long: where its type and length are, and what it has behind them.
    TooLong {
        header: Range<usize>,
        part: Part,
    },
    Malformed(Malformed),
}

/// Text of so many bytes, or list of so many values.
enum Part {
    Text(usize),
    List(usize),
}

fn malformed<T>(text: &'static str) -> Result<T, Stop> {
    Err(Stop::Malformed(Malformed(text)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// Bytes before any was read.
    whole: usize,
    /// Values begun.
    values: usize,
    /// Places and sizes of left-out texts, as in the [`Decoder`].
    left_out: &'a [(usize, u64)],
    /// Nothing follows the bytes: lists end with them, and a long text that does is left out.
    is_cut: bool,
}

impl<'a> Reader<'a> {
    fn of(bytes: &'a [u8], left_out: &'a [(usize, u64)]) -> Self {
        Self { bytes, whole: bytes.len(), values: 0, left_out, is_cut: false }
    }

    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        self.values += 1;
        if self.values > MOST_VALUES || depth > MOST_DEPTH {
            return malformed("a reply has too many values");
        }
        let at = self.read();
        let (&sign, rest) = self.bytes.split_first().ok_or(Stop::Incomplete)?;
        self.bytes = rest;
        Ok(match sign {
            b'+' | b',' | b'(' => Value::Text(self.line()?.to_vec()),
            b'-' => Value::Error(self.line()?.to_vec()),
            b':' => Value::Integer(self.number()?),
            b'_' if self.line()?.is_empty() => {
                let found = self.left_out.binary_search_by_key(&at, |(place, _)| *place);
                found.map_or(Value::Null, |found| Value::LeftOut(self.left_out[found].1))
            }
            b'_' => return malformed("nothing is something, or a text does not end where it says"),
            b'#' => Value::Integer(i64::from(self.line()? == b"t")),
            b'$' => self.bulk()?.map_or(Value::Null, |text| Value::Text(text.to_vec())),
            b'!' => self.bulk()?.map_or(Value::Null, |text| Value::Error(text.to_vec())),
            // Three letters and a colon before the text say how to show it.
            b'=' => {
                self.bulk()?.map_or(Value::Null, |text| Value::Text(text.iter().skip(4).copied().collect()))
            }
            b'*' | b'~' => self.list(depth, 1)?.map_or(Value::Null, Value::List),
            b'%' => self.list(depth, 2)?.map_or(Value::Null, Value::List),
            b'>' => self.list(depth, 1)?.map_or(Value::Null, Value::Push),
            _ => return malformed("no type of RESP3 begins like this"),
        })
    }

    /// Values of a list, `each` per element.
    fn list(&mut self, depth: usize, each: usize) -> Result<Option<Vec<Value>>, Stop> {
        // Behind the type.
        let start = self.read() - 1;
        let Ok(length) = usize::try_from(self.number()?) else { return Ok(None) };
        let length = length.saturating_mul(each);
        if length > MOST_SKIPPED {
            return Err(Stop::Malformed(LONG_LIST));
        }
        if length > SHORT_LIST && self.values + length > MOST_LISTS {
            return Err(Stop::TooLong { header: start..self.read(), part: Part::List(length) });
        }
        let mut values = Vec::new();
        for _ in 0..length {
            match self.value(depth + 1) {
                Err(Stop::Incomplete) if self.is_cut => break,
                value => values.push(value?),
            }
        }
        Ok(Some(values))
    }

    /// Length of a value that is left out: bytes of a text with its end, values of a list.
    fn header(&mut self) -> Result<(usize, usize), Stop> {
        let (&sign, rest) = self.bytes.split_first().ok_or(Stop::Incomplete)?;
        self.bytes = rest;
        let each = match sign {
            b'$' | b'!' | b'=' => {
                let length = usize::try_from(self.number()?).ok();
                return Ok((length.map_or(0, |length| length.saturating_add(2)), 0));
            }
            b'*' | b'~' | b'>' => 1,
            b'%' => 2,
            _ => {
                self.line()?;
                return Ok((0, 0));
            }
        };
        let length = usize::try_from(self.number()?).unwrap_or(0);
        Ok((0, length.saturating_mul(each)))
    }

    /// Bytes that were read.
    fn read(&self) -> usize {
        self.whole - self.bytes.len()
    }

    fn bulk(&mut self) -> Result<Option<&'a [u8]>, Stop> {
        // Behind the type.
        let start = self.read() - 1;
        let Ok(length) = usize::try_from(self.number()?) else { return Ok(None) };
        let header = start..self.read();
        let has_room =
            |(end, most): &(usize, usize)| length <= *most && header.end.saturating_add(length) <= *end;
        let is_cut = self.is_cut && length > LONGEST_SENT && self.bytes.len() < length.saturating_add(2);
        if is_cut || !ROOMS.iter().any(has_room) {
            return Err(Stop::TooLong { header, part: Part::Text(length) });
        }
        let (text, rest) = self.bytes.split_at_checked(length).ok_or(Stop::Incomplete)?;
        let (end, rest) = rest.split_at_checked(2).ok_or(Stop::Incomplete)?;
        if end != b"\r\n" {
            return malformed("a text does not end where it says");
        }
        self.bytes = rest;
        Ok(Some(text))
    }

    fn number(&mut self) -> Result<i64, Stop> {
        let line = self.line()?;
        let number = std::str::from_utf8(line).ok().and_then(|line| line.parse().ok());
        number.map_or_else(|| malformed("a number is none"), Ok)
    }

    /// Bytes up to the end of the line, which is read, too.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let within = self.bytes.get(..MOST_LINE + 2).unwrap_or(self.bytes);
        let Some(end) = within.windows(2).position(|end| end == b"\r\n") else {
            let is_long = within.len() > MOST_LINE;
            return if is_long { malformed("a line is too long") } else { Err(Stop::Incomplete) };
        };
        let (line, rest) = self.bytes.split_at(end);
        self.bytes = rest.get(2..).unwrap_or_default();
        Ok(line)
    }
}

#[cfg(test)]
#[path = "resp_tests.rs"]
mod tests;
