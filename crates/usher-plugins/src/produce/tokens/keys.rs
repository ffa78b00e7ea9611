//! Facts about the tokens of a prompt.

use usher_plugin::data::{PromptTokenIds, PromptTokens};
use usher_plugin::{Gathered, Key};

use super::room::Room;

/// Keys of the facts about tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    pub(super) tokens: Key<PromptTokens>,
    pub(super) ids: Key<PromptTokenIds>,
}

impl Keys {
    /// Facts of these tokens, the memory that they take and their number, or of none.
    pub(super) fn gathered(self, found: Option<(PromptTokenIds, Room)>) -> Gathered {
        Box::new(move |_, facts| {
            if let Some((found, _room)) = found {
                let count = found.prompts.iter().map(|prompt| prompt.ids.len() as u64).sum();
                facts.set(self.tokens, PromptTokens { count });
                facts.set(self.ids, found);
            }
        })
    }
}
