//! Parameters of `burst-prefix-cache-producer`.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::{any_word, refused, word};

/// Longest window in milliseconds.
const MAX_WINDOW: i64 = 10_000;
/// Blocks of a prompt that are compared unless the configuration says how many tokens.
const DEFAULT_BLOCKS: usize = 2048;
/// Blocks of a prompt that are compared, whatever is configured. A few bytes may stand for
/// a video of any length.
const MAX_BLOCKS: usize = 1 << 17;

/// Parameters of `burst-prefix-cache-producer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BurstPrefixParams {
    /// Time for which requests are held, from the first of them on; 1 to 10,000.
    #[schemars(extend("x-unit" = "ms"))]
    pub window_duration_ms: i64,
    /// Most requests with one prompt that an endpoint gets; below 1: all of them. What is too many
    /// everywhere goes anywhere.
    #[schemars(extend("x-unit" = "requests"))]
    pub max_per_replica: i64,
    /// Size of the blocks in which prompts are compared.
    ///
    /// Above 0.
    #[schemars(extend("x-unit" = "tokens"))]
    pub block_size_tokens: i64,
    /// Part of a request's prompts that is compared. 0: 2048 blocks.
    #[schemars(extend("x-unit" = "tokens"))]
    pub max_prefix_tokens_to_match: i64,
    /// Blocks that different prompts have to share at their beginning to go to one endpoint, as long as
    /// that has less than its share. 0: only equal prompts do.
    #[schemars(extend("x-unit" = "blocks"))]
    pub min_colocate_blocks: i64,
    /// Requests that are held at a time; others go on at once.
    ///
    /// Above 0.
    #[schemars(extend("x-unit" = "requests"))]
    pub max_batch_size: i64,
    /// requests or tokens: what endpoints get equally much of.
    #[serde(deserialize_with = "any_word")]
    pub balance_by: BalanceBy,
}

/// Quantity of which endpoints get equally much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BalanceBy {
    /// Requests.
    #[default]
    Requests,
    /// Tokens of their prompts.
    Tokens,
}

impl Default for BurstPrefixParams {
    fn default() -> Self {
        Self {
            window_duration_ms: 100,
            max_per_replica: -1,
            block_size_tokens: 64,
            max_prefix_tokens_to_match: 0,
            min_colocate_blocks: 0,
            max_batch_size: 1000,
            balance_by: BalanceBy::Requests,
        }
    }
}

impl BurstPrefixParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and words, wrong types, and numbers out of range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, _) = (node.decode()?, Self::default());
        let within = |key: &str, value: i64, default: i64, range: RangeInclusive<i64>| {
            if range.contains(&value) {
                return Ok(());
            }
            let hint = match *range.end() {
                MAX_WINDOW => format!("{} to {MAX_WINDOW}; the default is {default}", range.start()),
                _ => format!("{} or more; the default is {default}", range.start()),
            };
            Err(refused(node, key, value).hint(hint))
        };
        let (tokens, most) = (params.max_prefix_tokens_to_match, i64::from(u32::MAX));
        within("windowDurationMs", params.window_duration_ms, default.window_duration_ms, 1..=MAX_WINDOW)?;
        within("blockSizeTokens", params.block_size_tokens, default.block_size_tokens, 1..=most)?;
        within("maxPrefixTokensToMatch", tokens, default.max_prefix_tokens_to_match, 0..=i64::MAX)?;
        within("minColocateBlocks", params.min_colocate_blocks, default.min_colocate_blocks, 0..=most)?;
        within("maxBatchSize", params.max_batch_size, default.max_batch_size, 1..=most)?;
        params.balance_by = word(node, "balanceBy")?;
        Ok(params)
    }

    /// Tokens of a block.
    pub(super) fn block(&self) -> NonZeroU32 {
        u32::try_from(self.block_size_tokens).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX)
    }

    /// Time for which requests are held.
    pub(super) fn window(&self) -> Duration {
        Duration::from_millis(self.window_duration_ms.unsigned_abs())
    }

    /// Blocks of a request that are compared, over all its prompts.
    pub(super) fn max_blocks(&self) -> usize {
        match self.max_prefix_tokens_to_match {
            0 => DEFAULT_BLOCKS,
            tokens => {
                let blocks = tokens / i64::from(self.block().get());
                number(blocks).min(MAX_BLOCKS)
            }
        }
    }
}

/// A number that is not negative.
pub(super) fn number(value: i64) -> usize {
    usize::try_from(value).unwrap_or(0)
}
