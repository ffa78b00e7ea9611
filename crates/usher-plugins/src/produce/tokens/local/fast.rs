//! BPE without what the general path of `tokenizers` keeps of every word (offsets, alignments).

use std::collections::HashMap;

use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Model, NormalizedString, Normalizer, NormalizerWrapper, Tokenizer};
use xxhash_rust::xxh3::Xxh3Builder;

use super::added::Added;
use super::encode_failure::EncodeFailure;
use super::spaced::Spaced;
use super::words::WordSplit;

/// Words that are remembered at most, and bytes of one.
const WORDS: usize = 1 << 15;
const WORD: usize = 64;

/// Tokens of words, of a thread.
pub(super) type Words = HashMap<Box<str>, Box<[u32]>, Xxh3Builder>;

/// The parts of a tokenizer whose words are known here.
#[derive(Debug)]
pub(super) struct Fast {
    raw: Added,
    normalized: Added,
    /// `true` if texts get a normalization form of Unicode, which leaves ASCII as it is.
    is_normalizing: bool,
    words: WordSplit,
}

impl Fast {
    /// The fast path for a tokenizer; `None` where it has anything that is not known here.
    pub(super) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(bpe) = tokenizer.get_model() else { return None };
        let words = WordSplit::of(tokenizer, bpe)?;
        let is_spaced = matches!(words, WordSplit::Spaced(_));
        let normalizer = normalizer(tokenizer);
        let is_normalizing = match normalizer {
            None => false,
            Some(
                NormalizerWrapper::NFC(_)
                | NormalizerWrapper::NFD(_)
                | NormalizerWrapper::NFKC(_)
                | NormalizerWrapper::NFKD(_),
            ) => true,
            // Done with the words.
            Some(_) if is_spaced && Spaced::is_normalized(tokenizer) => false,
            Some(_) => return None,
        };
        let tokens: Vec<(u32, AddedToken)> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let is_unknown = |token: &AddedToken| {
            // Those that are normalized are matched as the normalizer leaves them.
            let changes = normalizer.is_some() && (is_spaced || !token.content.is_ascii());
            token.lstrip || token.single_word || token.normalized && (token.rstrip || changes)
        };
        if tokens.iter().any(|(_, token)| is_unknown(token)) {
            return None;
        }
        let (raw, normalized) = (Added::new(&tokens, false)?, Added::new(&tokens, true)?);
        Some(Self { raw, normalized, is_normalizing, words })
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        known: &mut Words,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeFailure> {
        self.raw.split(text, out, |start, part, out| {
            let normal = (self.is_normalizing && !part.is_ascii()).then(|| normalized(tokenizer, part));
            let normal = normal.transpose().map_err(|_| EncodeFailure::Refused)?;
            let part = normal.as_deref().unwrap_or(part);
            self.normalized.split(part, out, |within, part, out| {
                let is_first = start + within == 0;
                self.words.split(part, is_first, &mut |word| self.word(tokenizer, word, known, out))
            })
        })
    }

    fn word(
        &self,
        tokenizer: &Tokenizer,
        word: &str,
        known: &mut Words,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeFailure> {
        if let Some(ids) = known.get(word) {
            out.extend_from_slice(ids);
            return Ok(());
        }
        if self.words.is_too_long(word) {
            return Err(EncodeFailure::LongWord);
        }
        let from = out.len();
        let tokens =
            tokenizer.get_model().tokenize(&self.words.letters(word)).map_err(|_| EncodeFailure::Refused)?;
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

/// The normalizer of a tokenizer, unless that does nothing.
fn normalizer(tokenizer: &Tokenizer) -> Option<&NormalizerWrapper> {
    let is_empty = |normalizer: &&NormalizerWrapper| match normalizer {
        NormalizerWrapper::Sequence(steps) => steps.as_ref().is_empty(),
        _ => false,
    };
    tokenizer.get_normalizer().filter(|normalizer| !is_empty(normalizer))
}

fn normalized(tokenizer: &Tokenizer, text: &str) -> tokenizers::Result<String> {
    let mut text = NormalizedString::from(text);
    tokenizer.get_normalizer().map_or(Ok(()), |normalizer| normalizer.normalize(&mut text))?;
    Ok(text.get().to_owned())
}
