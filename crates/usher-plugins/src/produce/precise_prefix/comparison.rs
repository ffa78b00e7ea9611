//! Comparison of what an engine reported with what it says was cached.
//!
//! Keys are computed from tokens: where Usher's differ from the engine's, nothing that the engine publishes is
//! ever found, and routing goes on as if all were well. A response says how many tokens of its prompt were
//! cached, which shows that.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use usher_core::endpoints::Endpoint;
use usher_core::prefix::{Blocks, EngineStatus};
use usher_plugin::data::PromptTokenIds;

use super::agreement::compare;
use super::caches::EngineCaches;

/// Blocks by which engines say fewer than they hold: the one with the last token of a prompt is computed anew, and with
/// speculative decoding the one before it, too.
const SLACK_BLOCKS: u64 = 2;

/// Blocks of all prompts under way that are compared, at most: 2 MiB. Others are not compared.
const MAX_BLOCKS: usize = 1 << 18;

/// Returns `true` if keys are those of the engine, whose blocks have `engine` tokens. Engines name an image in each of their blocks
/// that has a part of it, so other blocks have other keys from there on.
pub(super) fn are_alike(ids: Option<&PromptTokenIds>, engine: Option<u32>, ours: u32) -> bool {
    let has_items = ids.is_some_and(|ids| ids.prompts.iter().any(|prompt| !prompt.items.is_empty()));
    !has_items || engine.is_none_or(|engine| engine == ours)
}

/// A prompt under way at an endpoint whose engine is heard.
#[derive(Debug)]
pub(super) struct Comparison {
    caches: Arc<EngineCaches>,
    endpoint: Arc<Endpoint>,
    blocks: Arc<Blocks>,
    block_tokens: u64,
    /// Leading blocks that were reported at the decision.
    reported: u64,
    /// The endpoint held no others.
    is_complete: bool,
}

impl Comparison {
    /// Begins to compare a single prompt; `None` where that would say nothing, or there is no room. `known`: leading
    /// blocks that are known or about to be held.
    pub(super) fn begin(
        caches: &Arc<EngineCaches>,
        endpoint: &Arc<Endpoint>,
        blocks: &Arc<Blocks>,
        (known, block_tokens): (u32, u32),
    ) -> Option<Self> {
        let status = caches.index().status(endpoint.slot().number());
        if !status.is_heard() {
            return None;
        }
        let is_complete = status == EngineStatus::Complete;
        let len = blocks.len();
        let compared = caches.compared_blocks();
        if compared.fetch_add(len, Relaxed) + len > MAX_BLOCKS {
            compared.fetch_sub(len, Relaxed);
            return None;
        }
        let hashes = blocks.hashes();
        let known = hashes.get(..known as usize).unwrap_or(hashes);
        let reported = caches.index().reported(endpoint.slot(), known) as u64;
        let (caches, endpoint, blocks) = (Arc::clone(caches), Arc::clone(endpoint), Arc::clone(blocks));
        Some(Self { caches, endpoint, blocks, block_tokens: block_tokens.into(), reported, is_complete })
    }

    /// Compares with the tokens that were cached.
    pub(super) fn end(self, cached: u64) {
        let (slot, index) = (self.endpoint.slot(), self.caches.index());
        let status = index.status(slot.number());
        if !status.is_heard() {
            return;
        }
        let is_complete = self.is_complete && status == EngineStatus::Complete;
        let engine = self.caches.block_tokens(&self.endpoint).unwrap_or(0);
        let block_tokens = self.block_tokens.max(engine.into());
        let slack = SLACK_BLOCKS.saturating_mul(block_tokens);
        // What came in between was on its way at the decision. The blocks of this prompt are among it.
        let by_now = || index.reported(slot, self.blocks.hashes()) as u64 * self.block_tokens;
        if let Some(agreement) =
            compare(self.reported * self.block_tokens, cached, (slack, is_complete), by_now)
        {
            self.caches.compared(&self.endpoint, agreement);
        }
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        self.caches.compared_blocks().fetch_sub(self.blocks.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use usher_plugin::data::{TokenizedItem, TokenizedPrompt};

    use super::*;

    #[test]
    fn images_in_other_block_sizes_have_other_keys() {
        let prompt = |items: &[&str]| {
            let item = |hash: &&str| TokenizedItem { offset: 0, length: 9, hash: Arc::from(*hash) };
            let prompt = TokenizedPrompt { ids: vec![0; 99], items: items.iter().map(item).collect() };
            PromptTokenIds { prompts: vec![prompt] }
        };
        for (items, engine, expected) in [
            (&[] as &[&str], Some(64), true),
            (&["cat"], Some(64), false),
            (&["cat"], Some(16), true),
            (&["cat"], None, true),
        ] {
            assert_eq!(are_alike(Some(&prompt(items)), engine, 16), expected, "{items:?} {engine:?}");
        }
        assert!(are_alike(None, Some(64), 16), "token ids of the request");
    }
}
