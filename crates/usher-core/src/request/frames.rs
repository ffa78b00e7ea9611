//! gRPC frames and the protobuf messages in them, scanned chunk by chunk as they
//! arrive. Nothing is collected: a [`FrameSink`] gets each field, and says
//! whether to look inside. How deep that goes is up to it, and bounded.

use super::body::Span;
use super::error::ParseError;

/// Messages inside of each other that are looked into, the frame's own included.
pub(super) const MAX_DEPTH: usize = 4;
/// Bytes before a message: a flag for compression and the length.
const HEAD: usize = 5;

/// Treatment of a length-delimited field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enter {
    /// Skip it: the field is unknown, or its place is enough.
    Skip,
    /// Pass on the fields of the message. Deeper than [`MAX_DEPTH`] it is skipped.
    Message,
    /// Hand over its bytes.
    Bytes,
}

/// Error of a frame that can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameError {
    /// Compressed, or not a frame.
    Flag(u8),
    /// Not a protobuf message.
    Malformed,
}

/// Checks the result of a request's only frame; `None` stands for one that did not end.
pub(super) fn first_frame(result: Option<Result<(), FrameError>>) -> Result<(), ParseError> {
    let problem = match result {
        Some(Ok(())) => return Ok(()),
        Some(Err(FrameError::Flag(1))) => "the message is compressed; send it as it is",
        Some(Err(FrameError::Flag(_))) => "the body does not begin with a frame",
        Some(Err(FrameError::Malformed)) => "the frame holds no protobuf message",
        None => "the frame is cut off",
    };
    Err(ParseError::Grpc(problem))
}

/// Receives what frames hold. A `path` is the numbers of the fields from the frame's
/// message down to this one.
pub(super) trait FrameSink {
    /// A number, and where its field is, from its key to its end.
    fn number(&mut self, path: &[u32], value: u64, span: Span);

    /// A field with a length, before its content.
    fn open(&mut self, path: &[u32], span: Span) -> Enter;

    /// The next bytes of a field that was [entered](Enter::Bytes) for them.
    fn bytes(&mut self, _piece: &[u8]) {}

    /// The end of a frame, or why the rest of it is not read.
    fn frame(&mut self, result: Result<(), FrameError>);
}

/// The scanner's state between two chunks.
#[derive(Debug)]
pub(super) struct Frames {
    state: State,
    /// Bytes before the next one.
    at: usize,
    /// Bytes before the key of the field.
    key_at: usize,
    /// Ends of the open messages, and the fields that they are in: the frame's own first,
    /// which is in none.
    ends: [usize; MAX_DEPTH],
    path: [u32; MAX_DEPTH],
    /// Messages that are open besides the frame's own.
    depth: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Part of a frame's head: the bytes that have arrived, and their values.
    Head { have: usize, flag: u8, len: usize },
    /// A varint, of which this is there.
    Varint { what: What, value: u64, shift: u32 },
    /// Content of a field, to be skipped or passed to the sink.
    Content { until: usize, enter: Enter },
    /// The rest of a frame that is not read.
    Rest,
    /// Bytes that are no frames.
    Lost,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Key,
    Number,
    Length,
}

impl State {
    const HEAD: Self = Self::Head { have: 0, flag: 0, len: 0 };
    const KEY: Self = Self::varint(What::Key);

    const fn varint(what: What) -> Self {
        Self::Varint { what, value: 0, shift: 0 }
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self { state: State::HEAD, at: 0, key_at: 0, ends: [0; MAX_DEPTH], path: [0; MAX_DEPTH], depth: 0 }
    }
}

impl Frames {
    /// Scans the next chunk.
    pub(super) fn feed(&mut self, chunk: &[u8], sink: &mut impl FrameSink) {
        let mut rest = chunk;
        while let Some(&byte) = rest.first() {
            let taken = match self.state {
                State::Head { have, flag, len } => {
                    self.at += 1;
                    match have {
                        0 => self.state = State::Head { have: 1, flag: byte, len },
                        _ => {
                            let len = len << 8 | usize::from(byte);
                            self.state = State::Head { have: have + 1, flag, len };
                            if have + 1 == HEAD {
                                self.begin(flag, len, sink);
                            }
                        }
                    }
                    1
                }
                State::Varint { what, value, shift } => {
                    self.at += 1;
                    self.varint(byte, what, value, shift, sink);
                    1
                }
                State::Content { until, enter } => {
                    let (content, _) = rest.split_at(rest.len().min(until - self.at));
                    if enter == Enter::Bytes {
                        sink.bytes(content);
                    }
                    self.at += content.len();
                    if self.at == until {
                        self.next_field(sink);
                    }
                    content.len()
                }
                State::Rest => {
                    let taken = rest.len().min(self.ends[0] - self.at);
                    self.at += taken;
                    if self.at == self.ends[0] {
                        self.state = State::HEAD;
                    }
                    taken
                }
                State::Lost => return,
            };
            rest = &rest[taken..];
        }
    }

    /// The frame's head is complete.
    fn begin(&mut self, flag: u8, len: usize, sink: &mut impl FrameSink) {
        self.depth = 0;
        self.ends[0] = self.at.saturating_add(len);
        match flag {
            0 => self.next_field(sink),
            1 => self.give_up(FrameError::Flag(flag), sink),
            _ => {
                self.state = State::Lost;
                sink.frame(Err(FrameError::Flag(flag)));
            }
        }
    }

    /// A byte of a varint.
    fn varint(&mut self, byte: u8, what: What, value: u64, shift: u32, sink: &mut impl FrameSink) {
        let value = value | u64::from(byte & 0x7f) << shift;
        let end = self.ends[self.depth];
        if byte >= 0x80 {
            // No field ends in the middle of a number, and no number has more than ten bytes.
            if self.at >= end || shift == 63 {
                return self.give_up(FrameError::Malformed, sink);
            }
            self.state = State::Varint { what, value, shift: shift + 7 };
            return;
        }
        match what {
            What::Key => self.key(value, end, sink),
            What::Number => {
                let span = Span { start: self.key_at, end: self.at };
                sink.number(&self.path[..=self.depth], value, span);
                self.next_field(sink);
            }
            What::Length => {
                let until = usize::try_from(value).ok().and_then(|len| self.at.checked_add(len));
                let Some(until) = until.filter(|until| *until <= end) else {
                    return self.give_up(FrameError::Malformed, sink);
                };
                let enter = sink.open(&self.path[..=self.depth], Span { start: self.at, end: until });
                self.enter(until, enter, sink);
            }
        }
    }

    /// The key of a field: its number, and how its value is written.
    fn key(&mut self, key: u64, end: usize, sink: &mut impl FrameSink) {
        let number = u32::try_from(key >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let fixed = |len: usize| self.at.checked_add(len).filter(|until| *until <= end);
        let state = match (number, key & 7) {
            (None, _) => None,
            (_, 0) => (self.at < end).then_some(State::varint(What::Number)),
            (_, 2) => (self.at < end).then_some(State::varint(What::Length)),
            (_, 1) => fixed(8).map(|until| State::Content { until, enter: Enter::Skip }),
            (_, 5) => fixed(4).map(|until| State::Content { until, enter: Enter::Skip }),
            _ => None,
        };
        match state {
            Some(state) => {
                self.path[self.depth] = number.unwrap_or_default();
                self.state = state;
            }
            None => self.give_up(FrameError::Malformed, sink),
        }
    }

    /// Goes into the content of a field, or past it.
    fn enter(&mut self, until: usize, enter: Enter, sink: &mut impl FrameSink) {
        if enter == Enter::Message && self.depth + 1 < MAX_DEPTH {
            self.depth += 1;
            self.ends[self.depth] = until;
            self.next_field(sink);
        } else if self.at == until {
            self.next_field(sink);
        } else {
            self.state = State::Content { until, enter };
        }
    }

    /// A field is over, and with it perhaps the messages that it is in.
    fn next_field(&mut self, sink: &mut impl FrameSink) {
        while self.depth > 0 && self.at == self.ends[self.depth] {
            self.depth -= 1;
        }
        (self.state, self.key_at) = (State::KEY, self.at);
        if self.at == self.ends[0] {
            self.state = State::HEAD;
            sink.frame(Ok(()));
        }
    }

    /// Leaves the rest of a frame alone.
    fn give_up(&mut self, error: FrameError, sink: &mut impl FrameSink) {
        self.state = if self.at >= self.ends[0] { State::HEAD } else { State::Rest };
        sink.frame(Err(error));
    }
}
