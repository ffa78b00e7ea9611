//! A prompt as block hashes.

use std::sync::Arc;

use usher_core::prefix::Blocks;

use crate::{DataType, Fact};

/// The hashes that a prefix cache is asked with, and that it learns once the request has
/// its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptBlocks(pub Arc<Blocks>);

impl Fact for PromptBlocks {
    const DATA: DataType = DataType::PromptBlocks;
}
