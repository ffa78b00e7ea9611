//! Prompts whose cached tokens model servers report.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Tokens of prompts, as model servers counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prompts {
    /// All tokens.
    pub tokens: u64,
    /// Tokens that the server had cached.
    pub cached: u64,
}

/// Counts [`Prompts`] as their responses end.
#[derive(Debug, Default)]
pub(super) struct PromptCounter {
    tokens: AtomicU64,
    cached: AtomicU64,
}

impl PromptCounter {
    /// Counts a prompt with the tokens that were cached.
    pub(super) fn count(&self, tokens: u64, cached: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
        self.cached.fetch_add(cached, Relaxed);
    }

    /// The counts now; `None`: nothing was reported yet.
    pub(super) fn read(&self) -> Option<Prompts> {
        let [cached, tokens] = [&self.cached, &self.tokens].map(|count| count.load(Relaxed));
        (tokens > 0).then_some(Prompts { tokens, cached })
    }
}
