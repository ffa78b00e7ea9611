//! Labels of a series, as they stand between the braces of a sample line.

use std::borrow::Cow;

use memchr::memchr2;

/// The labels of one series. A slice of the page, checked once; values are
/// unescaped only when their text is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Labels<'a> {
    /// Everything after the opening brace, up to and with the closing one;
    /// empty when the line has no braces.
    inside: &'a [u8],
}

impl<'a> Labels<'a> {
    /// Splits what follows an opening brace into the labels and the rest of
    /// the line. `None` when the labels are not well formed.
    pub(super) fn split(after_brace: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut rest = after_brace;
        loop {
            match pair(rest) {
                Pair::Label(_, _, next) => rest = next,
                Pair::End(next) => {
                    let inside = &after_brace[..after_brace.len() - next.len()];
                    return Some((Self { inside }, next));
                }
                Pair::Malformed => return None,
            }
        }
    }

    /// Reads labels from their [`raw`](Self::raw) form.
    pub(super) fn from_raw(raw: &'a [u8]) -> Self {
        Self::split(raw).map(|(labels, _)| labels).unwrap_or_default()
    }

    /// The bytes on the page: equal bytes are equal labels.
    pub fn raw(self) -> &'a [u8] {
        self.inside
    }

    /// Name and value of each label, in the order of the page.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], LabelValue<'a>)> {
        let mut rest = self.inside;
        std::iter::from_fn(move || match pair(rest) {
            Pair::Label(name, value, next) => {
                rest = next;
                Some((name, value))
            }
            Pair::End(_) | Pair::Malformed => None,
        })
    }

    /// The value of a label; of two with the same name the first.
    pub fn get(self, name: &str) -> Option<LabelValue<'a>> {
        self.iter().find(|(found, _)| *found == name.as_bytes()).map(|(_, value)| value)
    }
}

/// The value of a label between its quotes, still escaped.
#[derive(Clone, Copy, Debug)]
pub struct LabelValue<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> LabelValue<'a> {
    /// The value with `\\`, `\"` and `\n` resolved. An unknown escape stays as
    /// it is, and bytes that are not UTF-8 become replacement characters.
    pub fn text(self) -> Cow<'a, str> {
        if !self.escaped {
            return String::from_utf8_lossy(self.raw);
        }
        let bytes: Vec<u8> = self.bytes().collect();
        Cow::Owned(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into()))
    }

    /// Returns `true` if the value is this text. Allocates nothing.
    pub fn is(self, text: &str) -> bool {
        if self.escaped { self.bytes().eq(text.bytes()) } else { self.raw == text.as_bytes() }
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        let mut rest = self.raw;
        std::iter::from_fn(move || {
            let (&first, after) = rest.split_first()?;
            let (byte, next) = match (first, after.first()) {
                (b'\\', Some(b'n')) => (b'\n', &after[1..]),
                (b'\\', Some(&quoted @ (b'\\' | b'"'))) => (quoted, &after[1..]),
                _ => (first, after),
            };
            rest = next;
            Some(byte)
        })
    }
}

enum Pair<'a> {
    /// Name, value, and what follows.
    Label(&'a [u8], LabelValue<'a>, &'a [u8]),
    /// The closing brace; what follows it.
    End(&'a [u8]),
    Malformed,
}

/// Reads one `name="value"` with the comma after it, or the closing brace.
fn pair(bytes: &[u8]) -> Pair<'_> {
    let bytes = skip_blanks(bytes);
    if let Some(rest) = bytes.strip_prefix(b"}") {
        return Pair::End(rest);
    }
    label(bytes).map_or(Pair::Malformed, |(name, value, rest)| Pair::Label(name, value, rest))
}

fn label(bytes: &[u8]) -> Option<(&[u8], LabelValue<'_>, &[u8])> {
    let length = bytes.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    let (name, rest) = bytes.split_at(length);
    if name.first().is_none_or(u8::is_ascii_digit) {
        return None;
    }
    let rest = skip_blanks(skip_blanks(rest).strip_prefix(b"=")?).strip_prefix(b"\"")?;
    let (value, rest) = quoted(rest)?;
    let rest = skip_blanks(rest);
    match rest.first()? {
        b',' => Some((name, value, &rest[1..])),
        b'}' => Some((name, value, rest)),
        _ => None,
    }
}

/// Splits at the quote that ends a value.
fn quoted(bytes: &[u8]) -> Option<(LabelValue<'_>, &[u8])> {
    let plain = memchr2(b'"', b'\\', bytes)?;
    let mut at = plain;
    while bytes.get(at) == Some(&b'\\') {
        // The escaped byte can't end the value, whatever it is.
        let after = bytes.get(at + 2..)?;
        at += 2 + memchr2(b'"', b'\\', after)?;
    }
    Some((LabelValue { raw: &bytes[..at], escaped: at != plain }, &bytes[at + 1..]))
}

/// Drops leading spaces and tabs.
pub(super) fn skip_blanks(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
    &bytes[blanks..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(inside: &str) -> Option<(Vec<(String, String)>, String)> {
        let (labels, rest) = Labels::split(inside.as_bytes())?;
        let own = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let list = labels.iter().map(|(name, value)| (own(name), value.text().into_owned())).collect();
        Some((list, own(rest)))
    }

    #[test]
    fn labels_are_read_with_escapes_blanks_and_braces() {
        // after the brace, labels, rest
        type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
        let table: [Row<'_>; 9] = [
            ("} 1", &[], " 1"),
            (r#"a="1"} 1"#, &[("a", "1")], " 1"),
            (r#"a="1",b="",} 1"#, &[("a", "1"), ("b", "")], " 1"),
            ("\ta = \"1\" ,\tb=\"2\" }1", &[("a", "1"), ("b", "2")], "1"),
            (r#"a="}{,=# "}"#, &[("a", "}{,=# ")], ""),
            (r#"a="q\"b\\n\n"}"#, &[("a", "q\"b\\n\n")], ""),
            (r#"a="\\"} x"#, &[("a", "\\")], " x"),
            (r#"a="\d"}"#, &[("a", "\\d")], ""),
            (r#"a="ü"}"#, &[("a", "ü")], ""),
        ];
        for (inside, labels, rest) in table {
            let want: Vec<_> = labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            assert_eq!(read(inside), Some((want, rest.to_owned())), "{inside}");
        }
    }

    #[test]
    fn malformed_labels_are_refused() {
        for inside in
            ["", "a", "a=", "a=\"", "a=\"1", "a=\"1\"", r#"a="1\"#, r#"a="1\"}"#, ",}", r#"1a="1"}"#]
        {
            assert_eq!(read(inside), None, "{inside}");
        }
        for inside in [r#"a="1" b="2"}"#, r#"a=1}"#, r#"="1"}"#, r#"a-b="1"}"#, r#"a="1",,}"#] {
            assert_eq!(read(inside), None, "{inside}");
        }
    }

    #[test]
    fn a_value_is_compared_without_its_escapes() {
        let (labels, _) = Labels::split(br#"a="x\"y",b="z",a="second"}"#).unwrap();
        assert!(labels.get("a").unwrap().is("x\"y"));
        assert!(!labels.get("a").unwrap().is("x\\\"y"));
        assert!(labels.get("b").unwrap().is("z"));
        assert!(labels.get("c").is_none());
        assert_eq!(Labels::from_raw(labels.raw()).get("b").unwrap().text(), "z");
    }

    #[test]
    fn invalid_utf8_becomes_replacement_characters() {
        let (labels, _) = Labels::split(b"a=\"\xff\",b=\"\\n\xff\"}").unwrap();
        assert_eq!(labels.get("a").unwrap().text(), "\u{fffd}");
        assert_eq!(labels.get("b").unwrap().text(), "\n\u{fffd}");
    }
}
