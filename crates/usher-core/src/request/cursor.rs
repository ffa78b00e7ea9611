//! Reads spans of a body where they lie, one after the other.

use bytes::Bytes;

use super::body::{Body, Span};

/// A place in a body. Spans that are read in their order cost what they hold; going back
/// costs the chunks between.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    chunks: &'a [Bytes],
    index: usize,
    /// Offset of the chunk at `index`.
    start: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of a sealed body.
    pub fn new(body: &'a Body) -> Self {
        Self { chunks: body.chunks(), index: 0, start: 0 }
    }

    /// The byte at a place, if the body is so long.
    pub fn byte(&mut self, at: usize) -> Option<u8> {
        self.seek(at);
        self.chunks.get(self.index)?.get(at - self.start).copied()
    }

    /// The bytes of a span, in the pieces in which they lie.
    pub fn pieces(&mut self, span: Span) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.seek(span.start);
        let mut offset = self.start;
        let chunks = self.chunks.get(self.index..).unwrap_or_default();
        chunks.iter().map_while(move |chunk| {
            let (from, to) = (span.start.max(offset), span.end.min(offset + chunk.len()));
            let piece = if from < to { chunk.get(from - offset..to - offset) } else { None };
            offset += chunk.len();
            piece
        })
    }

    /// Goes to the chunk that holds the byte at a place.
    fn seek(&mut self, at: usize) {
        while at < self.start
            && let Some(before) = self.index.checked_sub(1)
        {
            self.index = before;
            self.start -= self.chunks[before].len();
        }
        while let Some(chunk) = self.chunks.get(self.index)
            && at >= self.start + chunk.len()
        {
            self.start += chunk.len();
            self.index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cursor_matches_a_contiguous_copy(
            chunks in prop::collection::vec(0usize..3000, 0..6),
            places in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4000), 0..12),
        ) {
            let len: usize = chunks.iter().sum();
            let plain: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            let mut body = Body::default();
            let mut rest = &plain[..];
            for chunk in chunks {
                let (now, later) = rest.split_at(chunk);
                body.push(Bytes::copy_from_slice(now));
                rest = later;
            }
            body.seal();
            let mut cursor = Cursor::new(&body);
            for (place, count) in places {
                let start = place.index(plain.len() + 1);
                let end = (start + count).min(plain.len());
                prop_assert_eq!(cursor.byte(start), plain.get(start).copied());
                let read: Vec<&[u8]> = cursor.pieces(Span { start, end }).collect();
                prop_assert!(read.iter().all(|piece| !piece.is_empty()));
                prop_assert_eq!(read.concat(), &plain[start..end]);
            }
        }
    }
}
