//! A message body as it arrived: a list of reference-counted slices.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

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

    /// Whether the span holds nothing.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// The chunks of a body in order. Adding a chunk takes a reference to the frame
/// it arrived in; the bytes stay where they are until they leave again.
#[derive(Clone, Debug, Default)]
pub struct Body {
    chunks: Vec<Bytes>,
    len: usize,
}

impl Body {
    /// Appends a chunk; empty ones are not kept.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.len += chunk.len();
            self.chunks.push(chunk);
        }
    }

    /// Bytes in total.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunks, none of them empty.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// Takes the chunks out, leaving an empty body.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.len = 0;
        std::mem::take(&mut self.chunks)
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
                joined.extend_from_slice(part);
            }
            offset = end;
        }
        Cow::Owned(joined)
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
        body
    }

    #[test]
    fn a_span_inside_one_chunk_is_borrowed() {
        let body = body(&[b"hello ", b"world"]);
        assert!(matches!(body.bytes(Span { start: 6, end: 11 }), Cow::Borrowed(b"world")));
        assert_eq!(body.bytes(Span { start: 4, end: 8 }).as_ref(), b"o wo");
        assert_eq!(body.bytes(Span { start: 3, end: 3 }).as_ref(), b"");
    }

    #[test]
    fn a_replacement_leaves_the_other_chunks_alone() {
        let mut body = body(&[b"first", b"second", b"third"]);
        let third = body.chunks()[2].as_ptr();
        body.replace(Span { start: 6, end: 7 }, b"EEE");
        assert_eq!(body.chunks(), [&b"first"[..], b"sEEEcond", b"third"]);
        assert_eq!(body.chunks()[2].as_ptr(), third);
    }

    proptest! {
        #[test]
        fn replacing_a_span_is_what_it_is_on_plain_bytes(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 1..6),
            from in 0usize..50,
            len in 0usize..20,
            with in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut body = body(&slices);
            let mut plain: Vec<u8> = parts.concat();
            let start = from.min(plain.len());
            let end = (start + len).min(plain.len());
            prop_assert_eq!(body.bytes(Span { start, end }).into_owned(), &plain[start..end]);
            body.replace(Span { start, end }, &with);
            plain.splice(start..end, with);
            prop_assert_eq!(body.len(), plain.len());
            prop_assert_eq!(body.chunks().concat(), plain);
        }
    }
}
