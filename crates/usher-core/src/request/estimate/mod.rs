//! A prompt's tokens, estimated without a tokenizer: four bytes of text are a token, and an image,
//! a video or a clip stands for as many as its size says.
//!
//! [`chunks`] hands out the prompt as the bytes of these tokens, [`count`] says how many
//! there are, and [`media`](fn@media) what is no text. What a kind of part means is said in
//! one place, `Reader::read`.

mod image;
mod media;

use std::ops::ControlFlow;

use super::cursor::Cursor;
use super::prompt::{Part, PartKind};
use super::text::{Unescaper, unescaped_len};
use super::{Request, tokens};

pub use super::prompt::Modality;
pub use media::Medium;
use media::Sizes;

/// Bytes that count as one token.
pub const BYTES_PER_TOKEN: usize = 4;

/// A step through the prompts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk<'a> {
    /// Bytes of the prompt.
    Bytes(&'a [u8]),
    /// The end of a prompt. What it has given is a multiple of [`BYTES_PER_TOKEN`].
    End,
}

/// Tokens of all prompts of a request; `None` when its prompt was not read. Text is
/// measured where it lies.
pub fn count(request: &Request) -> Option<u64> {
    let prompt = &request.prompt;
    if prompt.parts.is_empty() {
        return None;
    }
    let mut reader = Reader::new(request);
    let (mut tokens, mut bytes) = (0u64, 0usize);
    for part in &prompt.parts {
        match reader.read(part) {
            Content::Text => bytes += reader.text_len(part),
            Content::Ids => tokens += tokens::count(part.kind, reader.text(part)),
            Content::Medium { tokens: stands_for, .. } => {
                tokens += whole_tokens(bytes) + stands_for;
                bytes = 0;
            }
        }
        if prompt.separate {
            tokens += whole_tokens(bytes);
            bytes = 0;
        }
    }
    Some(tokens + whole_tokens(bytes))
}

/// Walks through the prompts of a request in the order in which a model reads them, until
/// `visit` has enough: text as it is without escapes, token ids as four bytes each (the
/// lowest first), and for an image, a video or a clip the low half of its hash, repeated
/// for every token that it stands for. Where bytes are no whole token, zeros follow.
///
/// A few bytes of a body may stand for many tokens, so `visit` should stop at a bound.
pub fn chunks(request: &Request, mut visit: impl FnMut(Chunk<'_>) -> ControlFlow<()>) {
    let prompt = &request.prompt;
    let mut reader = Reader::new(request);
    let mut out = Output { visit: &mut visit, len: 0 };
    for (index, part) in prompt.parts.iter().enumerate() {
        let ends = prompt.separate || index + 1 == prompt.parts.len();
        if reader.give(part, ends, &mut out).is_break() {
            return;
        }
    }
}

/// The images, videos and clips of a request, in the order of its prompt.
pub fn media(request: &Request) -> impl Iterator<Item = Medium> + use<'_> {
    let mut reader = Reader::new(request);
    let parts = request.prompt.parts.iter().filter_map(move |part| match reader.read(part) {
        Content::Medium { modality, .. } if !part.span.is_empty() => {
            Some(Medium { modality, hash: media::hash(reader.text(part), part.escaped) })
        }
        _ => None,
    });
    let mut cursor = Cursor::new(&request.body);
    let features = request.prompt.features.iter().filter_map(move |feature| {
        let hash = media::hash(cursor.pieces(feature.hash.span), feature.hash.escaped);
        feature.modality.filter(|_| !feature.hash.span.is_empty()).map(|modality| Medium { modality, hash })
    });
    parts.chain(features)
}

/// Content of a prompt part.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// Text; adjacent parts share a token.
    Text,
    /// Token ids.
    Ids,
    /// An image, a video or a clip, by its URL or data.
    Medium { modality: Modality, tokens: u64 },
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    sizes: Sizes<'a>,
}

impl<'a> Reader<'a> {
    fn new(request: &'a Request) -> Self {
        Self { cursor: Cursor::new(&request.body), sizes: Sizes::new(&request.headers) }
    }

    /// Classifies a part, with the tokens that an image, a video or a clip stands for.
    fn read(&mut self, part: &Part) -> Content {
        let (modality, tokens) = match part.kind {
            PartKind::Tools | PartKind::Role | PartKind::Text | PartKind::Json => return Content::Text,
            PartKind::Tokens | PartKind::PackedTokens | PartKind::TaggedTokens => return Content::Ids,
            PartKind::Image => (Modality::Image, self.sizes.image(&mut self.cursor, part)),
            PartKind::Video => (Modality::Video, self.sizes.video()),
            PartKind::Audio => (Modality::Audio, whole_tokens(self.text_len(part))),
        };
        Content::Medium { modality, tokens }
    }

    /// A part's bytes as they lie in the body.
    fn text(&mut self, part: &Part) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.cursor.pieces(part.span)
    }

    /// Length of a part's text without escapes.
    fn text_len(&mut self, part: &Part) -> usize {
        if part.escaped { unescaped_len(self.text(part)) } else { part.span.len() }
    }

    /// Gives the bytes of a part's tokens; `ends`: the prompt ends with it.
    fn give(&mut self, part: &Part, ends: bool, out: &mut Output<'_>) -> ControlFlow<()> {
        match self.read(part) {
            Content::Text if part.escaped => {
                Unescaper::default().all(self.text(part), &mut |text| out.bytes(text))?;
            }
            Content::Text => self.text(part).try_for_each(|piece| out.bytes(piece))?,
            Content::Ids => {
                tokens::ids(part.kind, self.text(part)).try_for_each(|id| out.bytes(&id.to_le_bytes()))?;
            }
            Content::Medium { tokens, .. } => {
                let hash = media::hash(self.text(part), part.escaped);
                out.align()?;
                out.repeat((hash as u32).to_le_bytes(), tokens)?;
            }
        }
        if ends { out.end() } else { ControlFlow::Continue(()) }
    }
}

/// Receiver of the bytes.
struct Output<'v> {
    visit: &'v mut dyn FnMut(Chunk<'_>) -> ControlFlow<()>,
    /// Bytes of the prompt so far.
    len: usize,
}

impl Output<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        if bytes.is_empty() {
            return ControlFlow::Continue(());
        }
        self.len += bytes.len();
        (self.visit)(Chunk::Bytes(bytes))
    }

    fn align(&mut self) -> ControlFlow<()> {
        let missing = self.len.next_multiple_of(BYTES_PER_TOKEN) - self.len;
        self.bytes(&[0; BYTES_PER_TOKEN][..missing])
    }

    fn repeat(&mut self, token: [u8; BYTES_PER_TOKEN], mut times: u64) -> ControlFlow<()> {
        const AT_ONCE: usize = 64;
        let mut block = [[0; BYTES_PER_TOKEN]; AT_ONCE];
        block.fill(token);
        while times > 0 {
            let now = usize::try_from(times).unwrap_or(usize::MAX).min(AT_ONCE);
            self.bytes(block[..now].as_flattened())?;
            times -= now as u64;
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self) -> ControlFlow<()> {
        self.align()?;
        self.len = 0;
        (self.visit)(Chunk::End)
    }
}

/// Tokens that so many bytes fill, the last perhaps in part.
fn whole_tokens(bytes: usize) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN) as u64
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
