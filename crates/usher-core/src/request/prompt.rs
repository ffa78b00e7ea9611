//! Position of a prompt's text in its body.

use std::borrow::Cow;
use std::ops::Range;

use super::body::{Body, Span};
use super::cursor::Cursor;
use super::text;

/// Parts of a prompt that are kept. What comes after them is not looked at: an estimate is
/// too small then, and memory has a bound.
pub const MAX_PARTS: usize = 1 << 16;

/// Multimodal items of a modality that are kept of a prompt of token ids.
pub const MAX_FEATURES: usize = 1 << 12;

/// Kind of a prompt's part.
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
    /// Token ids as protobuf packs them: one varint after the other.
    PackedTokens,
    /// Token ids as protobuf writes them one by one: a varint behind the key of its field,
    /// one after the other.
    TaggedTokens,
}

/// A slice of the body that belongs to the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Kind of the part.
    pub kind: PartKind,
    /// Span of it; of a JSON string without its quotes.
    pub span: Span,
    /// `true` if the string holds escapes.
    pub escaped: bool,
}

impl Part {
    /// A part whose bytes are those in the body.
    pub(super) fn plain(kind: PartKind, span: Span) -> Self {
        Self { kind, span, escaped: false }
    }

    /// Returns `true` if the text has more bytes than so many, escapes undone. Nothing is copied.
    pub(super) fn is_longer(&self, limit: usize, body: &Body) -> bool {
        self.span.len() > limit
            && (!self.escaped || text::unescaped_len(Cursor::new(body).pieces(self.span)) > limit)
    }

    /// The bytes as a model sees them: escapes undone, copied only where there
    /// are some or where the slice crosses a chunk's end.
    pub fn bytes<'a>(&self, body: &'a Body) -> Cow<'a, [u8]> {
        let raw = body.bytes(self.span);
        if self.escaped { Cow::Owned(text::unescape(&raw).into_bytes()) } else { raw }
    }
}

/// Kind of an item in a prompt that is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Modality {
    /// An image.
    Image,
    /// A video.
    Video,
    /// An audio clip.
    Audio,
}

impl Modality {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Image, Self::Video, Self::Audio];

    /// The value of the label `modality`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Video => "video",
            Self::Audio => "audio",
        }
    }
}

/// An item of a prompt of token ids that was no text: its client made tokens of it and
/// says which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Modality of the item; `None` for any other.
    pub modality: Option<Modality>,
    /// The hash of its content, as text.
    pub hash: Part,
    /// Tokens of the prompt that stand for it, if that is said.
    pub tokens: Option<Range<u32>>,
}

/// The parts of a prompt, in the order in which a model reads them: instructions,
/// tools, what the system says, then role and content of each message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The parts: [`MAX_PARTS`] at most, and as many before the messages.
    pub parts: Vec<Part>,
    /// Every part is a prompt of its own: a request with a list of texts.
    pub separate: bool,
    /// The multimodal items of a prompt of token ids, by their place in it;
    /// [`MAX_FEATURES`] of each modality at most.
    pub features: Vec<Feature>,
}

impl Prompt {
    /// Returns `true` if it holds anything but text.
    pub fn is_multimodal(&self) -> bool {
        let media = |part: &Part| matches!(part.kind, PartKind::Image | PartKind::Video | PartKind::Audio);
        !self.features.is_empty() || self.parts.iter().any(media)
    }
}

/// Adds to a list of parts, which is bounded.
pub(super) fn push(list: &mut Vec<Part>, items: impl IntoIterator<Item = Part>) {
    for item in items {
        if list.len() < MAX_PARTS {
            list.push(item);
        }
    }
}

/// Adds to a list about multimodal items, which is bounded.
pub(super) fn push_feature<T>(list: &mut Vec<T>, item: T) {
    if list.len() < MAX_FEATURES {
        list.push(item);
    }
}

/// Bytes that a list takes.
pub(super) fn bytes<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}
