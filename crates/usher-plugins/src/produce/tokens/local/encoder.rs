//! A tokenizer, and what it did before.

use std::sync::Arc;

use tokenizers::{NormalizerWrapper, Tokenizer};
use usher_core::memory::Budget;

use super::super::room::Room;
use super::cache::PieceCache;
use super::encode_failure::{EncodeFailure, MAX_WORD};
use super::fast::{Fast, Words};
use super::pieces::Cuts;
use super::words::patterns;

/// Bytes of a piece at least.
const PIECE: usize = 1024;
/// Part of that from which on the last piece is kept: a shorter one is tokenized as fast.
const KEPT: usize = 4;

/// Bytes that the tokenizer takes for one of a piece while it works: positions of its letters before and after
/// normalization, symbols, merges in a queue, tokens.
const WORKING: usize = 128;
/// Bytes of a piece up to which that doesn't count: 2 MiB for each thread.
const SMALL: usize = 16 << 10;

/// Texts → token ids.
#[derive(Debug)]
pub(super) struct Encoder {
    pub(super) tokenizer: Tokenizer,
    cuts: Cuts,
    fast: Option<Fast>,
    /// Special tokens that are added before a text and behind it.
    pub(super) around: (Vec<u32>, Vec<u32>),
    cache: PieceCache,
    kept: usize,
}

/// Bytes of a text, by where its tokens came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    pub(super) cached: u64,
    pub(super) encoded: u64,
}

/// A text's turn to be tokenized.
pub(super) struct Turn<'a> {
    /// Words that the thread remembers.
    pub(super) words: &'a mut Words,
    /// Returns `true` once the request was cancelled.
    pub(super) is_over: &'a dyn Fn() -> bool,
    pub(super) room: &'a mut Room,
}

impl Encoder {
    /// An encoder that keeps so many bytes of texts and tokens.
    ///
    /// # Errors
    /// A message if the tokenizer can't encode the letter `a`.
    pub(super) fn new(tokenizer: Tokenizer, cache: usize, budget: &Arc<Budget>) -> Result<Self, String> {
        Self::with_pieces(tokenizer, PIECE, cache, budget)
    }

    /// An encoder that splits texts into pieces of at least so many bytes.
    pub(super) fn with_pieces(
        mut tokenizer: Tokenizer,
        piece: usize,
        cache: usize,
        budget: &Arc<Budget>,
    ) -> Result<Self, String> {
        // Engines cut and pad as their requests say, not as the file does.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        let patterns = patterns(&tokenizer).filter(|_| is_nfc_or_none(&tokenizer));
        let pattern = patterns.as_deref().and_then(|patterns| match patterns {
            [one] => Some(one.as_str()),
            _ => None,
        });
        let ids = |special| tokenizer.encode_fast("a", special).map(|found| found.get_ids().to_vec());
        let (plain, wrapped) = (ids(false), ids(true));
        let (plain, wrapped) =
            (plain.map_err(|error| error.to_string())?, wrapped.map_err(|error| error.to_string())?);
        let around = around(&plain, &wrapped).ok_or("its special tokens are not around the text")?;
        Ok(Self {
            cuts: Cuts::new(&tokenizer, pattern, piece),
            fast: Fast::new(&tokenizer),
            around,
            cache: PieceCache::new(cache, budget),
            kept: piece / KEPT,
            tokenizer,
        })
    }

    /// Appends the tokens of a text, without special tokens around it.
    ///
    /// # Errors
    /// `EncodeFailure` if the request was cancelled, the memory budget is used up, or the text can't be
    /// tokenized.
    pub(super) fn encode(
        &self,
        text: &str,
        turn: &mut Turn<'_>,
        out: &mut Vec<u32>,
    ) -> Result<Sources, EncodeFailure> {
        let mut sources = Sources::default();
        for piece in self.cuts.pieces(text) {
            if piece.len() >= self.kept
                && let Some(ids) = self.cache.get(piece)
            {
                out.extend_from_slice(&ids);
                sources.cached += piece.len() as u64;
                continue;
            }
            if (turn.is_over)() {
                return Err(EncodeFailure::Abandoned);
            }
            let from = out.len();
            let working = if piece.len() > SMALL { piece.len().saturating_mul(WORKING) } else { 0 };
            turn.room.take(working).map_err(|_| EncodeFailure::NoRoom)?;
            self.piece(piece, turn.words, out)?;
            turn.room.give_back(working);
            sources.encoded += piece.len() as u64;
            if piece.len() >= self.kept {
                self.cache.insert(piece, out.get(from..).unwrap_or_default());
            }
        }
        Ok(sources)
    }

    fn piece(&self, piece: &str, words: &mut Words, out: &mut Vec<u32>) -> Result<(), EncodeFailure> {
        if let Some(fast) = &self.fast {
            return fast.encode(&self.tokenizer, piece, words, out);
        }
        // Its words aren't known here, but most of them have no white space.
        if piece.len() > MAX_WORD && piece.split(char::is_whitespace).any(|word| word.len() > MAX_WORD) {
            return Err(EncodeFailure::LongWord);
        }
        let encoded = self.tokenizer.encode_fast(piece, false).map_err(|_| EncodeFailure::Refused)?;
        out.extend_from_slice(encoded.get_ids());
        Ok(())
    }

    /// Puts these tokens around texts, whatever the tokenizer's file says.
    pub(super) fn put_around(&mut self, [before, behind]: [Option<u32>; 2]) {
        self.around = (before.into_iter().collect(), behind.into_iter().collect());
    }

    /// Special tokens around a text, by name.
    pub(super) fn names_around(&self) -> [Vec<String>; 2] {
        let names = |ids: &[u32]| {
            ids.iter().map(|&id| self.tokenizer.id_to_token(id).unwrap_or_else(|| id.to_string())).collect()
        };
        [names(&self.around.0), names(&self.around.1)]
    }

    /// Returns `true` if it has the fast path.
    pub(super) fn is_fast(&self) -> bool {
        self.fast.is_some()
    }
}

/// Tokens before and behind the plain ones.
fn around(plain: &[u32], wrapped: &[u32]) -> Option<(Vec<u32>, Vec<u32>)> {
    let start = wrapped.windows(plain.len().max(1)).position(|window| window == plain)?;
    let (before, rest) = wrapped.split_at_checked(start)?;
    Some((before.to_vec(), rest.get(plain.len()..)?.to_vec()))
}

fn is_nfc_or_none(tokenizer: &Tokenizer) -> bool {
    matches!(tokenizer.get_normalizer(), None | Some(NormalizerWrapper::NFC(_)))
}
