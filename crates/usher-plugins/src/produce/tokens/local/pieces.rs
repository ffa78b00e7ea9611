//! Places to cut a text so that the tokens of its pieces, one after the other, are those of the whole.

use aho_corasick::AhoCorasick;
use tokenizers::{AddedToken, Tokenizer};

use super::fast::matcher;

/// Patterns whose words don't go beyond a single line feed that follows no space and that a letter of ASCII
/// follows: those of GPT-2, of cl100k (Llama 3 and Qwen 2 have it as well, the latter with single digits)
/// and of o200k.
pub(super) const PATTERNS: [&str; 4] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Cuts texts before added tokens and, where the words' pattern is known, behind line feeds.
///
/// Added tokens that are not normalized are matched first, leftmost and longest, and what is between them is
/// tokenized apart. So a cut where such a match begins changes nothing, unless the token, or a token on
/// the left, looks at its neighbours: `lstrip`, `single_word`, or `rstrip` beside a token that begins with
/// a space.
#[derive(Debug)]
pub(super) struct Cuts {
    added: Option<AhoCorasick>,
    /// Whether a match of that number may begin a piece.
    begins: Vec<bool>,
    at_lines: bool,
    least: usize,
}

impl Cuts {
    /// Cuts for a tokenizer, whose words follow this pattern if it is one of the usual: into pieces of so many
    /// bytes at least, but for the last.
    pub(super) fn new(tokenizer: &Tokenizer, pattern: Option<&str>, least: usize) -> Self {
        let tokens: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
        let raw: Vec<&AddedToken> =
            tokens.iter().filter(|token| !token.normalized && !token.content.is_empty()).collect();
        let begins = raw
            .iter()
            .map(|token| {
                let first = token.content.chars().next();
                let is_apart = first.is_some_and(|first| !first.is_whitespace() && !is_word(first));
                is_apart && !token.lstrip && !token.single_word
            })
            .collect();
        let at_lines =
            pattern.is_some_and(|pattern| PATTERNS.contains(&pattern)) && !tokens.iter().any(spoils_lines);
        Self { added: matcher(&raw).ok().flatten(), begins, at_lines, least }
    }

    /// The pieces of a text in order: the longest common beginning of two texts has the same pieces in both,
    /// but for its last.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut cuts: Vec<usize> = Vec::new();
        let mut from = 0;
        let mut start = 0;
        let mut cut = |at: usize, start: &mut usize| {
            if at >= *start + self.least {
                cuts.push(at);
                *start = at;
            }
        };
        if let Some(added) = &self.added {
            for found in added.find_iter(text) {
                self.lines(text, from, found.start(), |at| cut(at, &mut start));
                if self.begins.get(found.pattern().as_usize()) == Some(&true) {
                    cut(found.start(), &mut start);
                }
                from = found.end();
            }
        }
        self.lines(text, from, text.len(), |at| cut(at, &mut start));
        let mut pieces = Vec::with_capacity(cuts.len() + 1);
        let mut rest = text;
        let mut before = 0;
        for at in cuts {
            let Some((piece, behind)) = rest.split_at_checked(at - before) else { break };
            pieces.push(piece);
            (rest, before) = (behind, at);
        }
        pieces.push(rest);
        pieces
    }

    /// Places behind line feeds in a part of a text that no added token is in.
    fn lines(&self, text: &str, from: usize, to: usize, mut cut: impl FnMut(usize)) {
        let Some(part) = text.get(from..to).filter(|_| self.at_lines) else { return };
        for (index, _) in part.match_indices('\n') {
            let before = part.get(..index).and_then(|before| before.chars().next_back());
            let after = part.as_bytes().get(index + 1);
            if before.is_some_and(|c| !c.is_whitespace()) && after.is_some_and(u8::is_ascii_alphabetic) {
                cut(from + index + 1);
            }
        }
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Whether an added token may reach over a line's end, or looks beyond its own.
fn spoils_lines(token: &AddedToken) -> bool {
    let mut bytes = token.content.bytes().zip(token.content.bytes().skip(1));
    let reaches_over = bytes.any(|(byte, next)| byte == b'\n' && next.is_ascii_alphabetic());
    reaches_over || token.lstrip || token.single_word
}
