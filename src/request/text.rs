//! The text of JSON strings, between its quotes.

/// How many bytes from the start are ordinary text of a string: what ends it is found
/// first, and then whether a control character stands before that.
pub(super) fn plain_run(bytes: &[u8]) -> usize {
    let run = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
    let text = &bytes[..run];
    if has_control(text) { text.iter().position(|&byte| byte < 0x20).unwrap_or(run) } else { run }
}

/// Whether a byte is a control character. Blocks of 32 are tested without a branch per
/// byte, which the compiler turns into vector code as long as it stands alone.
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
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let code = rest.get(at + 1).copied().unwrap_or(b'\\');
        rest = rest.get(at + 2..).unwrap_or_default();
        let plain = match code {
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (character, used) = unicode(rest);
                let mut buffer = [0; 4];
                out.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
                rest = &rest[used..];
                continue;
            }
            other => other,
        };
        out.push(plain);
    }
    out.extend_from_slice(rest);
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// The character after `\u` and how many bytes of `rest` it took.
fn unicode(rest: &[u8]) -> (char, usize) {
    let hex = |from: usize| -> Option<u32> {
        let digits = rest.get(from..from + 4)?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let Some(first) = hex(0) else { return (char::REPLACEMENT_CHARACTER, rest.len().min(4)) };
    if let 0xd800..=0xdbff = first
        && rest.get(4..6) == Some(b"\\u")
        && let Some(second @ 0xdc00..=0xdfff) = hex(6)
    {
        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 10);
    }
    (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 4)
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
        assert_eq!(unescape(b"\xff"), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn escape_and_unescape_are_inverse(text in any::<String>()) {
            let escaped = escape(&text);
            prop_assert_eq!(unescape(escaped.as_bytes()), text.clone());
            prop_assert_eq!(serde_json::from_str::<String>(&format!("\"{escaped}\"")).unwrap(), text);
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
