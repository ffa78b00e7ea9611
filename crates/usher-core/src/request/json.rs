//! An incremental JSON scanner: it takes a body chunk by chunk as it arrives,
//! checks the grammar and reports to a [`Sink`] where the values are. It builds no
//! tree, copies no text and does not recurse, so neither the size nor the depth
//! of the input decides how much memory it takes.
//!
//! Text is checked as llm-d-router checks it: control characters and broken escapes
//! are errors, bytes that are not UTF-8 are passed on.

use std::fmt;

use super::body::Span;
use super::text::plain_run;

/// Deepest nesting of containers, llm-d-router's limit.
pub const MAX_DEPTH: usize = 10_000;

/// Part of a scalar that a [`Sink`] sees when it is split over chunks.
const HEAD: usize = 64;

/// A token that the scanner found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// `{`
    ObjectStart,
    /// `}`
    ObjectEnd,
    /// `[`
    ArrayStart,
    /// `]`
    ArrayEnd,
    /// The name of a member; the span is between the quotes.
    Key,
    /// A string; the span is between the quotes.
    String {
        /// `true` if it holds a backslash.
        escaped: bool,
    },
    /// A number.
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// `null`
    Null,
}

/// Receives the tokens of a document in order.
pub trait Sink {
    /// One token. `head` is its raw text (without quotes): all of it up to 64
    /// bytes; beyond that compare its length with the span's. Empty for brackets.
    fn token(&mut self, token: Token, span: Span, head: &[u8]);
}

/// Error of a body that is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Offset of the byte that is wrong.
    pub offset: usize,
    /// Kind of the error.
    pub kind: JsonErrorKind,
}

/// Kinds of JSON errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonErrorKind {
    /// The body ended inside a value.
    UnexpectedEnd,
    /// A byte that is not allowed here.
    Unexpected(u8),
    /// A control character inside a string.
    ControlCharacter(u8),
    /// More than [`MAX_DEPTH`] containers inside each other.
    TooDeep,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.offset;
        match self.kind {
            JsonErrorKind::UnexpectedEnd => write!(f, "it ends after {at} bytes, inside a value"),
            // The byte is shown escaped: it is the client's, and may be anything.
            JsonErrorKind::Unexpected(byte) => {
                write!(f, "unexpected '{}' at byte {at}", byte.escape_ascii())
            }
            JsonErrorKind::ControlCharacter(byte) => {
                write!(f, "control character 0x{byte:02x} inside a string at byte {at}; escape it")
            }
            JsonErrorKind::TooDeep => write!(f, "more than {MAX_DEPTH} levels of nesting at byte {at}"),
        }
    }
}

impl std::error::Error for JsonError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    String { key: bool, escape: Escape },
    Number(Number),
    Literal { token: Token, rest: &'static [u8] },
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    No,
    Backslash,
    Hex(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    /// The state after one more byte; `None` when the byte is not part of a number.
    fn next(self, byte: u8) -> Option<Self> {
        use Number::{Exponent, ExponentDigits, ExponentSign, Fraction, Integer, Minus, Point, Zero};
        match (self, byte) {
            (Minus, b'0') => Some(Zero),
            (Minus, b'1'..=b'9') | (Integer, b'0'..=b'9') => Some(Integer),
            (Zero | Integer, b'.') => Some(Point),
            (Point | Fraction, b'0'..=b'9') => Some(Fraction),
            (Zero | Integer | Fraction, b'e' | b'E') => Some(Exponent),
            (Exponent, b'+' | b'-') => Some(ExponentSign),
            (Exponent | ExponentSign | ExponentDigits, b'0'..=b'9') => Some(ExponentDigits),
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits)
    }
}

/// The scanner's state between two chunks.
#[derive(Debug)]
pub struct Scanner {
    state: State,
    /// Open containers, one bit each: 1 for an object.
    stack: Vec<u64>,
    depth: usize,
    offset: usize,
    /// Offset of the current scalar.
    start: usize,
    escaped: bool,
    /// The beginning of a scalar that was split over chunks.
    carried: Vec<u8>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            state: State::Value,
            stack: Vec::new(),
            depth: 0,
            offset: 0,
            start: 0,
            escaped: false,
            carried: Vec::new(),
        }
    }
}

impl Scanner {
    /// A scanner of a document that begins at this offset; spans count from there.
    pub(super) fn at(offset: usize) -> Self {
        Self { offset, ..Self::default() }
    }

    /// Begins a document anew, also after an error, and keeps what is allocated.
    pub(super) fn restart(&mut self) {
        (self.state, self.depth, self.offset) = (State::Value, 0, 0);
    }

    /// Scans the next chunk.
    ///
    /// # Errors
    /// `JsonError` at the first byte that violates the grammar. The scanner must not be used after that.
    pub fn feed(&mut self, chunk: &[u8], sink: &mut impl Sink) -> Result<(), JsonError> {
        let base = self.offset;
        let mut at = 0;
        while at < chunk.len() {
            let byte = chunk[at];
            match self.state {
                State::String { key, escape: Escape::No } => {
                    at += plain_run(&chunk[at..]);
                    // Most escapes are line ends and quotes, and whole.
                    while let [b'\\', b'n' | b'"', rest @ ..] = &chunk[at..] {
                        self.escaped = true;
                        at += 2 + plain_run(rest);
                    }
                    let Some(&stop) = chunk.get(at) else { break };
                    match stop {
                        b'"' => {
                            let token =
                                if key { Token::Key } else { Token::String { escaped: self.escaped } };
                            self.scalar(token, base, at, chunk, sink);
                            self.state = if key { State::Colon } else { self.after_value() };
                        }
                        b'\\' => {
                            self.escaped = true;
                            self.state = State::String { key, escape: Escape::Backslash };
                        }
                        control => return Err(error(base + at, JsonErrorKind::ControlCharacter(control))),
                    }
                    at += 1;
                }
                State::String { key, escape: Escape::Backslash } => {
                    let escape = match byte {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Escape::No,
                        b'u' => Escape::Hex(4),
                        _ => return Err(error(base + at, JsonErrorKind::Unexpected(byte))),
                    };
                    self.state = State::String { key, escape };
                    at += 1;
                }
                State::String { key, escape: Escape::Hex(left) } => {
                    if !byte.is_ascii_hexdigit() {
                        return Err(error(base + at, JsonErrorKind::Unexpected(byte)));
                    }
                    let escape = if left == 1 { Escape::No } else { Escape::Hex(left - 1) };
                    self.state = State::String { key, escape };
                    at += 1;
                }
                State::Number(number) => match number.next(byte) {
                    Some(next) => {
                        self.state = State::Number(next);
                        at += 1;
                    }
                    None if number.may_end() => {
                        self.scalar(Token::Number, base, at, chunk, sink);
                        self.state = self.after_value();
                    }
                    None => return Err(error(base + at, JsonErrorKind::Unexpected(byte))),
                },
                State::Literal { token, rest } => {
                    if rest.first() != Some(&byte) {
                        return Err(error(base + at, JsonErrorKind::Unexpected(byte)));
                    }
                    at += 1;
                    if rest.len() == 1 {
                        self.scalar(token, base, at, chunk, sink);
                        self.state = self.after_value();
                    } else {
                        self.state = State::Literal { token, rest: &rest[1..] };
                    }
                }
                _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => at += 1,
                _ => {
                    self.structure(byte, base + at, sink)?;
                    at += 1;
                }
            }
        }
        self.offset = base + chunk.len();
        if matches!(self.state, State::String { .. } | State::Number(_) | State::Literal { .. }) {
            let room = HEAD - self.carried.len();
            let from = self.start.max(base) - base;
            let part = chunk.get(from..).unwrap_or_default();
            self.carried.extend_from_slice(&part[..part.len().min(room)]);
        }
        Ok(())
    }

    /// Ends the document.
    ///
    /// # Errors
    /// `JsonError` if the document is incomplete.
    pub fn finish(&mut self, sink: &mut impl Sink) -> Result<(), JsonError> {
        if let State::Number(number) = self.state
            && number.may_end()
            && self.depth == 0
        {
            self.scalar(Token::Number, self.offset, 0, &[], sink);
            self.state = State::Done;
        }
        if self.state == State::Done { Ok(()) } else { Err(error(self.offset, JsonErrorKind::UnexpectedEnd)) }
    }

    /// Returns `true` if the document is complete; only white space may follow.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// A byte that is outside of scalars and not white space.
    fn structure(&mut self, byte: u8, offset: usize, sink: &mut impl Sink) -> Result<(), JsonError> {
        let here = Span { start: offset, end: offset + 1 };
        match (self.state, byte) {
            (State::Value | State::ValueOrEnd, b'{') => {
                self.open(true, offset)?;
                sink.token(Token::ObjectStart, here, &[]);
                self.state = State::KeyOrEnd;
            }
            (State::Value | State::ValueOrEnd, b'[') => {
                self.open(false, offset)?;
                sink.token(Token::ArrayStart, here, &[]);
                self.state = State::ValueOrEnd;
            }
            (State::Value | State::ValueOrEnd, b'"') => {
                self.begin(offset + 1, State::String { key: false, escape: Escape::No })
            }
            (State::Key | State::KeyOrEnd, b'"') => {
                self.begin(offset + 1, State::String { key: true, escape: Escape::No })
            }
            (State::Value | State::ValueOrEnd, b'-') => self.begin(offset, State::Number(Number::Minus)),
            (State::Value | State::ValueOrEnd, b'0') => self.begin(offset, State::Number(Number::Zero)),
            (State::Value | State::ValueOrEnd, b'1'..=b'9') => {
                self.begin(offset, State::Number(Number::Integer))
            }
            (State::Value | State::ValueOrEnd, b't') => {
                self.begin(offset, State::Literal { token: Token::True, rest: b"rue" })
            }
            (State::Value | State::ValueOrEnd, b'f') => {
                self.begin(offset, State::Literal { token: Token::False, rest: b"alse" })
            }
            (State::Value | State::ValueOrEnd, b'n') => {
                self.begin(offset, State::Literal { token: Token::Null, rest: b"ull" })
            }
            (State::Colon, b':') => self.state = State::Value,
            (State::CommaOrEnd, b',') => {
                self.state = if self.in_object() { State::Key } else { State::Value };
            }
            (State::CommaOrEnd | State::KeyOrEnd, b'}') if self.in_object() => {
                self.depth -= 1;
                sink.token(Token::ObjectEnd, here, &[]);
                self.state = self.after_value();
            }
            (State::CommaOrEnd | State::ValueOrEnd, b']') if !self.in_object() => {
                self.depth -= 1;
                sink.token(Token::ArrayEnd, here, &[]);
                self.state = self.after_value();
            }
            _ => return Err(error(offset, JsonErrorKind::Unexpected(byte))),
        }
        Ok(())
    }

    fn begin(&mut self, start: usize, state: State) {
        self.start = start;
        self.escaped = false;
        self.carried.clear();
        self.state = state;
    }

    /// Reports a scalar that ends before `chunk[end]`.
    fn scalar(&mut self, token: Token, base: usize, end: usize, chunk: &[u8], sink: &mut impl Sink) {
        let span = Span { start: self.start, end: base + end };
        if self.start >= base {
            let text = &chunk[self.start - base..end];
            sink.token(token, span, &text[..text.len().min(HEAD)]);
        } else {
            let room = HEAD - self.carried.len();
            self.carried.extend_from_slice(&chunk[..end.min(room)]);
            sink.token(token, span, &self.carried);
        }
    }

    fn after_value(&self) -> State {
        if self.depth == 0 { State::Done } else { State::CommaOrEnd }
    }

    fn open(&mut self, object: bool, offset: usize) -> Result<(), JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(error(offset, JsonErrorKind::TooDeep));
        }
        let (word, bit) = (self.depth / 64, 1u64 << (self.depth % 64));
        if word == self.stack.len() {
            self.stack.push(0);
        }
        if object {
            self.stack[word] |= bit;
        } else {
            self.stack[word] &= !bit;
        }
        self.depth += 1;
        Ok(())
    }

    fn in_object(&self) -> bool {
        let Some(top) = self.depth.checked_sub(1) else { return false };
        self.stack[top / 64] & (1 << (top % 64)) != 0
    }
}

fn error(offset: usize, kind: JsonErrorKind) -> JsonError {
    JsonError { offset, kind }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
