//! Cost of a request at each endpoint.

use crate::{DataType, Fact};

/// Tokens that an endpoint would have to compute for the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UncachedTokens {
    /// Tokens at an endpoint that holds nothing of the prompt.
    pub elsewhere: u64,
    /// Tokens by position in the snapshot; endpoints behind the end have to compute
    /// `elsewhere`.
    pub at: Vec<u64>,
}

impl UncachedTokens {
    /// Tokens for the endpoint at this position of the snapshot.
    #[inline]
    pub fn at(&self, position: u32) -> u64 {
        self.at.get(position as usize).copied().unwrap_or(self.elsewhere)
    }
}

impl Fact for UncachedTokens {
    const DATA: DataType = DataType::UncachedRequestTokens;
}
