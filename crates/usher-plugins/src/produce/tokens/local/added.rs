//! Added tokens of a tokenizer, which are found before texts are split into words.

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, BuildError, MatchKind};
use tokenizers::AddedToken;

/// Finds added tokens in a text, leftmost and longest; `None` if there are none.
pub(super) fn matcher(tokens: &[&AddedToken]) -> Result<Option<AhoCorasick>, BuildError> {
    let mut builder = AhoCorasickBuilder::new();
    let contents = tokens.iter().map(|token| &token.content);
    let matcher = builder.match_kind(MatchKind::LeftmostLongest).build(contents)?;
    Ok(Some(matcher).filter(|_| !tokens.is_empty()))
}

/// Added tokens, matched leftmost and longest.
#[derive(Debug)]
pub(super) struct Added {
    matcher: Option<AhoCorasick>,
    /// Their numbers, and `true` if they take white space behind them.
    tokens: Vec<(u32, bool)>,
}

impl Added {
    /// Added tokens of a tokenizer, the normalized ones or the others; `None` if they are too many.
    pub(super) fn new(tokens: &[(u32, AddedToken)], normalized: bool) -> Option<Self> {
        let is_chosen = |token: &AddedToken| token.normalized == normalized && !token.content.is_empty();
        let (tokens, chosen): (Vec<(u32, bool)>, Vec<&AddedToken>) = tokens
            .iter()
            .filter(|(_, token)| is_chosen(token))
            .map(|(id, token)| ((*id, token.rstrip), token))
            .unzip();
        let matcher = matcher(&chosen).ok()?;
        Some(Self { matcher, tokens })
    }

    /// Goes through the tokens of a text and what is between them, with where that begins.
    pub(super) fn split<E>(
        &self,
        text: &str,
        out: &mut Vec<u32>,
        mut between: impl FnMut(usize, &str, &mut Vec<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        for found in self.matcher.iter().flat_map(|matcher| matcher.find_iter(text)) {
            // Nothing, where the space that one has taken is part of the next.
            between(from, text.get(from..found.start()).unwrap_or_default(), out)?;
            from = found.end();
            let Some((id, strips)) = self.tokens.get(found.pattern().as_usize()) else { continue };
            out.push(*id);
            if *strips {
                let rest = text.get(from..).unwrap_or_default();
                from += rest.len() - rest.trim_start().len();
            }
        }
        between(from, text.get(from..).unwrap_or_default(), out)
    }
}
