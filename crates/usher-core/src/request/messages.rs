//! The messages of a chat, and the blocks of their content, collected while a body is
//! scanned. Blocks may hold blocks, as a tool's result does, one level deep.
//!
//! Levels count from the list: its elements are at 0, their members at 1 and so on.

use super::body::Span;
use super::json::Token;
use super::prompt::{self, MAX_PARTS, Part, PartKind};
use super::text::unescape;
use super::values::text;

/// The blocks of an API. A block may hold members of other kinds than its own: only
/// those that its type takes count.
#[derive(Debug)]
pub(super) struct BlockFormat {
    /// Place of the member of this name.
    pub member: fn(&[u8]) -> Place,
    /// Parts of a block of this type that a model reads, in this order.
    pub takes: fn(&[u8]) -> &'static [Take],
    /// A text that begins like this is left out.
    pub without: Option<&'static [u8]>,
}

/// Place for the value of a member of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere.
    None,
    /// The block's type.
    Type,
    /// Text.
    Text(u8),
    /// An object that holds it in a member of this name.
    Inside(u8, Asset),
    /// A list or object, as it stands.
    Json(u8),
    /// Text, or blocks.
    Blocks,
}

/// The name under which an object has what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asset {
    Url,
    Data,
    UrlOrData,
}

/// A part of a block that a model reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Take {
    /// The value kept in this place, as a part of this kind.
    Kept(u8, PartKind),
    /// The parts of the blocks nested in it.
    Blocks,
}

/// Values of one block that are kept.
const PLACES: usize = 6;

/// Returns `true` if a value can be content: text or a list of blocks. Null is as good as none.
pub(super) fn is_content(token: Token) -> bool {
    matches!(token, Token::String { .. } | Token::Null | Token::ArrayStart)
}

/// Reads messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    member: Member,
    /// Offset of the first part of the current message.
    from: usize,
    role: Option<Part>,
    /// Made when a content first needs it.
    blocks: Option<Box<Blocks>>,
}

/// A member of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Member {
    #[default]
    Other,
    Role,
    Content,
}

impl Messages {
    /// A message whose first part has this index.
    pub(super) fn begin(&mut self, from: usize) {
        (self.from, self.role, self.member) = (from, None, Member::Other);
    }

    /// The name of a member; `false` when it means nothing.
    #[inline(always)]
    pub(super) fn key(&mut self, level: usize, name: &[u8]) -> bool {
        if level == 1 {
            self.member = match name {
                b"role" => Member::Role,
                b"content" => Member::Content,
                _ => Member::Other,
            };
            return self.member != Member::Other;
        }
        match (self.member, level, &mut self.blocks) {
            (Member::Content, 2.., Some(blocks)) => blocks.key(level - 2, name),
            // Nobody asks for it.
            _ => true,
        }
    }

    /// A value inside of a message. `false` when it can't be what it is.
    pub(super) fn value(
        &mut self,
        format: &'static BlockFormat,
        level: usize,
        token: Token,
        span: Span,
        head: &[u8],
        parts: &mut Vec<Part>,
    ) -> bool {
        match (self.member, level, token) {
            (Member::Role, 1, Token::String { escaped }) => {
                self.role = Some(Part { kind: PartKind::Role, span, escaped });
                true
            }
            // As in Go, null leaves what was there.
            (Member::Role, 1, token) => token == Token::Null,
            (Member::Content, 1, _) => {
                parts.truncate(self.from);
                prompt::push(parts, text(token, span));
                if token == Token::ArrayStart {
                    self.blocks.get_or_insert_with(|| Box::new(Blocks::new(format)));
                }
                is_content(token)
            }
            (Member::Content, _, _) => match &mut self.blocks {
                Some(blocks) => blocks.value(level - 2, token, span, head),
                None => true,
            },
            _ => true,
        }
    }

    /// Bytes that are kept of the current message.
    pub(super) fn counted(&self) -> usize {
        self.blocks.as_ref().map_or(0, |blocks| blocks.counted())
    }

    pub(super) fn end(&mut self, level: usize, span: Span, parts: &mut Vec<Part>) {
        if level == 0 {
            if let Some(role) = self.role.take().filter(|_| parts.len() < MAX_PARTS) {
                parts.insert(self.from, role);
            }
        } else if level > 1
            && self.member == Member::Content
            && let Some(blocks) = &mut self.blocks
        {
            blocks.end(level - 2, span, parts);
        }
    }
}

/// Reads blocks. Its functions are small and called for each token: inlined, a block
/// costs a sixth less.
#[derive(Debug)]
pub(super) struct Blocks {
    format: &'static BlockFormat,
    block: Block,
    /// The current one of the blocks inside of that, and what those before it say.
    inner: Block,
    nested: Vec<Part>,
}

/// A block as far as it has been read.
#[derive(Debug)]
struct Block {
    place: Place,
    /// The last name inside of [`Place::Inside`] was the right one.
    inside: bool,
    takes: &'static [Take],
    kept: [Option<Part>; PLACES],
    value_start: usize,
}

impl Blocks {
    pub(super) fn new(format: &'static BlockFormat) -> Self {
        Self { format, block: Block::EMPTY, inner: Block::EMPTY, nested: Vec::new() }
    }

    /// Bytes that are kept of the blocks inside of one.
    pub(super) fn counted(&self) -> usize {
        prompt::bytes(&self.nested)
    }

    /// The name of a member; `false` when it means nothing.
    #[inline(always)]
    pub(super) fn key(&mut self, level: usize, name: &[u8]) -> bool {
        match self.block.place {
            Place::Blocks if level > 2 => self.inner.key(self.format, level - 2, name),
            _ => self.block.key(self.format, level, name),
        }
    }

    /// A value inside of a list of blocks, which may be a block. `false` when it can't
    /// be one.
    #[inline(always)]
    pub(super) fn value(&mut self, level: usize, token: Token, span: Span, head: &[u8]) -> bool {
        match (level, self.block.place) {
            (0, _) => {
                self.block.clear();
                self.nested.clear();
                return matches!(token, Token::ObjectStart | Token::Null);
            }
            (1, Place::Blocks) => {
                self.nested.clear();
                self.nested.extend(text(token, span));
                if token != Token::ArrayStart {
                    self.block.place = Place::None;
                }
            }
            (2, Place::Blocks) => self.inner.clear(),
            (3.., Place::Blocks) => self.inner.value(self.format, level - 2, token, span, head),
            _ => self.block.value(self.format, level, token, span, head),
        }
        true
    }

    pub(super) fn end(&mut self, level: usize, span: Span, parts: &mut Vec<Part>) {
        match (level, self.block.place) {
            (0, _) => {
                for take in self.block.takes {
                    match *take {
                        Take::Kept(place, kind) => prompt::push(parts, self.block.part(place, kind)),
                        Take::Blocks => prompt::push(parts, self.nested.drain(..)),
                    }
                }
            }
            (2, Place::Blocks) => {
                for take in self.inner.takes {
                    if let Take::Kept(place, kind) = *take {
                        prompt::push(&mut self.nested, self.inner.part(place, kind));
                    }
                }
            }
            (3, Place::Blocks) => self.inner.end(span),
            (1, _) => self.block.end(span),
            _ => {}
        }
    }
}

impl Block {
    const EMPTY: Self =
        Self { place: Place::None, inside: false, takes: &[], kept: [None; PLACES], value_start: 0 };

    /// Begins another one.
    fn clear(&mut self) {
        (self.place, self.takes, self.kept) = (Place::None, &[], [None; PLACES]);
    }

    #[inline(always)]
    fn key(&mut self, format: &BlockFormat, level: usize, name: &[u8]) -> bool {
        match (level, self.place) {
            (1, _) => {
                (self.place, self.inside) = ((format.member)(name), false);
                self.place != Place::None
            }
            (2, Place::Inside(_, asset)) => {
                self.inside = match asset {
                    Asset::Url => name == b"url",
                    Asset::Data => name == b"data",
                    Asset::UrlOrData => matches!(name, b"url" | b"data"),
                };
                self.inside
            }
            // Nobody asks for it.
            _ => true,
        }
    }

    /// A value inside of the block.
    #[inline(always)]
    fn value(&mut self, format: &BlockFormat, level: usize, token: Token, span: Span, head: &[u8]) {
        match (level, self.place) {
            (1, Place::Type) => {
                self.takes = match token {
                    Token::String { escaped: false } => (format.takes)(head),
                    Token::String { escaped: true } if head.len() == span.len() => {
                        (format.takes)(unescape(head).as_bytes())
                    }
                    _ => &[],
                };
            }
            (1, Place::Text(place)) => {
                let left_out = format.without.is_some_and(|start| head.starts_with(start));
                self.kept[usize::from(place)] = text(token, span).filter(|_| !left_out);
            }
            // Their values are in objects, and this is a new one.
            (1, Place::Inside(place, _)) => self.kept[usize::from(place)] = None,
            (1, Place::Json(place)) => (self.kept[usize::from(place)], self.value_start) = (None, span.start),
            (2, Place::Inside(place, _)) if self.inside => self.kept[usize::from(place)] = text(token, span),
            _ => {}
        }
    }

    /// The end of a member's list or object.
    fn end(&mut self, span: Span) {
        if let Place::Json(place) = self.place {
            let whole = Span { start: self.value_start, end: span.end };
            self.kept[usize::from(place)] = Some(Part::plain(PartKind::Json, whole));
        }
    }

    fn part(&self, place: u8, kind: PartKind) -> Option<Part> {
        self.kept[usize::from(place)].map(|part| Part { kind, ..part })
    }
}
