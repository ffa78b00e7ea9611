//! Places to cut a text so that the tokens of its pieces, one after the other, are those of the whole.

use aho_corasick::AhoCorasick;
use tokenizers::{AddedToken, Tokenizer};

use super::added::matcher;

/// Patterns in which a [word ends](ends_word) where white space follows: those of GPT-2, of cl100k (Llama 3 and Qwen 2
/// have it as well, the latter with single digits) and of o200k.
pub(super) const PATTERNS: [&str; 4] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Cuts texts before added tokens and, where the words' pattern is known, behind words.
///
/// Added tokens that are not normalized are matched first, leftmost and longest, and what is between them is
/// tokenized apart. So a cut where such a match begins changes nothing, unless the token, or a token on
/// the left, looks at its neighbours: `lstrip`, `single_word`, or `rstrip` beside a token that begins with
/// a space.
#[derive(Debug)]
pub(super) struct Cuts {
    added: Option<AhoCorasick>,
    /// `true` if a match of that number may begin a piece.
    begins: Vec<bool>,
    at_words: bool,
    /// Added tokens with the end of a word in them, and how many of their bytes come before it.
    over: Vec<(String, usize)>,
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
        let over: Vec<_> = tokens
            .iter()
            .filter(|token| token.normalized)
            .flat_map(|token| ends_in(&token.content))
            .collect();
        // Those are looked for in the text as it is.
        let is_changed = tokenizer.get_normalizer().is_some() && !over.is_empty();
        let at_words = pattern.is_some_and(|pattern| PATTERNS.contains(&pattern))
            && !is_changed
            && !tokens.iter().any(looks_around);
        Self { added: matcher(&raw).ok().flatten(), begins, at_words, over, least }
    }

    /// The pieces of a text in order: the longest common beginning of two texts has the same pieces in both,
    /// but for its last.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut cuts: Vec<usize> = Vec::new();
        let (mut from, mut start) = (0, 0);
        for found in self.added.iter().flat_map(|added| added.find_iter(text)) {
            self.words(text, (from, found.start()), &mut start, &mut cuts);
            let may_begin = self.begins.get(found.pattern().as_usize()) == Some(&true);
            if may_begin && found.start() >= start + self.least {
                start = found.start();
                cuts.push(start);
            }
            from = found.end();
        }
        self.words(text, (from, text.len()), &mut start, &mut cuts);
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

    /// Cuts behind words in a part of a text that no added token is in. `start` is where the last piece begins.
    fn words(&self, text: &str, (from, to): (usize, usize), start: &mut usize, cuts: &mut Vec<usize>) {
        if !self.at_words {
            return;
        }
        loop {
            let mut at = from.max(*start + self.least);
            while at < to && !text.is_char_boundary(at) {
                at += 1;
            }
            let Some(part) = text.get(at..to) else { return };
            let mut before = text.get(from..at).and_then(|before| before.chars().next_back());
            let end = part.char_indices().find(|(index, char)| {
                let before = before.replace(*char);
                before.is_some_and(|before| ends_word(before, *char)) && !self.is_in_token(text, at + index)
            });
            let Some((index, _)) = end else { return };
            *start = at + index;
            cuts.push(*start);
        }
    }

    /// Returns `true` if an added token reaches over the end of a word at this place.
    fn is_in_token(&self, text: &str, at: usize) -> bool {
        let is_there = |(content, before): &(String, usize)| {
            let start = at.checked_sub(*before);
            start.and_then(|start| text.get(start..)).is_some_and(|text| text.starts_with(content.as_str()))
        };
        self.over.iter().any(is_there)
    }
}

/// Returns `true` if every word that has the first character ends behind it when the second follows.
///
/// In each of the [`PATTERNS`] white space is the first character of a word or part of a word of white space, but for
/// line ends behind punctuation. What comes behind a run of letters is a mark or the apostrophe of a contraction, or begins
/// another word. The only thing that patterns look ahead for is behind white space. So both sides of such a place have the
/// words that they have in the whole, whatever else is there.
fn ends_word(before: char, after: char) -> bool {
    match after {
        ' ' | '\t' => !before.is_whitespace(),
        '\n' | '\r' => before.is_ascii_alphanumeric() || is_east_asian(before),
        '。' | '，' | '、' => is_east_asian(before),
        _ => false,
    }
}

/// Letters of texts that have few spaces: kana, unified ideographs, Hangul.
fn is_east_asian(char: char) -> bool {
    matches!(char, 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '\u{4e00}'..='\u{9fff}' | '가'..='힣')
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Ends of words in an added token, each with the bytes before it.
fn ends_in(content: &str) -> impl Iterator<Item = (String, usize)> {
    let pairs = content.chars().zip(content.char_indices().skip(1));
    let ends = pairs.filter(|(before, (_, after))| ends_word(*before, *after));
    ends.map(|(_, (at, _))| (content.to_owned(), at))
}

/// Returns `true` if an added token takes white space beside it, or depends on it, where no cut is seen to be near.
fn looks_around(token: &AddedToken) -> bool {
    token.lstrip || token.single_word || token.normalized && token.rstrip
}
