//! Blocks of a request's prompts, by their tokens.

use std::num::NonZeroU16;

use usher_core::kv_events::{Chain, prompt_keys};
use usher_core::prefix::Blocks;
use usher_core::request::Request;
use usher_plugin::data::{PromptTokenIds, TokenizedPrompt};

/// Blocks of a request that are looked at, over all prompts: what a body of 32 MiB comes to at 16 tokens.
const MAX_BLOCKS: usize = 1 << 19;

/// Bytes of an item's hash at most.
const MAX_HASH: usize = 1024;
/// Items of a block at most, on average.
const ITEMS_PER_BLOCK: usize = 4;

/// Blocks of the prompts: of `ids`, or else of the token ids that the request has itself. `None` if no tokens are
/// known, or items overlap as no engine's do.
pub(super) fn blocks(
    request: &Request,
    ids: Option<&PromptTokenIds>,
    block_tokens: NonZeroU16,
) -> Option<Blocks> {
    let salt = request.cache_salt.as_ref().map(|salt| salt.bytes(&request.body));
    let salt = salt.as_deref().filter(|salt| !salt.is_empty());
    let mut left = MAX_BLOCKS * usize::from(block_tokens.get());
    let mut cut = |tokens: &[u32], items: &TokenizedPrompt| {
        let tokens = tokens.get(..left.min(tokens.len())).unwrap_or_default();
        left -= tokens.len();
        let mut keys = Vec::with_capacity(tokens.len() / usize::from(block_tokens.get()));
        let extras = extras(items, salt, block_tokens)?;
        prompt_keys(
            Chain::of_model(request.target_model.as_bytes()),
            tokens,
            block_tokens,
            extras,
            &mut keys,
        );
        Some(keys)
    };
    if let Some(ids) = ids {
        let keys: Option<Vec<_>> = ids.prompts.iter().map(|prompt| cut(&prompt.ids, prompt)).collect();
        return keys.map(Blocks::from_prompts);
    }
    let own = own(request);
    if own.is_empty() {
        return None;
    }
    let keys: Option<Vec<_>> = own.iter().map(|prompt| cut(&prompt.ids, prompt)).collect();
    keys.map(Blocks::from_prompts)
}

/// Strings beside the tokens, each at the start of a block that it belongs to: items, then the salt in the first. `None`
/// if there are far more than blocks.
fn extras<'a>(
    prompt: &'a TokenizedPrompt,
    salt: Option<&'a [u8]>,
    block_tokens: NonZeroU16,
) -> Option<Vec<(usize, &'a [u8])>> {
    let size = usize::from(block_tokens.get());
    let most = ITEMS_PER_BLOCK * (prompt.ids.len() / size + prompt.items.len());
    let mut extras = Vec::new();
    for item in &prompt.items {
        let end = item.offset.saturating_add(item.length).min(prompt.ids.len());
        let mut place = item.offset / size * size;
        if item.hash.len() > MAX_HASH {
            return None;
        }
        while place < end {
            if extras.len() >= most {
                return None;
            }
            extras.push((place, item.hash.as_bytes()));
            place += size;
        }
    }
    extras.extend(salt.map(|salt| (0, salt)));
    // Stable: those of a block stay in the order of their items, and the salt comes last.
    extras.sort_by_key(|(place, _)| *place);
    Some(extras)
}

/// Token ids that a request has itself.
fn own(request: &Request) -> Vec<TokenizedPrompt> {
    let parts = &request.prompt.parts;
    let ids = |part: &usher_core::request::Part| part.token_ids(&request.body).collect::<Vec<u32>>();
    let prompts = parts.iter().map(ids);
    // A prompt that is partly text has no tokens that count.
    let prompts: Vec<_> = prompts.take_while(|ids| !ids.is_empty()).collect();
    if prompts.len() < parts.len() {
        return Vec::new();
    }
    let prompts = match request.prompt.separate {
        true => prompts,
        false => vec![prompts.concat()],
    };
    prompts.into_iter().map(|ids| TokenizedPrompt { ids, items: Vec::new() }).collect()
}
