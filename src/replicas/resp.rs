//! RESP3, the protocol of Redis and Valkey: commands are written, values are read. No I/O.
//!
//! A server may send anything: lengths, depth and number of values have bounds, and what breaks them is an
//! error, never memory. A text that is too long is none of a replica: it is left out, and what is behind it is read.

use std::ops::Range;

use bytes::{Buf, BufMut, BytesMut};

/// Bytes of one text at most. No replica sends larger messages.
pub(super) const MOST_TEXT: usize = 1 << 20;

/// Bytes of a text that always has room: a page of entries as replicas add them.
const SHORT_TEXT: usize = 64 << 10;

/// Bytes of one reply behind which only short texts are read, so that the rest of it has room.
const MOST_TEXTS: usize = 2 << 20;

/// Values of one reply at most, counting those within others.
const MOST_VALUES: usize = 4096;

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
    /// Text that is left out: its place, and how much of it has still to come.
    skipped: Option<(usize, usize)>,
}

impl Decoder {
    /// The next value; `None`: it isn't complete yet. In place of a text that is too long is [`Value::Null`].
    ///
    /// # Errors
    /// `Malformed` if the bytes are no RESP3, or a value is above its limit.
    pub(super) fn next(&mut self) -> Result<Option<Value>, Malformed> {
        loop {
            if !self.skip() {
                return Ok(None);
            }
            let mut reader = Reader { bytes: &self.bytes, whole: self.bytes.len(), values: 0 };
            match reader.value(0) {
                Ok(value) => {
                    let read = self.bytes.len() - reader.bytes.len();
                    self.bytes.advance(read);
                    return Ok(Some(value));
                }
                Err(Stop::TooLong { header, length }) => {
                    let behind = self.bytes.split_off(header.end);
                    self.bytes.truncate(header.start);
                    self.bytes.put_u8(b'_');
                    self.skipped = Some((self.bytes.len(), length));
                    self.bytes.unsplit(behind);
                }
                Err(Stop::Incomplete) if self.bytes.len() > MOST_REPLY => {
                    return Err(Malformed("a reply is too long"));
                }
                Err(Stop::Incomplete) => return Ok(None),
                Err(Stop::Malformed(error)) => return Err(error),
            }
        }
    }

    /// Drops what is there of a text that is left out. Returns `true` once nothing of it has still to come.
    fn skip(&mut self) -> bool {
        let Some((at, left)) = self.skipped.take() else { return true };
        let mut behind = self.bytes.split_off(at);
        let here = left.min(behind.len());
        behind.advance(here);
        self.bytes.unsplit(behind);
        if here < left {
            self.skipped = Some((at, left - here));
        }
        here == left
    }
}

/// Reason to stop before the end of a value.
enum Stop {
    Incomplete,
    /// A text is too long: where its type and length are, and its bytes.
    TooLong {
        header: Range<usize>,
        length: usize,
    },
    Malformed(Malformed),
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
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        self.values += 1;
        if self.values > MOST_VALUES || depth > MOST_DEPTH {
            return malformed("a reply has too many values");
        }
        let (&sign, rest) = self.bytes.split_first().ok_or(Stop::Incomplete)?;
        self.bytes = rest;
        Ok(match sign {
            b'+' | b',' | b'(' => Value::Text(self.line()?.to_vec()),
            b'-' => Value::Error(self.line()?.to_vec()),
            b':' => Value::Integer(self.number()?),
            b'_' if self.line()?.is_empty() => Value::Null,
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
        let Ok(length) = usize::try_from(self.number()?) else { return Ok(None) };
        if length > MOST_VALUES {
            return malformed("a list is too long");
        }
        (0..length * each).map(|_| self.value(depth + 1)).collect::<Result<_, _>>().map(Some)
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
        if length > MOST_TEXT || (length > SHORT_TEXT && header.end + length > MOST_TEXTS) {
            return Err(Stop::TooLong { header, length });
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<Value>, Malformed> {
        Decoder { bytes: bytes.into(), ..Decoder::default() }.next()
    }

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn commands_are_lists_of_texts() {
        let mut out = Vec::new();
        command(&[b"PUBLISH", b"c", b"a\r\nb"], &mut out);
        assert_eq!(out, b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$4\r\na\r\nb\r\n");
    }

    #[test]
    fn every_type_is_read_and_needs_all_its_bytes() {
        let table: [(&[u8], Value); 14] = [
            (b"+OK\r\n", text("OK")),
            (b"-NOAUTH no\r\n", Value::Error(b"NOAUTH no".to_vec())),
            (b":-3\r\n", Value::Integer(-3)),
            (b"_\r\n", Value::Null),
            (b"#t\r\n", Value::Integer(1)),
            (b",1.5\r\n", text("1.5")),
            (b"$3\r\na\r\n\r\n", Value::Text(b"a\r\n".to_vec())),
            (b"$-1\r\n", Value::Null),
            (b"*-1\r\n", Value::Null),
            (b"!5\r\nERR x\r\n", Value::Error(b"ERR x".to_vec())),
            (b"=5\r\ntxt:a\r\n", text("a")),
            (b"*2\r\n:1\r\n*1\r\n+a\r\n", Value::List(vec![Value::Integer(1), Value::List(vec![text("a")])])),
            (b"%1\r\n+role\r\n+master\r\n", Value::List(vec![text("role"), text("master")])),
            (b">2\r\n+message\r\n$1\r\nx\r\n", Value::Push(vec![text("message"), text("x")])),
        ];
        for (bytes, value) in table {
            assert_eq!(read(bytes), Ok(Some(value)), "{bytes:?}");
            for length in 0..bytes.len() {
                assert_eq!(read(&bytes[..length]), Ok(None), "{bytes:?} {length}");
            }
        }
        let map = read(b"%2\r\n+mode\r\n+standalone\r\n+role\r\n+replica\r\n").unwrap().unwrap();
        assert_eq!((map.field(b"role"), map.field(b"none")), (Some(&b"replica"[..]), None));
    }

    #[test]
    fn values_follow_each_other() {
        let mut decoder = Decoder { bytes: BytesMut::from(&b":1\r\n:2\r\n:"[..]), ..Decoder::default() };
        assert_eq!(decoder.next(), Ok(Some(Value::Integer(1))));
        assert_eq!(decoder.next(), Ok(Some(Value::Integer(2))));
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(&decoder.bytes[..], b":");
    }

    #[test]
    fn replies_beyond_the_bounds_are_refused_before_they_are_there() {
        let deep = b"*1\r\n".repeat(MOST_DEPTH + 2);
        let many = b"*4096\r\n".repeat(MOST_DEPTH);
        let line = [b"+".to_vec(), b"x".repeat(MOST_LINE + 2)].concat();
        for bytes in
            [&b"*1000000000\r\n"[..], b"*999999999999\r\n", b"%5000\r\n", &deep, &line, b"?1\r\n", b":x\r\n"]
        {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        assert!(read(b"$1\r\nabc").is_err());
        assert!(read(&many).is_ok(), "a depth that is allowed, and incomplete");
        let text = [&b"$65000\r\n"[..], &b"x".repeat(65_000), b"\r\n"].concat();
        let bytes = [&b">70\r\n"[..], &text.repeat(69)].concat();
        assert_eq!(read(&bytes), Err(Malformed("a reply is too long")));
    }

    #[test]
    fn texts_that_are_too_long_are_left_out_without_being_kept() {
        let long =
            |length: usize| [format!("${length}\r\n").as_bytes(), &b"x".repeat(length), b"\r\n"].concat();
        // Of those that have room the first two do, and a short one behind them does.
        let parts = [
            b">6\r\n".to_vec(),
            long(5 << 20),
            long(900_000),
            long(900_000),
            long(900_000),
            long(65_536),
            long(3),
        ];
        let bytes = [&parts.concat()[..], b":7\r\n"].concat();
        for piece in [1000, 65_536, bytes.len()] {
            let (mut decoder, mut read) = (Decoder::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                decoder.bytes.extend_from_slice(piece);
                read.extend(decoder.next().unwrap());
                assert!(decoder.bytes.len() <= MOST_REPLY || piece.len() > MOST_REPLY);
            }
            read.extend(decoder.next().unwrap());
            let lengths = |value: &Value| value.text().map(<[u8]>::len);
            let [Value::Push(texts), Value::Integer(7)] = &read[..] else { panic!("{}", read.len()) };
            let expected = [None, Some(900_000), Some(900_000), None, Some(65_536), Some(3)];
            assert_eq!(texts.iter().map(lengths).collect::<Vec<_>>(), expected);
        }
        let lie = [&b"$2000000\r\n"[..], &b"x".repeat(2_000_000), b"xx\r\n"].concat();
        assert!(read(&lie).is_err(), "it does not end where it says");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = Decoder { bytes: bytes[..].into(), ..Decoder::default() };
            while let Ok(Some(_)) = decoder.next() {}
        }

        #[test]
        fn bytes_that_look_like_replies_are_read_or_refused(
            parts in proptest::collection::vec(
                proptest::sample::select(vec!["*2\r\n", "$3\r\n", "abc\r\n", ">1\r\n", "%1\r\n", "-ERR\r\n", ":9\r\n", "\r\n", "=2\r\n", "$-1\r\n"]),
                0..40,
            ),
        ) {
            let mut decoder = Decoder { bytes: parts.concat().as_bytes().into(), ..Decoder::default() };
            while let Ok(Some(_)) = decoder.next() {}
        }
    }
}
