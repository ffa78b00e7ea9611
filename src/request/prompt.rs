//! Where the text of a prompt is in its body.

use std::borrow::Cow;

use super::body::{Body, Span};
use super::text;

/// Parts of a prompt that are kept. What comes after them is not looked at: an estimate
/// is too small then, and memory has a bound.
pub const MAX_PARTS: usize = 1 << 16;

/// What a part of a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// The tools that a model may call, as they stand in the body: JSON.
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
    /// Another value as it stands in the body: JSON.
    Json,
    /// Token ids: the JSON array with its brackets.
    Tokens,
}

/// A slice of the body that belongs to the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Where it is; of a JSON string without its quotes.
    pub span: Span,
    /// Whether the string holds escapes.
    pub escaped: bool,
}

impl Part {
    /// A part whose bytes are those in the body.
    pub(super) fn plain(kind: PartKind, span: Span) -> Self {
        Self { kind, span, escaped: false }
    }

    /// The bytes as a model sees them: escapes undone, copied only where there
    /// are some or where the slice crosses a chunk's end.
    pub fn bytes<'a>(&self, body: &'a Body) -> Cow<'a, [u8]> {
        let raw = body.bytes(self.span);
        if self.escaped { Cow::Owned(text::unescape(&raw).into_bytes()) } else { raw }
    }
}

/// The parts of a prompt, in the order in which a model reads them: instructions,
/// tools, what the system says, then role and content of each message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The parts: [`MAX_PARTS`] at most, and as many before the messages.
    pub parts: Vec<Part>,
    /// Every part is a prompt of its own: a request with a list of texts.
    pub separate: bool,
}

impl Prompt {
    /// Whether it holds anything but text.
    pub fn is_multimodal(&self) -> bool {
        let media = |part: &Part| matches!(part.kind, PartKind::Image | PartKind::Video | PartKind::Audio);
        self.parts.iter().any(media)
    }
}

/// Adds to a list that is bounded.
pub(super) fn push<T>(list: &mut Vec<T>, items: impl IntoIterator<Item = T>) {
    for item in items {
        if list.len() < MAX_PARTS {
            list.push(item);
        }
    }
}
