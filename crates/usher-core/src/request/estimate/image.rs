//! Size of an image, from the first bytes of its data.
//!
//! Formats: PNG (W3C, 2003, §11.2.2), GIF (GIF89a, §18), WebP (RFC 9649, §2), JPEG
//! (ITU-T T.81, annex B). Base64 is decoded byte by byte where the size is written, so an
//! image costs the same however long it is.

/// Segments of a JPEG that are looked at before its frame. Metadata takes a few; large
/// colour profiles and previews come in pieces of 64 KiB.
const MAX_SEGMENTS: usize = 256;

/// Longest beginning of a data URL (`data:image/png;base64,`).
const MAX_URL_HEAD: usize = 128;

/// Width and height in pixels of the image that `text` holds: a data URL or plain base64,
/// byte by byte. `None` for a link, for other formats, and for an image of no size.
pub(super) fn size(mut text: impl FnMut(usize) -> Option<u8>) -> Option<(u32, u32)> {
    let start = data_start(&mut text)?;
    let mut data = Data(|at: usize| base64_byte(at, |at| text(start.checked_add(at)?)));
    let (width, height) = match data.array(0)? {
        [0x89, b'P', b'N', b'G'] => {
            (u32::from_be_bytes(data.array(16)?), u32::from_be_bytes(data.array(20)?))
        }
        [b'G', b'I', b'F', b'8'] => (data.le16(6)?, data.le16(8)?),
        [b'R', b'I', b'F', b'F'] if data.array(8)? == *b"WEBP" => webp(&mut data)?,
        [0xff, 0xd8, ..] => jpeg(&mut data)?,
        _ => return None,
    };
    (width > 0 && height > 0).then_some((width, height))
}

/// Offset of the base64: behind the comma of a data URL, or at once.
fn data_start(text: &mut impl FnMut(usize) -> Option<u8>) -> Option<usize> {
    let is_url = b"data:".iter().enumerate().all(|(at, byte)| text(at) == Some(*byte));
    if !is_url {
        return Some(0);
    }
    let mut head = [0; MAX_URL_HEAD];
    for (at, place) in head.iter_mut().enumerate() {
        *place = text(at)?;
        if *place == b',' {
            return head[..at].ends_with(b";base64").then_some(at + 1);
        }
    }
    None
}

/// The byte at a place of what base64 text stands for, either alphabet (RFC 4648).
fn base64_byte(at: usize, mut text: impl FnMut(usize) -> Option<u8>) -> Option<u8> {
    let (group, place) = (at / 3 * 4, at % 3);
    let high = sextet(text(group + place)?)?;
    let low = sextet(text(group + place + 1)?)?;
    // A byte is the rest of one sextet and the beginning of the next.
    Some(high << (2 + 2 * place) | low >> (4 - 2 * place))
}

fn sextet(character: u8) -> Option<u8> {
    match character {
        b'A'..=b'Z' => Some(character - b'A'),
        b'a'..=b'z' => Some(character - b'a' + 26),
        b'0'..=b'9' => Some(character - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

/// Decoded data by its places.
struct Data<F>(F);

impl<F: FnMut(usize) -> Option<u8>> Data<F> {
    fn array<const N: usize>(&mut self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = (self.0)(at.checked_add(offset)?)?;
        }
        Some(bytes)
    }

    fn le16(&mut self, at: usize) -> Option<u32> {
        self.array(at).map(u16::from_le_bytes).map(u32::from)
    }

    fn be16(&mut self, at: usize) -> Option<u32> {
        self.array(at).map(u16::from_be_bytes).map(u32::from)
    }
}

fn webp(data: &mut Data<impl FnMut(usize) -> Option<u8>>) -> Option<(u32, u32)> {
    match &data.array(12)? {
        b"VP8 " if data.array(23)? == [0x9d, 0x01, 0x2a] => {
            // Two bits of each are a scale.
            Some((data.le16(26)? & 0x3fff, data.le16(28)? & 0x3fff))
        }
        b"VP8L" if data.array(20)? == [0x2f] => {
            let bits = u32::from_le_bytes(data.array(21)?);
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8X" => {
            let [w0, w1, w2, h0, h1, h2] = data.array(24)?;
            Some((u32::from_le_bytes([w0, w1, w2, 0]) + 1, u32::from_le_bytes([h0, h1, h2, 0]) + 1))
        }
        _ => None,
    }
}

/// Goes from segment to segment to the frame's header.
fn jpeg(data: &mut Data<impl FnMut(usize) -> Option<u8>>) -> Option<(u32, u32)> {
    let mut at = 2usize;
    for _ in 0..MAX_SEGMENTS {
        let [0xff, marker] = data.array(at)? else { return None };
        match marker {
            // A filling byte.
            0xff => at += 1,
            // Markers without a segment.
            0x01 | 0xd0..=0xd7 => at += 2,
            // Tables and arithmetic coding have numbers between those of frames.
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                return Some((data.be16(at + 7)?, data.be16(at + 5)?));
            }
            // The image itself, or its end, without a frame before it.
            0xd9 | 0xda => return None,
            _ => at = at.checked_add(2 + data.be16(at + 2)? as usize)?,
        }
    }
    None
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
