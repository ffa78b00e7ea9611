//! Where the text of a prompt is in its body.

use std::borrow::Cow;

use super::body::{Body, Span};
use super::text;

/// What a part of a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// The tools of a chat, as they stand in the body: JSON.
    Tools,
    /// The role of a message.
    Role,
    /// Text.
    Text,
    /// The URL or data of an image.
    Image,
    /// The URL or data of a video.
    Video,
    /// The data of an audio clip.
    Audio,
    /// Token ids: the JSON array with its brackets.
    Tokens,
}

/// A slice of the body that belongs to the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Where it is; of a string without its quotes.
    pub span: Span,
    /// Whether the string holds escapes.
    pub escaped: bool,
}

impl Part {
    /// The bytes as a model sees them: escapes undone, copied only where there
    /// are some or where the slice crosses a chunk's end.
    pub fn bytes<'a>(&self, body: &'a Body) -> Cow<'a, [u8]> {
        let raw = body.bytes(self.span);
        if self.escaped { Cow::Owned(text::unescape(&raw).into_bytes()) } else { raw }
    }
}

/// The parts of a prompt, in the order in which a model reads them: tools first,
/// then role and content of each message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The parts.
    pub parts: Vec<Part>,
    /// Every part is a prompt of its own: a completions request with a list of strings.
    pub separate: bool,
}
