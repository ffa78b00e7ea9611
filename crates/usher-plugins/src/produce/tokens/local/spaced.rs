//! Words of tokenizers that write a space as a letter, as SentencePiece does (Llama 2, Mistral, Gemma, Phi 3).

use serde_json::json;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{Model, NormalizerWrapper, Tokenizer};

/// A split of texts before spaces.
#[derive(Debug)]
pub(super) struct Spaced {
    /// Letter for a space.
    letter: char,
    /// `true` if each space begins a word; otherwise one begins where spaces follow another letter.
    at_each: bool,
    prefix: Prefix,
}

/// Space before a text that isn't in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefix {
    Never,
    /// In front of the prompt, unless it begins with one.
    First,
    /// In front of each part between added tokens that doesn't begin with one.
    Missing,
    /// In front of each part between added tokens.
    Always,
}

impl Spaced {
    /// The split of a tokenizer, or one that its model can't tell from the whole; `None` if there is none.
    pub(super) fn of(tokenizer: &Tokenizer, bpe: &BPE) -> Option<Self> {
        let replaced = tokenizer.get_normalizer().and_then(replaced);
        let spaced = match (tokenizer.get_pre_tokenizer(), replaced) {
            (Some(PreTokenizerWrapper::Metaspace(space)), None) => {
                let prefix = match space.prepend_scheme {
                    PrependScheme::Never => Prefix::Never,
                    PrependScheme::First => Prefix::First,
                    PrependScheme::Always => Prefix::Missing,
                };
                Self { letter: space.get_replacement(), at_each: space.get_split(), prefix }
            }
            (None, Some(spaced)) => spaced,
            // Which finds no space any more.
            (Some(PreTokenizerWrapper::Split(split)), Some(spaced))
                if split.pattern == SplitPattern::String(" ".to_owned()) && spaced.letter != ' ' =>
            {
                spaced
            }
            _ => return None,
        };
        (spaced.at_each || spaced.is_split_by(bpe)).then_some(spaced)
    }

    /// Returns `true` if the spaces are replaced before added tokens that are normalized are looked for.
    pub(super) fn is_normalized(tokenizer: &Tokenizer) -> bool {
        tokenizer.get_normalizer().and_then(replaced).is_some()
    }

    /// Returns `true` if what is before some space changes nothing behind it, and the other way round: no token has a
    /// space behind another letter, so no merge joins the two. A space is known to the model, so that unknown letters
    /// before it are not joined with others behind it.
    fn is_split_by(&self, bpe: &BPE) -> bool {
        let size = bpe.get_vocab_size();
        let has_inside = |token: &str| {
            let behind = token.trim_start_matches(self.letter);
            behind.contains(self.letter)
        };
        let mut found = 0;
        // Numbers with few gaps: in a vocabulary with more, not all tokens are seen, and it is left as it is.
        let ids = 0..u32::try_from(size.saturating_mul(2)).unwrap_or(u32::MAX);
        let is_apart =
            ids.filter_map(|id| bpe.id_to_token(id)).inspect(|_| found += 1).all(|token| !has_inside(&token));
        is_apart && found == size && !bpe.ignore_merges && bpe.token_to_id(&self.letter.to_string()).is_some()
    }

    /// Goes through the words of a part of a text that has no added tokens. `is_first`: nothing is before it.
    pub(super) fn split<E>(
        &self,
        text: &str,
        is_first: bool,
        word: &mut dyn FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_space = |char| char == ' ' || char == self.letter;
        let mut lacks_prefix = match self.prefix {
            Prefix::Never => false,
            Prefix::First => is_first && !text.starts_with(is_space),
            Prefix::Missing => !text.starts_with(is_space),
            Prefix::Always => true,
        };
        let mut tell = |part: &str| {
            if part.is_empty() {
                return Ok(());
            }
            if std::mem::take(&mut lacks_prefix) { word(&format!(" {part}")) } else { word(part) }
        };
        let (mut from, mut was_space) = (0, true);
        for (at, char) in text.char_indices() {
            let is_space = is_space(char);
            if is_space && (self.at_each || !was_space) {
                tell(text.get(from..at).unwrap_or_default())?;
                from = at;
            }
            was_space = is_space;
        }
        tell(text.get(from..).unwrap_or_default())
    }

    /// A word as the model sees it.
    pub(super) fn letters(&self, word: &str) -> String {
        word.replace(' ', self.letter.encode_utf8(&mut [0; 4]))
    }
}

/// The letter that a normalizer puts in place of spaces, and before a text, if it does nothing else.
fn replaced(normalizer: &NormalizerWrapper) -> Option<Spaced> {
    // What it replaces is not told otherwise.
    let steps = match normalizer {
        NormalizerWrapper::Sequence(steps) => steps.as_ref(),
        one => std::slice::from_ref(one),
    };
    let (last, before) = steps.split_last()?;
    let NormalizerWrapper::Replace(replace) = last else { return None };
    let mut letters = replace.content.chars();
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    let pattern = serde_json::to_value(replace).ok()?.get("pattern").cloned();
    let prefix = match before {
        [] => Prefix::Never,
        [NormalizerWrapper::Prepend(prepend)] if prepend.prepend == replace.content => Prefix::Always,
        _ => return None,
    };
    let is_space = pattern == Some(json!({"String": " "}));
    is_space.then_some(Spaced { letter, at_each: false, prefix })
}
