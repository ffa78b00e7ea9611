//! Byte-level BPE without what the general path of `tokenizers` keeps of every word (offsets, alignments).

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, BuildError, MatchKind};
use regex_automata::meta::Regex;
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Model, NormalizedString, Normalizer, NormalizerWrapper, Tokenizer};
use xxhash_rust::xxh3::Xxh3Builder;

use super::encode_failure::{EncodeFailure, MAX_WORD};

/// End of the usual patterns of words: spaces but for the last, which goes with the word behind them.
const SPACES: &str = r"|\s+(?!\S)|\s+";
/// Number of that alternative beside the rest of the pattern.
const SPACES_NUMBER: usize = 1;

/// Words that are remembered at most, and bytes of one.
const WORDS: usize = 1 << 15;
const WORD: usize = 64;

/// Tokens of words, of a thread.
pub(super) type Words = HashMap<Box<str>, Box<[u32]>, Xxh3Builder>;

/// The parts of a tokenizer whose words follow a pattern and whose model sees their bytes.
#[derive(Debug)]
pub(super) struct Fast {
    raw: Added,
    normalized: Added,
    is_nfc: bool,
    words: Regex,
    /// Characters that stand for bytes.
    letters: [char; 256],
}

/// Finds added tokens in a text, leftmost and longest; `None` if there are none.
pub(super) fn matcher(tokens: &[&AddedToken]) -> Result<Option<AhoCorasick>, BuildError> {
    let mut builder = AhoCorasickBuilder::new();
    let contents = tokens.iter().map(|token| &token.content);
    let matcher = builder.match_kind(MatchKind::LeftmostLongest).build(contents)?;
    Ok(Some(matcher).filter(|_| !tokens.is_empty()))
}

/// Added tokens, matched leftmost and longest.
#[derive(Debug)]
struct Added {
    matcher: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Added {
    fn new(tokens: &[(u32, AddedToken)], normalized: bool) -> Option<Self> {
        let is_chosen = |token: &AddedToken| token.normalized == normalized && !token.content.is_empty();
        let (ids, chosen): (Vec<u32>, Vec<&AddedToken>) =
            tokens.iter().filter(|(_, token)| is_chosen(token)).map(|(id, token)| (*id, token)).unzip();
        let matcher = matcher(&chosen).ok()?;
        Some(Self { matcher, ids })
    }

    /// Goes through the tokens of a text and what is between them.
    fn split<E>(
        &self,
        text: &str,
        out: &mut Vec<u32>,
        mut between: impl FnMut(&str, &mut Vec<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        for found in self.matcher.iter().flat_map(|matcher| matcher.find_iter(text)) {
            between(text.get(from..found.start()).unwrap_or_default(), out)?;
            out.extend(self.ids.get(found.pattern().as_usize()));
            from = found.end();
        }
        between(text.get(from..).unwrap_or_default(), out)
    }
}

impl Fast {
    /// The fast path for a tokenizer whose words follow this pattern; `None` where it has anything that is not
    /// known here.
    pub(super) fn new(tokenizer: &Tokenizer, pattern: &str) -> Option<Self> {
        let ModelWrapper::BPE(bpe) = tokenizer.get_model() else { return None };
        let is_plain = bpe.dropout.is_none()
            && bpe.unk_token.is_none()
            && !bpe.byte_fallback
            && bpe.continuing_subword_prefix.as_deref().unwrap_or_default().is_empty()
            && bpe.end_of_word_suffix.as_deref().unwrap_or_default().is_empty();
        let is_nfc = match tokenizer.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        let tokens: Vec<(u32, AddedToken)> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let looks_around = |token: &AddedToken| token.lstrip || token.rstrip || token.single_word;
        // Those that are normalized are matched as the normalizer leaves them.
        let changes = |token: &AddedToken| token.normalized && !token.content.is_ascii();
        if !is_plain || tokens.iter().any(|(_, token)| looks_around(token) || is_nfc && changes(token)) {
            return None;
        }
        let words = Regex::new_many(&[pattern.strip_suffix(SPACES)?, r"\s+"]).ok()?;
        let (raw, normalized) = (Added::new(&tokens, false)?, Added::new(&tokens, true)?);
        Some(Self { raw, normalized, is_nfc, words, letters: letters() })
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        known: &mut Words,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeFailure> {
        self.raw.split(text, out, |part, out| {
            let normal = (self.is_nfc && !part.is_ascii()).then(|| normalized(tokenizer, part)).transpose();
            let normal = normal.map_err(|_| EncodeFailure::Refused)?;
            let part = normal.as_deref().unwrap_or(part);
            self.normalized.split(part, out, |part, out| self.words(tokenizer, part, known, out))
        })
    }

    fn words(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        known: &mut Words,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeFailure> {
        let mut rest = text;
        while let Some(found) = self.words.find(rest) {
            let mut end = found.end();
            if found.pattern().as_usize() == SPACES_NUMBER && end < rest.len() {
                let last =
                    rest.get(..end).and_then(|spaces| spaces.chars().next_back()).map_or(0, char::len_utf8);
                if end > found.start() + last {
                    end -= last;
                }
            }
            // What no alternative takes is a word as well; the usual patterns leave nothing.
            let (before, word) = (rest.get(..found.start()), rest.get(found.start()..end));
            for word in [before, word].into_iter().flatten() {
                self.word(tokenizer, word, known, out)?;
            }
            rest = rest.get(end..).unwrap_or_default();
            if end == 0 {
                break;
            }
        }
        self.word(tokenizer, rest, known, out)
    }

    fn word(
        &self,
        tokenizer: &Tokenizer,
        word: &str,
        known: &mut Words,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeFailure> {
        if word.is_empty() {
            return Ok(());
        }
        if let Some(ids) = known.get(word) {
            out.extend_from_slice(ids);
            return Ok(());
        }
        if word.len() > MAX_WORD {
            return Err(EncodeFailure::LongWord);
        }
        let letters: String = word.bytes().filter_map(|byte| self.letters.get(usize::from(byte))).collect();
        let from = out.len();
        let tokens = tokenizer.get_model().tokenize(&letters).map_err(|_| EncodeFailure::Refused)?;
        out.extend(tokens.into_iter().map(|token| token.id));
        if word.len() <= WORD {
            if known.len() >= WORDS {
                known.clear();
            }
            known.insert(word.into(), out.get(from..).unwrap_or_default().into());
        }
        Ok(())
    }
}

fn normalized(tokenizer: &Tokenizer, text: &str) -> tokenizers::Result<String> {
    let mut text = NormalizedString::from(text);
    tokenizer.get_normalizer().map_or(Ok(()), |normalizer| normalizer.normalize(&mut text))?;
    Ok(text.get().to_owned())
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
