//! The text of JSON strings, between its quotes.

use std::ops::ControlFlow;

use smallvec::SmallVec;

/// Number of bytes from the start that are ordinary text of a string: what ends it is found
/// first, and then whether a control character stands before that.
pub(super) fn plain_run(bytes: &[u8]) -> usize {
    let run = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
    let text = &bytes[..run];
    if has_control(text) { text.iter().position(|&byte| byte < 0x20).unwrap_or(run) } else { run }
}

/// Returns `true` if a byte is a control character. Blocks of 32 are tested without a
/// branch per byte, which the compiler turns into vector code as long as it stands alone.
#[inline(never)]
fn has_control(text: &[u8]) -> bool {
    let any = |block: &[u8]| block.iter().fold(false, |any, &byte| any | (byte < 0x20));
    match text.last_chunk::<32>() {
        // The last block overlaps with the one before.
        Some(last) => text.as_chunks::<32>().0.iter().any(|block| any(block)) || any(last),
        None => any(text),
    }
}

/// Undoes JSON's escapes. `raw` has passed the scanner; lone surrogates and
/// bytes that are not UTF-8 become U+FFFD.
pub fn unescape(raw: &[u8]) -> String {
    let mut out = Vec::with_capacity(raw.len());
    let mut collect = |text: &[u8]| {
        out.extend_from_slice(text);
        ControlFlow::Continue(())
    };
    let _ = Unescaper::default().all([raw], &mut collect);
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// Number of bytes of text once its escapes are undone. Nothing is copied.
pub fn unescaped_len<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> usize {
    let mut len = 0;
    let mut add = |text: &[u8]| {
        len += text.len();
        ControlFlow::Continue(())
    };
    let _ = Unescaper::default().all(pieces, &mut add);
    len
}

/// Undoes JSON's escapes in text that comes in pieces, and hands on what it comes to in
/// slices of the pieces. The text has passed the scanner; lone surrogates become
/// U+FFFD, bytes that are not UTF-8 stay as they are.
#[derive(Debug, Default)]
pub struct Unescaper {
    /// An escape that the end of a piece cut, up to there.
    begun: SmallVec<[u8; LONGEST_ESCAPE]>,
}

/// A character of two UTF-16 units.
const LONGEST_ESCAPE: usize = br"\ud83d\ude00".len();

impl Unescaper {
    /// Undoes the escapes of a whole text, until `out` has enough.
    pub fn all<'a>(
        mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        out: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for piece in pieces {
            self.feed(piece, out)?;
        }
        self.finish(out)
    }

    /// The next piece of the text.
    fn feed(&mut self, piece: &[u8], out: &mut impl FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut rest = piece;
        while !self.begun.is_empty() {
            let begun = self.begun.len();
            let room = LONGEST_ESCAPE.saturating_sub(begun).min(rest.len());
            self.begun.extend_from_slice(&rest[..room]);
            let Some((character, used)) = escaped(&self.begun) else { return ControlFlow::Continue(()) };
            self.begun.truncate(begun);
            self.begun.drain(..used.min(begun));
            rest = &rest[used.saturating_sub(begun)..];
            emit(character, out)?;
        }
        while let Some(at) = memchr::memchr(b'\\', rest) {
            if at > 0 {
                out(&rest[..at])?;
            }
            rest = &rest[at..];
            let Some((character, used)) = escaped(rest) else {
                self.begun.extend_from_slice(rest);
                return ControlFlow::Continue(());
            };
            emit(character, out)?;
            rest = &rest[used..];
        }
        if rest.is_empty() { ControlFlow::Continue(()) } else { out(rest) }
    }

    /// The end of the text. The scanner lets no escape end there but a surrogate, which
    /// is alone then.
    fn finish(&mut self, out: &mut impl FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
        while !self.begun.is_empty() {
            let character = if self.begun.len() == 1 { '\\' } else { char::REPLACEMENT_CHARACTER };
            self.begun.drain(..self.begun.len().min(UNIT));
            emit(character, out)?;
        }
        ControlFlow::Continue(())
    }
}

/// Length of `\u0000`.
const UNIT: usize = 6;

fn emit(character: char, out: &mut impl FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
    out(character.encode_utf8(&mut [0; 4]).as_bytes())
}

/// The character that an escape at the start of `bytes` stands for, and the escape's
/// length; `None` when it may go on behind their end.
fn escaped(bytes: &[u8]) -> Option<(char, usize)> {
    let plain = match bytes.get(1)? {
        b'b' => '\x08',
        b'f' => '\x0c',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode(bytes),
        other if other.is_ascii() => char::from(*other),
        _ => char::REPLACEMENT_CHARACTER,
    };
    Some((plain, 2))
}

/// The character that a `\u` escape stands for, and the escape's length.
fn unicode(bytes: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| -> Option<u32> {
        let digits = bytes.get(at + 2..at + UNIT)?;
        // What is no number is no surrogate and no character.
        let number = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
        Some(number.unwrap_or(u32::MAX))
    };
    let first = unit(0)?;
    if !(0xd800..=0xdbff).contains(&first) {
        return Some((char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), UNIT));
    }
    let follows = match bytes.get(UNIT..) {
        Some([b'\\', b'u', ..]) => true,
        None | Some([] | [b'\\']) => return None,
        Some(_) => false,
    };
    if follows && let second @ 0xdc00..=0xdfff = unit(UNIT)? {
        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return Some((char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 2 * UNIT));
    }
    Some((char::REPLACEMENT_CHARACTER, UNIT))
}

/// Writes text as the inside of a JSON string, without the quotes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if (control as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", control as u32)),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_are_undone_as_serde_json_does() {
        for text in [r#"plain"#, r#"a\"b\\c\/d"#, r#"\b\f\n\r\t"#, r#"\u00e9\u4e2d"#, r#"\ud83d\ude00!"#] {
            let want: String = serde_json::from_str(&format!("\"{text}\"")).unwrap();
            assert_eq!(unescape(text.as_bytes()), want);
        }
        assert_eq!(unescape(br"\ud83dx"), "\u{fffd}x", "a lone surrogate");
        assert_eq!(unescape(br"\ud83d\n\ud83d"), "\u{fffd}\n\u{fffd}");
        assert_eq!(unescape(br"\ud83d\u0041"), "\u{fffd}A");
        assert_eq!(unescape(b"\xff"), "\u{fffd}");
    }

    const WORDS: [&str; 10] =
        ["plain", "\u{4e2d}", r"\n", r"\/", r#"\""#, r"\\", r"\u00e9", r"\ud83d", r"\ude00", r"\ud83d\ude00"];

    #[test]
    fn unescaping_stops_when_the_callback_breaks() {
        let mut taken = Vec::new();
        let stopped = Unescaper::default().all([&br"ab\ncd"[..], b"ef"], &mut |text: &[u8]| {
            taken.push(text.to_vec());
            if text == b"\n" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(stopped.is_break());
        assert_eq!(taken, [&b"ab"[..], b"\n"]);
    }

    proptest! {
        #[test]
        fn escape_and_unescape_are_inverse(text in any::<String>()) {
            let escaped = escape(&text);
            prop_assert_eq!(unescape(escaped.as_bytes()), text.clone());
            prop_assert_eq!(serde_json::from_str::<String>(&format!("\"{escaped}\"")).unwrap(), text);
        }

        /// Wherever the text is cut, it comes to the same; and so does its length.
        #[test]
        fn escapes_are_undone_across_pieces(
            words in prop::collection::vec(0..WORDS.len(), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let text: Vec<u8> = words.into_iter().flat_map(|word| WORDS[word].bytes()).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces = || cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]);
            let mut got = Vec::new();
            let _ = Unescaper::default().all(pieces(), &mut |text: &[u8]| {
                got.extend_from_slice(text);
                ControlFlow::Continue(())
            });
            prop_assert_eq!(String::from_utf8(got).unwrap(), unescape(&text));
            prop_assert_eq!(unescaped_len(pieces()), unescape(&text).len());
        }

        /// The run of plain text is what a loop over the bytes says.
        #[test]
        fn a_plain_run_ends_at_the_first_special_byte(
            plain in prop::collection::vec(0x20u8.., 0..120),
            rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let text = [plain, rest].concat();
            let want = text.iter().position(|b| matches!(b, 0..0x20 | b'"' | b'\\')).unwrap_or(text.len());
            prop_assert_eq!(plain_run(&text), want);
        }
    }
}
