//! Event streams, line by line.
//!
//! The format is that of [server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html):
//! lines end with CR, LF or both, an empty line ends an event, and its `data:` lines
//! are one text. A JSON document ends with its last brace, so it counts before the
//! empty line behind it is there.

use super::super::json::Scanner;
use super::content::{Content, Dialect};
use super::generated::Generated;

/// Mark that may stand before the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Name of the field that holds an event's text.
const DATA: &[u8] = b"data:";

/// Looks for generated content in the events of a stream.
#[derive(Debug)]
pub(super) struct EventReader {
    line: Line,
    /// The byte before was a carriage return: a line feed belongs to the same line end.
    after_return: bool,
    /// The event's document has begun, and neither ended nor broken.
    is_open: bool,
    scanner: Scanner,
    content: Content,
    /// Bytes since the last event's document ended.
    event_bytes: usize,
    /// The event's document has just ended.
    has_ended: bool,
}

/// Place in the current line.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// Before the stream's first line, behind so many bytes of a byte order mark.
    Start(usize),
    /// Behind so many bytes of [`DATA`].
    Name(usize),
    /// In the text of an event.
    Data,
    /// In a comment or another field.
    Other,
}

impl EventReader {
    /// A reader of events in this dialect.
    pub(super) fn new(dialect: Dialect) -> Self {
        Self {
            line: Line::Start(0),
            after_return: false,
            is_open: false,
            scanner: Scanner::default(),
            content: Content::new(dialect),
            event_bytes: 0,
            has_ended: false,
        }
    }

    /// Counts the tokens of the events like the last one, if that has generated content.
    pub(super) fn generated(&self) -> Option<Generated> {
        // With the ends of its last line and of itself.
        self.content.framing(self.event_bytes + 2).map(Generated::new)
    }

    /// Scans the next chunk; see [`FirstTokenReader::feed`](super::FirstTokenReader::feed).
    pub(super) fn feed(&mut self, chunk: &[u8]) -> bool {
        let mut rest = chunk;
        while let Some(&byte) = rest.first() {
            let is_same_end = std::mem::take(&mut self.after_return) && byte == b'\n';
            let taken = match self.line {
                _ if is_same_end => 1,
                Line::Start(have) if BYTE_ORDER_MARK.get(have) == Some(&byte) => {
                    self.line = Line::Start(have + 1);
                    1
                }
                // The names of all fields, a comment, or an empty line.
                Line::Start(0 | 3) if b"deir:\r\n".contains(&byte) => {
                    self.line = Line::Name(0);
                    0
                }
                Line::Start(_) => return true,
                Line::Name(have) if DATA.get(have) == Some(&byte) => {
                    self.line = Line::Name(have + 1);
                    if have + 1 == DATA.len() {
                        self.line = Line::Data;
                        self.begin_data();
                    }
                    1
                }
                Line::Name(have) => {
                    if have == 0 && is_line_end(byte) {
                        self.is_open = false;
                    }
                    self.line = Line::Other;
                    0
                }
                Line::Data | Line::Other => {
                    let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                    if matches!(self.line, Line::Data) && self.scan(&rest[..end]) {
                        self.event_bytes += end;
                        return true;
                    }
                    match rest.get(end) {
                        Some(&byte) => {
                            (self.line, self.after_return) = (Line::Name(0), byte == b'\r');
                            end + 1
                        }
                        None => end,
                    }
                }
            };
            self.event_bytes += taken;
            if std::mem::take(&mut self.has_ended) {
                self.event_bytes = 0;
            }
            rest = &rest[taken..];
        }
        false
    }

    /// A `data:` line goes on with the event's document, or begins one. Servers that leave
    /// out the empty lines send a document per line.
    fn begin_data(&mut self) {
        if self.is_open {
            self.scan(b"\n");
        }
        if !self.is_open {
            self.scanner.restart();
            self.content.restart();
            self.is_open = true;
        }
    }

    /// Scans a part of an event's text; true when its document ends and has content.
    fn scan(&mut self, text: &[u8]) -> bool {
        if !self.is_open {
            return false;
        }
        let broken = self.scanner.feed(text, &mut self.content).is_err();
        // A document that is complete counts, whatever stands behind it.
        let is_complete = self.content.is_complete();
        self.has_ended |= is_complete;
        self.is_open = !broken && !is_complete && !self.scanner.is_done();
        is_complete && self.content.is_generated()
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}
