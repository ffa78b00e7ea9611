//! APIs whose usage says how many tokens of a prompt were in the prefix cache.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::Usage;
use crate::request::api::Api;

/// APIs in which a server reports cached tokens, learned from its responses.
#[derive(Debug, Default)]
pub struct CacheReports {
    /// A bit per [`Api`].
    apis: AtomicU32,
}

impl CacheReports {
    /// Cached tokens of a response; `None` while it isn't known that the server reports them in this API. That is
    /// known once a number above 0 came: some servers never report one, and vLLM leaves it out where it is 0
    /// (vllm-project/vllm#44377).
    pub fn cached(&self, api: Api, usage: &Usage) -> Option<u64> {
        let (bit, cached) = (1 << api as u32, usage.cached_tokens.unwrap_or(0));
        if cached > 0 {
            self.apis.fetch_or(bit, Relaxed);
        }
        (self.apis.load(Relaxed) & bit != 0).then_some(cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_number_is_zero_once_the_api_has_reported_one() {
        let reports = CacheReports::default();
        let usage = |cached_tokens| Usage { cached_tokens, ..Usage::default() };
        for nothing in [None, Some(0)] {
            assert_eq!(reports.cached(Api::Completions, &usage(nothing)), None);
        }
        assert_eq!(reports.cached(Api::Completions, &usage(Some(7))), Some(7));
        for nothing in [None, Some(0)] {
            assert_eq!(reports.cached(Api::Completions, &usage(nothing)), Some(0));
            assert_eq!(reports.cached(Api::Responses, &usage(nothing)), None, "another API");
        }
    }
}
