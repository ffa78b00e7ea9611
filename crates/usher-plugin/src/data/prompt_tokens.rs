//! Length of a prompt.

use crate::{DataType, Fact};

/// Tokens of a request's prompt; of all of them where it has several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// Number of tokens, counted or estimated.
    pub count: u64,
}

impl Fact for PromptTokens {
    const DATA: DataType = DataType::TokenizedPrompt;
}
