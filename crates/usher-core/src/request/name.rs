//! Finds a member by its name in JSON that passes in chunks, without parsing it.

use memchr::memmem::Finder;

/// The name of a member with its quotes, found as it stands: one that is written
/// with escapes is not. Nothing inside of a string can be taken for it, as quotes
/// are escaped there. Names that end alike, as `"a\"usage"`, are told apart by the
/// backslash before their inner quote.
#[derive(Debug)]
pub(super) struct Name {
    quoted: &'static [u8],
    finder: Finder<'static>,
}

impl Name {
    /// `quoted` is the name with its quotes. It must hold no others.
    pub(super) fn new(quoted: &'static str) -> Self {
        Self { quoted: quoted.as_bytes(), finder: Finder::new(quoted) }
    }

    /// Length, quotes included.
    pub(super) fn len(&self) -> usize {
        self.quoted.len()
    }

    /// Offset of the name in `bytes`, at `from` or later. `backslash` says whether the byte
    /// before the first is one.
    pub(super) fn find(&self, bytes: &[u8], mut from: usize, backslash: bool) -> Option<usize> {
        loop {
            let at = from + self.finder.find(&bytes[from..])?;
            if !is_escaped(bytes, at, backslash) {
                return Some(at);
            }
            from = at + 1;
        }
    }

    /// Number of bytes of the name at the end of `bytes`.
    pub(super) fn begun(&self, bytes: &[u8], backslash: bool) -> usize {
        let tail = &bytes[bytes.len().saturating_sub(self.len() - 1)..];
        // A part of the name has a quote only at its start.
        let last = tail.iter().rposition(|&byte| byte == b'"');
        let found = last.map_or(0, |at| tail.len() - at);
        let found = if tail.ends_with(&self.quoted[..found]) { found } else { 0 };
        if is_escaped(bytes, bytes.len() - found, backslash) { 0 } else { found }
    }

    /// Number of the name's bytes after its first `matched` ones that `bytes` begins with.
    pub(super) fn goes_on(&self, bytes: &[u8], matched: usize) -> usize {
        bytes.iter().zip(&self.quoted[matched..]).take_while(|(a, b)| a == b).count()
    }
}

/// Returns `true` if the byte before `at` is a backslash.
fn is_escaped(bytes: &[u8], at: usize, backslash: bool) -> bool {
    match at.checked_sub(1) {
        Some(before) => bytes[before] == b'\\',
        None => backslash,
    }
}
