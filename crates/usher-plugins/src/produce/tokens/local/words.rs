//! Words of a text, which a model gets one by one.

use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use tokenizers::Tokenizer;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::encode_failure::MAX_WORD;
use super::pieces::PATTERNS;
use super::spaced::Spaced;

/// End of the usual patterns of words: spaces but for the last, which goes with the word behind them.
const SPACES: &str = r"|\s+(?!\S)|\s+";
/// Number of that alternative beside the rest of the pattern.
const SPACES_NUMBER: usize = 1;

/// A way to split texts into words.
#[derive(Debug)]
pub(super) enum WordSplit {
    /// By patterns, each of which splits what the one before it left. The model sees a letter for each byte.
    Patterns(Vec<Regex>, Box<[char; 256]>),
    /// Before spaces, which the model sees as a letter of their own.
    Spaced(Spaced),
}

impl WordSplit {
    /// The way of a tokenizer; `None` if it is not known here.
    pub(super) fn of(tokenizer: &Tokenizer, bpe: &BPE) -> Option<Self> {
        let is_empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
        let has_own_letters = is_empty(&bpe.continuing_subword_prefix) && is_empty(&bpe.end_of_word_suffix);
        if bpe.dropout.is_some() || !has_own_letters {
            return None;
        }
        let Some(patterns) = patterns(tokenizer) else { return Spaced::of(tokenizer, bpe).map(Self::Spaced) };
        let is_plain = bpe.unk_token.is_none() && !bpe.byte_fallback;
        let patterns: Option<Vec<Regex>> = patterns.iter().map(|pattern| compile(pattern)).collect();
        patterns.filter(|_| is_plain).map(|patterns| Self::Patterns(patterns, Box::new(letters())))
    }

    /// Goes through the words of a part of a text that has no added tokens. `is_first`: nothing is before it.
    pub(super) fn split<E>(
        &self,
        text: &str,
        is_first: bool,
        word: &mut dyn FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Patterns(patterns, _) => by_patterns(patterns, text, word),
            Self::Spaced(spaced) => spaced.split(text, is_first, word),
        }
    }

    /// A word as the model sees it.
    pub(super) fn letters(&self, word: &str) -> String {
        match self {
            Self::Patterns(_, letters) => {
                word.bytes().filter_map(|byte| letters.get(usize::from(byte))).collect()
            }
            Self::Spaced(spaced) => spaced.letters(word),
        }
    }

    /// Returns `true` if a word takes too long. Line ends are within those that are split before spaces.
    pub(super) fn is_too_long(&self, word: &str) -> bool {
        let is_long = |word: &str| word.len() > MAX_WORD;
        is_long(word)
            && match self {
                Self::Patterns(..) => true,
                Self::Spaced(_) => word.split(char::is_whitespace).any(is_long),
            }
    }
}

/// The patterns of words of a byte-level tokenizer that splits by them.
pub(super) fn patterns(tokenizer: &Tokenizer) -> Option<Vec<String>> {
    match tokenizer.get_pre_tokenizer()? {
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex && !bytes.add_prefix_space => {
            Some(vec![PATTERNS.first()?.to_string()])
        }
        PreTokenizerWrapper::Sequence(steps) => {
            let (last, splits) = steps.as_ref().split_last()?;
            let PreTokenizerWrapper::ByteLevel(bytes) = last else { return None };
            if bytes.use_regex || bytes.add_prefix_space || splits.is_empty() {
                return None;
            }
            splits.iter().map(pattern).collect()
        }
        _ => None,
    }
}

/// The pattern whose matches are words, as is everything between them.
fn pattern(step: &PreTokenizerWrapper) -> Option<String> {
    let PreTokenizerWrapper::Split(split) = step else { return None };
    match &split.pattern {
        SplitPattern::Regex(pattern)
            if !split.invert && split.behavior == SplitDelimiterBehavior::Isolated =>
        {
            Some(pattern.clone())
        }
        _ => None,
    }
}

/// A pattern without its end of [`SPACES`], and white space.
fn compile(pattern: &str) -> Option<Regex> {
    let (words, has_spaces) = match pattern.strip_suffix(SPACES) {
        Some(words) => (words, true),
        None => (pattern, false),
    };
    // Matches are looked for in the rest of a text: what is before it must not count, and each has to take of it.
    let syntax = syntax::parse(words).ok()?;
    let properties = syntax.properties();
    if !properties.look_set().is_empty() || properties.minimum_len().is_none_or(|len| len == 0) {
        return None;
    }
    let both = [words, r"\s+"];
    Regex::new_many(if has_spaces { &both } else { &both[..1] }).ok()
}

fn by_patterns<E>(
    patterns: &[Regex],
    text: &str,
    word: &mut dyn FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let Some((pattern, others)) = patterns.split_first() else {
        return if text.is_empty() { Ok(()) } else { word(text) };
    };
    let mut rest = text;
    while let Some(found) = pattern.find(rest) {
        let mut end = found.end();
        if found.pattern().as_usize() == SPACES_NUMBER && end < rest.len() {
            let last =
                rest.get(..end).and_then(|spaces| spaces.chars().next_back()).map_or(0, char::len_utf8);
            if end > found.start() + last {
                end -= last;
            }
        }
        // What no alternative takes is a word as well; the usual patterns leave nothing.
        for part in [rest.get(..found.start()), rest.get(found.start()..end)].into_iter().flatten() {
            by_patterns(others, part, word)?;
        }
        rest = rest.get(end..).unwrap_or_default();
    }
    by_patterns(others, rest, word)
}

/// The characters that GPT-2 writes bytes with: printable ones for themselves, others from 256 on.
fn letters() -> [char; 256] {
    let mut next = 256;
    let mut letters = ['\0'; 256];
    for (byte, letter) in (0..=255_u8).zip(letters.iter_mut()) {
        *letter = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap_or_default()
            }
        };
    }
    letters
}
