//! Number of tokens that images, videos and clips stand for, and what tells them apart.

use std::ops::ControlFlow;

use xxhash_rust::xxh64::Xxh64;

use crate::request::Span;
use crate::request::cursor::Cursor;
use crate::request::headers::Headers;
use crate::request::prompt::{Modality, Part};
use crate::request::text::{Unescaper, unescape};

use super::image;

/// Pixels that count as one token.
const PIXELS_PER_TOKEN: u64 = 1024;
/// Size of what doesn't say its size.
const DEFAULT_SIZE: (u32, u32) = (640, 360);
/// Tokens of the largest image: models scale down what is larger, and a header of a few
/// bytes may claim any size.
const MAX_IMAGE_TOKENS: u64 = 1 << 14;
/// Tokens of the longest video, as clients may claim any length.
const MAX_VIDEO_TOKENS: u64 = 1 << 20;
/// Length of a video that doesn't say it, in seconds.
const DEFAULT_SECONDS: f64 = 10.0;
/// Frames that are taken of a second.
const DEFAULT_FPS: f64 = 2.0;
/// Bytes of escaped data that are read for its size.
const MAX_ESCAPED: usize = 64 << 10;

/// An image, a video or a clip of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium {
    /// Kind: image, video or audio.
    pub modality: Modality,
    /// xxHash64 of its URL or data, or of the hash that its client sent in its place.
    pub hash: u64,
}

/// The hash of a medium's URL or data, as text without escapes.
pub(super) fn hash<'a>(pieces: impl Iterator<Item = &'a [u8]>, escaped: bool) -> u64 {
    let mut hash = Xxh64::new(0);
    if escaped {
        let _ = Unescaper::default().all(pieces, &mut |text| {
            hash.update(text);
            ControlFlow::Continue(())
        });
    } else {
        pieces.for_each(|piece| hash.update(piece));
    }
    hash.digest()
}

/// Estimates the tokens of media.
pub(super) struct Sizes<'a> {
    headers: &'a Headers,
    /// Tokens of a video: the headers speak of all of them.
    video: Option<u64>,
}

impl<'a> Sizes<'a> {
    pub(super) fn new(headers: &'a Headers) -> Self {
        Self { headers, video: None }
    }

    /// Tokens of an image: one for 1,024 pixels.
    pub(super) fn image(&self, cursor: &mut Cursor<'_>, part: &Part) -> u64 {
        let Part { span: Span { start, end }, escaped, .. } = *part;
        let size = if escaped {
            // Data with escapes is rare, and small where its size is.
            let head = Span { start, end: end.min(start.saturating_add(MAX_ESCAPED)) };
            let text = unescape(&cursor.pieces(head).collect::<Vec<_>>().concat());
            image::size(|at| text.as_bytes().get(at).copied())
        } else {
            image::size(|at| {
                let at = start.checked_add(at)?;
                if at < end { cursor.byte(at) } else { None }
            })
        };
        pixels(size.unwrap_or(DEFAULT_SIZE)).min(MAX_IMAGE_TOKENS)
    }

    /// Tokens of a video: its frames at the rate at which a model looks at them.
    pub(super) fn video(&mut self) -> u64 {
        *self.video.get_or_insert_with(|| video(self.headers))
    }
}

fn pixels((width, height): (u32, u32)) -> u64 {
    (u64::from(width) * u64::from(height) / PIXELS_PER_TOKEN).max(1)
}

fn video(headers: &Headers) -> u64 {
    let positive = |name: &str| {
        let value: f64 = headers.text(name)?.trim().parse().ok()?;
        (value.is_finite() && value > 0.0).then_some(value)
    };
    let size = headers.text("x-llm-d-video-resolution").and_then(resolution).unwrap_or(DEFAULT_SIZE);
    let fps = positive("x-llm-d-video-fps").unwrap_or(DEFAULT_FPS);
    let seconds = positive("x-llm-d-video-duration-seconds").unwrap_or(DEFAULT_SECONDS);
    // Saturates, as casts from floats do.
    let frames = ((fps * seconds).round() as u64).max(1);
    frames.saturating_mul(pixels(size)).min(MAX_VIDEO_TOKENS)
}

/// Reads `640x360`.
fn resolution(text: &str) -> Option<(u32, u32)> {
    let (width, height) = text.trim().split_once(['x', 'X'])?;
    let (width, height) = (width.trim().parse().ok()?, height.trim().parse().ok()?);
    (width > 0 && height > 0).then_some((width, height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn video_headers_give_duration_and_size() {
        let (fps, seconds, size) =
            ("x-llm-d-video-fps", "x-llm-d-video-duration-seconds", "x-llm-d-video-resolution");
        let table: [(&[(&str, &str)], u64); 11] = [
            (&[], 20 * 225),
            (&[(fps, "1")], 10 * 225),
            (&[(seconds, "30")], 60 * 225),
            (&[(fps, "0.5"), (seconds, "3")], 2 * 225),
            (&[(size, "1280x720")], 20 * 900),
            (&[(fps, "4"), (seconds, "2.5"), (size, "32X32")], 10),
            // The least is a frame of a token.
            (&[(fps, "0.01"), (size, "1x1")], 1),
            // What can't be counts as not there.
            (&[(fps, "-1"), (seconds, "nan"), (size, "0x360")], 20 * 225),
            (&[(fps, "fast"), (seconds, "inf"), (size, "640")], 20 * 225),
            (&[(size, "-640x-360")], 20 * 225),
            (&[(seconds, "1e300"), (size, "4294967295x4294967295")], MAX_VIDEO_TOKENS),
        ];
        for (headers, tokens) in table {
            assert_eq!(video(&headers.iter().copied().collect()), tokens, "{headers:?}");
        }
    }

    #[test]
    fn a_hash_is_of_the_text_without_escapes() {
        let plain = hash([&b"data:a/"[..], b"b"].into_iter(), false);
        assert_eq!(hash([&br"data:a\"[..], b"/b"].into_iter(), true), plain);
        assert_eq!(plain, xxhash_rust::xxh64::xxh64(b"data:a/b", 0));
    }
}
