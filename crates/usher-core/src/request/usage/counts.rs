//! The numbers that a model server reports of a request.

/// Tokens of one request, as the model server counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Generated tokens.
    pub completion_tokens: Option<u64>,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached_tokens: Option<u64>,
}

impl Usage {
    /// Adds what a later part of the same response says: numbers that are not 0 replace
    /// those from before.
    pub(in crate::request) fn merge(&mut self, later: Self) {
        let merge = |number: &mut Option<u64>, later: Option<u64>| {
            if number.is_none() || later.is_some_and(|later| later > 0) {
                *number = later.or(*number);
            }
        };
        merge(&mut self.prompt_tokens, later.prompt_tokens);
        merge(&mut self.completion_tokens, later.completion_tokens);
        merge(&mut self.cached_tokens, later.cached_tokens);
    }
}
