//! Generated content in the JSON of an event.

use super::super::body::Span;
use super::super::json::{Sink, Token};

/// Levels of an event whose places are told apart: `{"choices": [{"delta": {…`. What is
/// deeper is like the level above it.
const LEVELS: usize = 4;

/// Form of an API's events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dialect {
    /// Chat completions: `choices[].delta`, completions: `choices[].text`, vLLM's generate:
    /// `choices[].token_ids`, responses: `delta` or the whole of a part, and the name of a tool
    /// in `item.name`, images: `b64_json`. No two of them mean different things by one name.
    OpenAi,
    /// `delta` and `content_block`, which holds the name of a tool.
    Anthropic,
    /// `text` and `output_ids`.
    Sglang,
}

/// Role of a value in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The event itself.
    Event,
    Choices,
    Choice,
    /// An item of a response's output.
    Item,
    /// Text in it is generated, at any depth.
    Content,
    /// Numbers in it are ids of generated tokens.
    Tokens,
    /// Neither is anything in it.
    Other,
}

impl Dialect {
    /// The place of a member.
    fn member(self, of: Place, name: &[u8]) -> Place {
        match (self, of, name) {
            // Set by the server before there is any text, and after the last.
            (_, Place::Content, b"role" | b"id" | b"type" | b"stop_reason" | b"stop_sequence") => {
                Place::Other
            }
            // Engines have many names for reasoning.
            (_, Place::Content, _) => Place::Content,
            (Self::OpenAi, Place::Event, b"choices") => Place::Choices,
            (Self::OpenAi, Place::Event, b"item") => Place::Item,
            (
                Self::OpenAi,
                Place::Event,
                b"delta" | b"text" | b"arguments" | b"refusal" | b"b64_json" | b"partial_image_b64",
            )
            | (Self::OpenAi, Place::Choice, b"delta" | b"text")
            | (Self::OpenAi, Place::Item, b"name")
            | (Self::Anthropic, Place::Event, b"delta" | b"content_block")
            | (Self::Sglang, Place::Event, b"text") => Place::Content,
            (Self::OpenAi, Place::Choice, b"token_ids") | (Self::Sglang, Place::Event, b"output_ids") => {
                Place::Tokens
            }
            _ => Place::Other,
        }
    }
}

/// Looks for generated content in one event.
#[derive(Debug)]
pub(super) struct Content {
    dialect: Dialect,
    /// Containers that are open.
    depth: usize,
    /// Places of the first of them.
    open: [Place; LEVELS],
    /// Place of the next value, if it is a member's.
    member: Option<Place>,
    /// Bytes of generated content so far.
    generated: usize,
    complete: bool,
}

impl Content {
    /// An event in this dialect.
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, depth: 0, open: [Place::Other; LEVELS], member: None, generated: 0, complete: false }
    }

    /// Begins the next event.
    pub(super) fn restart(&mut self) {
        *self = Self::new(self.dialect);
    }

    /// Returns `true` if the event is over.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns `true` if the event holds generated content so far.
    pub(super) fn is_generated(&self) -> bool {
        self.generated > 0
    }

    /// Bytes that aren't generated content, of an event of so many that is over and has some. Where
    /// each event has all of the response so far, nothing of it counts as content.
    pub(super) fn framing(&self, event_bytes: usize) -> Option<usize> {
        let has_all = matches!(self.dialect, Dialect::Sglang);
        let framing = if has_all { usize::MAX } else { event_bytes.saturating_sub(self.generated) };
        (self.complete && self.is_generated()).then_some(framing)
    }

    /// The place of the innermost container; `None` outside of all.
    fn around(&self) -> Option<Place> {
        let level = self.depth.checked_sub(1)?;
        self.open.get(level.min(LEVELS - 1)).copied()
    }

    /// The place of the next value.
    fn value(&mut self) -> Place {
        match (self.around(), self.member.take()) {
            (None, _) => Place::Event,
            (_, Some(member)) => member,
            (Some(Place::Choices), None) => Place::Choice,
            (Some(list @ (Place::Content | Place::Tokens)), None) => list,
            (Some(_), None) => Place::Other,
        }
    }
}

impl Sink for Content {
    fn token(&mut self, token: Token, span: Span, head: &[u8]) {
        match token {
            Token::ObjectStart | Token::ArrayStart => {
                let place = match self.around() {
                    // All that is in it is alike.
                    Some(like @ (Place::Content | Place::Tokens | Place::Other)) => {
                        self.member = None;
                        like
                    }
                    _ => self.value(),
                };
                if let Some(open) = self.open.get_mut(self.depth) {
                    *open = place;
                }
                self.depth += 1;
            }
            Token::ObjectEnd | Token::ArrayEnd => {
                self.depth -= 1;
                self.complete |= self.depth == 0;
            }
            Token::Key => self.member = self.around().map(|around| self.dialect.member(around, head)),
            Token::String { .. } if self.value() == Place::Content => self.generated += span.len(),
            Token::Number if self.value() == Place::Tokens => self.generated += span.len(),
            Token::String { .. } | Token::Number => {}
            Token::True | Token::False | Token::Null => self.member = None,
        }
    }
}
