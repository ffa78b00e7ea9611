//! Gives a response back the model name that the client asked for.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};

use super::name::Name;
use super::text;

static MODEL: LazyLock<Name> = LazyLock::new(|| Name::new("\"model\""));
/// White space that may stand around the colon. More than this is nobody's
/// response, and what is held back must have a bound.
const MAX_SPACE: usize = 16;

/// Replaces `"model":"<target>"` by the client's name as the chunks of a response
/// pass, also where a chunk ends in the middle of it. At most the bytes from a
/// `"model"` on are held back, until the next chunk decides.
#[derive(Debug)]
pub struct ModelRestorer {
    /// The name to find, with JSON's escapes and its quotes.
    target: Vec<u8>,
    /// The name to put in its place, with escapes and quotes as well.
    incoming: Vec<u8>,
    held: BytesMut,
    /// `true` if a backslash stood before what is held back, or before the next chunk.
    backslash: bool,
}

enum Found {
    /// The value is at these offsets and is the target.
    Target(usize, usize),
    Other,
    Incomplete,
}

impl ModelRestorer {
    /// `target` is the name that was sent upstream, `incoming` the client's.
    pub fn new(target: &str, incoming: &str) -> Self {
        let quoted = |name: &str| format!("\"{}\"", text::escape(name)).into_bytes();
        Self { target: quoted(target), incoming: quoted(incoming), held: BytesMut::new(), backslash: false }
    }

    /// The next chunk with names replaced. With `last`, nothing is held back.
    pub fn feed(&mut self, chunk: Bytes, last: bool) -> Bytes {
        let bytes = if self.held.is_empty() {
            chunk
        } else {
            self.held.extend_from_slice(&chunk);
            self.held.split().freeze()
        };
        let mut out = BytesMut::new();
        let (mut copied, mut from) = (0, 0);
        let mut keep = bytes.len();
        while let Some(at) = MODEL.find(&bytes, from, self.backslash) {
            from = at + MODEL.len();
            match self.value_after(&bytes, from) {
                Found::Target(start, end) => {
                    out.extend_from_slice(&bytes[copied..start]);
                    out.extend_from_slice(&self.incoming);
                    (copied, from) = (end, end);
                }
                Found::Other => {}
                Found::Incomplete => {
                    keep = at;
                    break;
                }
            }
        }
        if keep == bytes.len() {
            // The quotes of what was found are nobody's beginning.
            let backslash = self.backslash && from == 0;
            keep -= MODEL.begun(&bytes[from..], backslash);
        }
        if last {
            keep = bytes.len();
        }
        if let Some(before) = keep.checked_sub(1) {
            self.backslash = bytes[before] == b'\\';
        }
        self.held.extend_from_slice(&bytes[keep..]);
        if copied == 0 {
            return bytes.slice(..keep);
        }
        out.extend_from_slice(&bytes[copied..keep]);
        out.freeze()
    }

    fn value_after(&self, bytes: &[u8], from: usize) -> Found {
        let space =
            |at: usize| bytes[at..].iter().take(MAX_SPACE).take_while(|b| b.is_ascii_whitespace()).count();
        let colon = from + space(from);
        match bytes.get(colon) {
            None => return Found::Incomplete,
            Some(b':') => {}
            Some(_) => return Found::Other,
        }
        let start = colon + 1 + space(colon + 1);
        let value = &bytes[start..];
        if value.starts_with(&self.target) {
            Found::Target(start, start + self.target.len())
        } else if self.target.starts_with(value) {
            Found::Incomplete
        } else {
            Found::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restore(text: &str, size: usize) -> String {
        let mut restorer = ModelRestorer::new("back\"end", "public");
        let mut out = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            out.extend_from_slice(&restorer.feed(Bytes::copy_from_slice(chunk), false));
        }
        out.extend_from_slice(&restorer.feed(Bytes::new(), true));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn model_names_are_restored_at_any_split() {
        let table = [
            (r#"{"id":"1","model":"back\"end","x":2}"#, r#"{"id":"1","model":"public","x":2}"#),
            (r#"{"model" : "back\"end"}"#, r#"{"model" : "public"}"#),
            (
                "data: {\"model\":\"back\\\"end\"}\n\ndata: {\"model\":\"back\\\"end\"}\n\n",
                "data: {\"model\":\"public\"}\n\ndata: {\"model\":\"public\"}\n\n",
            ),
            (
                r#"{"model":"other","text":"\"model\":\"back\\\"end\""}"#,
                r#"{"model":"other","text":"\"model\":\"back\\\"end\""}"#,
            ),
            (r#"{"model":"back\"ender"}"#, r#"{"model":"back\"ender"}"#),
            (r#"{"model""model":"back\"end"}"#, r#"{"model""model":"public"}"#),
            (r#"{"a\"model":"back\"end"}"#, r#"{"a\"model":"back\"end"}"#),
            (r#"{"\\":"\\","model":"back\"end"}"#, r#"{"\\":"\\","model":"public"}"#),
            (r#"{"model":"back\"e"#, r#"{"model":"back\"e"#),
            ("", ""),
        ];
        for (text, want) in table {
            for size in 1..=text.len().max(1) {
                assert_eq!(restore(text, size), want, "{text} in chunks of {size}");
            }
        }
    }

    #[test]
    fn held_back_bytes_are_bounded() {
        let mut restorer = ModelRestorer::new("backend", "public");
        restorer.feed(Bytes::from_static(b"\"model\""), false);
        for _ in 0..100 {
            restorer.feed(Bytes::from_static(b"          "), false);
            assert!(restorer.held.len() <= MODEL.len() + 2 * MAX_SPACE + 16);
        }
    }

    #[test]
    fn a_chunk_without_the_name_is_passed_on_as_it_is() {
        let chunk = Bytes::from_static(b"data: {\"choices\":[]}\n\n");
        let out = ModelRestorer::new("backend", "public").feed(chunk.clone(), false);
        assert_eq!(out.as_ptr(), chunk.as_ptr());
    }
}
