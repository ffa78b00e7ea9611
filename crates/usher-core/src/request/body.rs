//! A message body as it arrived: a list of reference-counted slices.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::pieces::Pieces;

/// A part of a body, by byte offsets from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// Number of bytes.
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Returns `true` if the span holds nothing.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// Below this many bytes a chunk costs more to keep than to copy.
const SMALL: usize = 1024;
/// Bytes of small chunks that are kept together.
const TOGETHER: usize = 16 * 1024;

/// The chunks of a body in order. Adding a chunk takes a reference to the frame
/// it arrived in; the bytes stay where they are until they leave again. Only runs
/// of small chunks are copied together: a body that arrives byte by byte must not
/// take fifty times its size.
#[derive(Clone, Debug, Default)]
pub struct Body {
    chunks: Vec<Bytes>,
    /// Small chunks behind the others, until [`seal`](Self::seal).
    tail: BytesMut,
    len: usize,
}

impl Body {
    /// Appends a chunk; empty ones are not kept.
    pub fn push(&mut self, chunk: Bytes) {
        self.len += chunk.len();
        if chunk.len() < SMALL {
            let follows_small = self.chunks.last().is_some_and(|last| last.len() < SMALL);
            if self.tail.is_empty() && follows_small {
                self.tail.reserve(SMALL);
                if let Some(last) = self.chunks.pop() {
                    self.tail.extend_from_slice(&last);
                }
            }
            if !self.tail.is_empty() {
                self.tail.extend_from_slice(&chunk);
                if self.tail.len() >= TOGETHER {
                    self.seal();
                }
                return;
            }
        }
        self.seal();
        if !chunk.is_empty() {
            self.chunks.push(chunk);
        }
    }

    /// Ends the body: what was pushed is in its [`chunks`](Self::chunks).
    pub fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push(self.tail.split().freeze());
        }
    }

    /// Bytes in total.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunks of a sealed body, none of them empty.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// The bytes of a span, without a copy.
    pub fn slice(&self, span: Span) -> Pieces {
        let mut offset = 0;
        let mut pieces = Pieces::default();
        for chunk in &self.chunks {
            let end = offset + chunk.len();
            if end > span.start && offset < span.end {
                pieces.push(chunk.slice(span.start.max(offset) - offset..span.end.min(end) - offset));
            }
            offset = end;
        }
        pieces
    }

    /// The bytes of a span; copied only where it crosses a chunk's end.
    pub fn bytes(&self, span: Span) -> Cow<'_, [u8]> {
        let mut offset = 0;
        let mut joined = Vec::new();
        for chunk in &self.chunks {
            let end = offset + chunk.len();
            if end > span.start && offset < span.end {
                let part = &chunk[span.start.max(offset) - offset..span.end.min(end) - offset];
                if part.len() == span.len() {
                    return Cow::Borrowed(part);
                }
                if joined.is_empty() {
                    joined.reserve_exact(span.len());
                }
                joined.extend_from_slice(part);
            }
            offset = end;
        }
        Cow::Owned(joined)
    }

    /// The bytes of a sealed body, put together; chunks go as they are copied.
    pub fn into_bytes(self) -> Bytes {
        let mut joined = Vec::with_capacity(self.len);
        self.chunks.into_iter().for_each(|chunk| joined.extend_from_slice(&chunk));
        joined.into()
    }

    /// Replaces the bytes of a span. The chunks that it touches become one new
    /// chunk; the others keep their place in memory.
    pub fn replace(&mut self, span: Span, with: &[u8]) {
        let mut next = Vec::with_capacity(self.chunks.len() + 1);
        let mut mended = BytesMut::new();
        let mut offset = 0;
        let mut written = false;
        for chunk in self.chunks.drain(..) {
            let end = offset + chunk.len();
            if end < span.start || (written && offset >= span.end) {
                next.push(chunk);
            } else {
                mended.extend_from_slice(&chunk[..span.start.clamp(offset, end) - offset]);
                if !written {
                    mended.extend_from_slice(with);
                    written = true;
                }
                mended.extend_from_slice(&chunk[span.end.clamp(offset, end) - offset..]);
                if end >= span.end {
                    next.push(mended.split().freeze());
                }
            }
            offset = end;
        }
        if !written {
            mended.extend_from_slice(with);
            next.push(mended.freeze());
        }
        next.retain(|chunk| !chunk.is_empty());
        self.len = next.iter().map(Bytes::len).sum();
        self.chunks = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(parts: &[&[u8]]) -> Body {
        let mut body = Body::default();
        for part in parts {
            body.push(Bytes::copy_from_slice(part));
        }
        body.seal();
        body
    }

    #[test]
    fn a_body_is_put_together_without_room_to_spare() {
        let parts = [vec![b'x'; 5000], vec![b'y'; 3], vec![b'z'; 7000]];
        let body = body(&parts.each_ref().map(Vec::as_slice));
        let Cow::Owned(joined) = body.bytes(Span { start: 0, end: body.len() }) else { panic!("one chunk") };
        assert_eq!((joined.len(), joined.capacity()), (12_003, 12_003));
        assert_eq!(body.into_bytes(), joined);
    }

    #[test]
    fn tiny_body_chunks_are_merged_and_others_kept() {
        let mut body = Body::default();
        for byte in 0..100_000u32 {
            body.push(Bytes::copy_from_slice(&[byte as u8]));
        }
        body.seal();
        assert_eq!(body.len(), 100_000);
        assert!(body.chunks().len() <= 100_000 / TOGETHER + 1, "{}", body.chunks().len());

        let parts =
            [Bytes::from(vec![b'a'; 800]), Bytes::from(vec![b'b'; 32_768]), Bytes::from(vec![b'c'; 10])];
        let mut body = Body::default();
        parts.iter().for_each(|part| body.push(part.clone()));
        body.seal();
        let addresses = |chunks: &[Bytes]| chunks.iter().map(|c| c.as_ptr()).collect::<Vec<_>>();
        assert_eq!(addresses(body.chunks()), addresses(&parts));
    }

    #[test]
    fn a_span_inside_one_chunk_is_borrowed() {
        let body = body(&[&[b'a'; 2000], &[b'b'; 2000]]);
        assert!(matches!(body.bytes(Span { start: 2000, end: 2002 }), Cow::Borrowed(b"bb")));
        assert_eq!(body.bytes(Span { start: 1999, end: 2002 }).as_ref(), b"abb");
        assert_eq!(body.bytes(Span { start: 3, end: 3 }).as_ref(), b"");
    }

    #[test]
    fn a_replacement_leaves_the_other_chunks_alone() {
        let (first, second, third) = (vec![b'1'; 2000], vec![b'2'; 2000], vec![b'3'; 2000]);
        let mut body = body(&[&first, &second, &third]);
        let last = body.chunks()[2].as_ptr();
        body.replace(Span { start: 2001, end: 3999 }, b"-");
        assert_eq!(body.chunks(), [&first[..], b"2-2", &third]);
        assert_eq!(body.chunks()[2].as_ptr(), last);
    }

    proptest! {
        #[test]
        fn replacing_a_span_matches_plain_bytes(
            parts in prop::collection::vec((0u8..4, 0usize..1500), 1..6),
            from in 0usize..7000,
            len in 0usize..3000,
            with in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let parts: Vec<Vec<u8>> = parts.into_iter().map(|(byte, len)| vec![byte; len]).collect();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut body = body(&slices);
            let mut plain: Vec<u8> = parts.concat();
            let start = from.min(plain.len());
            let end = (start + len).min(plain.len());
            prop_assert_eq!(body.bytes(Span { start, end }).into_owned(), &plain[start..end]);
            let sliced: Vec<u8> = body.slice(Span { start, end }).iter().flatten().copied().collect();
            prop_assert_eq!(sliced, &plain[start..end]);
            body.replace(Span { start, end }, &with);
            plain.splice(start..end, with);
            prop_assert_eq!(body.len(), plain.len());
            prop_assert_eq!(body.chunks().concat(), plain);
        }
    }
}
