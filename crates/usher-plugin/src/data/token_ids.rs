//! Tokens of a request's prompts, as its engine counts them.

use std::sync::Arc;

use crate::{DataType, Fact};

/// Token ids of a request's prompts, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptTokenIds {
    /// The prompts.
    pub prompts: Vec<TokenizedPrompt>,
}

/// Token ids of one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// The ids.
    pub ids: Vec<u32>,
    /// Placeholders of images, audio and video, in the order of their positions.
    pub items: Vec<TokenizedItem>,
}

/// Tokens that stand for an image and the like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedItem {
    /// Place of the first of its tokens.
    pub offset: usize,
    /// Number of its tokens.
    pub length: usize,
    /// Identifier of its content, as the engine has it.
    pub hash: Arc<str>,
}

impl Fact for PromptTokenIds {
    const DATA: DataType = DataType::PromptTokenIds;
}
