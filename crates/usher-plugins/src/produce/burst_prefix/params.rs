//! What `burst-prefix-cache-producer` can be told.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};

/// Longest window in milliseconds.
const MAX_WINDOW: i64 = 10_000;
/// Blocks of a prompt that are compared unless the configuration says how many tokens.
const DEFAULT_BLOCKS: usize = 2048;
/// Blocks of a prompt that are compared, whatever is configured. A few bytes may stand for
/// a video of any length.
const MAX_BLOCKS: usize = 1 << 17;

/// Parameters of `burst-prefix-cache-producer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BurstPrefixParams {
    /// How long requests are held, 1 to 10,000 ms. Default 100.
    pub window_duration_ms: u32,
    /// Most requests with one prompt that an endpoint gets of a batch; below 1: all of
    /// them. Default −1.
    pub max_per_replica: i64,
    /// Tokens of a block, above 0. Default 64.
    pub block_size_tokens: NonZeroU32,
    /// Tokens of a prompt that are compared; 0: 2048 blocks. Default 0.
    pub max_prefix_tokens_to_match: u64,
    /// Blocks at the beginning that prompts which are not the same have to share to go to
    /// one endpoint; 0: they don't. Default 0.
    pub min_colocate_blocks: usize,
    /// Requests that are held at a time, above 0. Default 1000.
    pub max_batch_size: usize,
    /// What endpoints get equally much of. Default requests.
    pub balance_by: BalanceBy,
}

/// What endpoints get equally much of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BalanceBy {
    /// Requests.
    #[default]
    Requests,
    /// Tokens of their prompts.
    Tokens,
}

impl BurstPrefixParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and words, wrong types, and numbers out of range, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            window_duration_ms: Option<Positioned<i64>>,
            max_per_replica: Option<i64>,
            block_size_tokens: Option<Positioned<i64>>,
            max_prefix_tokens_to_match: Option<Positioned<i64>>,
            min_colocate_blocks: Option<Positioned<i64>>,
            max_batch_size: Option<Positioned<i64>>,
            balance_by: Option<Name>,
        }
        let written: Written = node.decode()?;
        let most = i64::from(u32::MAX);
        let window = within("windowDurationMs", written.window_duration_ms, 100, 1..=MAX_WINDOW)?;
        let block = within("blockSizeTokens", written.block_size_tokens, 64, 1..=most)?;
        let tokens = within("maxPrefixTokensToMatch", written.max_prefix_tokens_to_match, 0, 0..=i64::MAX)?;
        let colocate = within("minColocateBlocks", written.min_colocate_blocks, 0, 0..=most)?;
        let batch = within("maxBatchSize", written.max_batch_size, 1000, 1..=most)?;
        Ok(Self {
            window_duration_ms: u32::try_from(window).unwrap_or(u32::MAX),
            max_per_replica: written.max_per_replica.unwrap_or(-1),
            block_size_tokens: u32::try_from(block).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX),
            max_prefix_tokens_to_match: tokens,
            min_colocate_blocks: usize::try_from(colocate).unwrap_or(usize::MAX),
            max_batch_size: usize::try_from(batch).unwrap_or(usize::MAX),
            balance_by: written.balance_by.as_ref().map(balance).transpose()?.unwrap_or_default(),
        })
    }

    /// How long requests are held.
    pub(super) fn window(&self) -> Duration {
        Duration::from_millis(self.window_duration_ms.into())
    }

    /// Blocks of a request that are compared, over all its prompts.
    pub(super) fn max_blocks(&self) -> usize {
        match self.max_prefix_tokens_to_match {
            0 => DEFAULT_BLOCKS,
            tokens => {
                let blocks = tokens / u64::from(self.block_size_tokens.get());
                usize::try_from(blocks).unwrap_or(usize::MAX).min(MAX_BLOCKS)
            }
        }
    }
}

fn balance(written: &Name) -> Result<BalanceBy, ConfigError> {
    match written.value.as_str() {
        "" | "requests" => Ok(BalanceBy::Requests),
        "tokens" => Ok(BalanceBy::Tokens),
        other => Err(ConfigError::at(written.at, format!("balanceBy '{other}' is not known"))
            .hint("known here: requests, tokens")
            .did_you_mean(other, ["requests", "tokens"])),
    }
}

/// A number in its range, which is not negative, or the default.
fn within(
    name: &str,
    written: Option<Positioned<i64>>,
    default: u64,
    range: std::ops::RangeInclusive<i64>,
) -> Result<u64, ConfigError> {
    let Some(Positioned { at, value }) = written else { return Ok(default) };
    u64::try_from(value).ok().filter(|_| range.contains(&value)).ok_or_else(|| {
        let hint = match *range.end() {
            MAX_WINDOW => format!("{} to {MAX_WINDOW}; the default is {default}", range.start()),
            _ => format!("{} or more; the default is {default}", range.start()),
        };
        ConfigError::at(at, format!("{name} can't be {value}")).hint(hint)
    })
}
