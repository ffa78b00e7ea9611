//! The token ids of a prompt that its client made tokens of.

use super::body::Body;
use super::cursor::Cursor;
use super::prompt::{Part, PartKind};

impl Part {
    /// The token ids of a part that holds some, in their order; of others none. The
    /// bytes are read where they lie.
    pub fn token_ids<'a>(&self, body: &'a Body) -> impl Iterator<Item = u32> + use<'a> {
        ids(self.kind, Cursor::new(body).pieces(self.span))
    }
}

/// The ids in the bytes of a part of this kind.
pub(super) fn ids<'a, P>(kind: PartKind, pieces: P) -> impl Iterator<Item = u32> + use<'a, P>
where
    P: Iterator<Item = &'a [u8]>,
{
    let mut ids = match kind {
        PartKind::Tokens => Some(Ids::Json { value: None, odd: String::new() }),
        PartKind::PackedTokens => Some(Ids::Packed(Varint::default())),
        PartKind::TaggedTokens => Some(Ids::Tagged { varint: Varint::default(), is_key: true }),
        _ => None,
    };
    let mut pieces = pieces;
    let mut piece: &[u8] = &[];
    std::iter::from_fn(move || {
        let ids = ids.as_mut()?;
        loop {
            while let Some((byte, rest)) = piece.split_first() {
                piece = rest;
                if let Some(id) = ids.take(*byte) {
                    return Some(id);
                }
            }
            piece = pieces.next()?;
        }
    })
}

/// Number of these ids, which takes less than reading them.
pub(super) fn count<'a>(kind: PartKind, pieces: impl Iterator<Item = &'a [u8]>) -> u64 {
    match kind {
        PartKind::Tokens => {
            let (mut has_any, mut commas) = (false, 0);
            for piece in pieces {
                has_any = has_any || piece.iter().any(u8::is_ascii_digit);
                commas += memchr::memchr_iter(b',', piece).count() as u64;
            }
            if has_any { commas + 1 } else { 0 }
        }
        // Each varint ends with a byte of less than 128.
        PartKind::PackedTokens => varints(pieces),
        // One of two is a key.
        PartKind::TaggedTokens => varints(pieces) / 2,
        _ => 0,
    }
}

fn varints<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> u64 {
    pieces.flatten().filter(|byte| **byte < 0x80).count() as u64
}

/// Notation of ids, and what there is of the current one.
#[derive(Debug)]
enum Ids {
    /// A JSON list of numbers.
    Json {
        /// Value of the digits so far; `None` if there are none.
        value: Option<u64>,
        /// A number that is more than digits.
        odd: String,
    },
    Packed(Varint),
    Tagged {
        varint: Varint,
        /// `true` if it is the key of an id.
        is_key: bool,
    },
}

/// A number of seven bits a byte, the lowest first, as far as it has been read.
#[derive(Debug, Default)]
struct Varint {
    value: u64,
    shift: u32,
}

impl Varint {
    /// Takes a byte; gives the number that it ends.
    fn take(&mut self, byte: u8) -> Option<u64> {
        self.value |= u64::from(byte & 0x7f) << self.shift;
        if byte >= 0x80 {
            self.shift = (self.shift + 7).min(63);
            return None;
        }
        Some(std::mem::take(self).value)
    }
}

impl Ids {
    /// Takes a byte; gives the id that it ends.
    fn take(&mut self, byte: u8) -> Option<u32> {
        match self {
            Self::Json { value, odd } => match byte {
                b'0'..=b'9' if odd.is_empty() => {
                    let digit = u64::from(byte - b'0');
                    *value = Some(value.unwrap_or(0).wrapping_mul(10).wrapping_add(digit));
                    None
                }
                b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-' => {
                    if let Some(digits) = value.take() {
                        odd.push_str(&digits.to_string());
                    }
                    odd.push(char::from(byte));
                    None
                }
                // White space, a comma or a bracket.
                _ => {
                    let odd = std::mem::take(odd).parse::<f64>().ok().map(|id| id as u32);
                    value.take().map(|id| id as u32).or(odd)
                }
            },
            Self::Packed(varint) => varint.take(byte).map(|id| id as u32),
            Self::Tagged { varint, is_key } => {
                let number = varint.take(byte)?;
                *is_key = !*is_key;
                is_key.then_some(number as u32)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::body::Span;
    use super::*;

    fn ids(kind: PartKind, bytes: &[u8], size: usize) -> Vec<u32> {
        let mut body = Body::default();
        // Large chunks stay where they are, so that ids are cut.
        for chunk in bytes.chunks(size) {
            body.push(Bytes::copy_from_slice(chunk));
        }
        body.seal();
        let end = bytes.len();
        let part = Part::plain(kind, Span { start: 0, end });
        let ids: Vec<u32> = part.token_ids(&body).collect();
        assert_eq!(count(kind, Cursor::new(&body).pieces(part.span)), ids.len() as u64);
        ids
    }

    #[test]
    fn ids_are_read_in_both_encodings_at_any_split() {
        let want: Vec<u32> = (0..3000).map(|id| id * 1_431_655).collect();
        let json = format!("[ {}\n]", want.iter().map(u32::to_string).collect::<Vec<_>>().join(" ,"));
        let (mut packed, mut tagged) = (Vec::new(), Vec::new());
        for id in &want {
            prost::encoding::encode_varint(u64::from(*id), &mut packed);
        }
        prost::encoding::uint32::encode_repeated(2, &want, &mut tagged);
        for size in [1024, 1025, 1031, 100_000] {
            assert_eq!(ids(PartKind::Tokens, json.as_bytes(), size), want, "chunks of {size}");
            assert_eq!(ids(PartKind::PackedTokens, &packed, size), want, "chunks of {size}");
            assert_eq!(ids(PartKind::TaggedTokens, &tagged, size), want, "chunks of {size}");
        }
    }

    #[test]
    fn unusual_number_spellings_are_ids() {
        assert_eq!(ids(PartKind::Tokens, b"[1e2,5.0,0,4294967295]", 99), [100, 5, 0, u32::MAX]);
        assert_eq!(ids(PartKind::Tokens, b"[]", 99), [0_u32; 0]);
        // More than 32 bits, a number of more than ten bytes, and one without an end.
        assert_eq!(ids(PartKind::PackedTokens, b"\x81\x80\x80\x80\x10\xff", 99), [1]);
        assert_eq!(ids(PartKind::PackedTokens, &[&[0x80; 12][..], &[1]].concat(), 99), [0]);
        assert_eq!(ids(PartKind::Text, b"[1]", 99), [0_u32; 0], "text is none");
    }
}
