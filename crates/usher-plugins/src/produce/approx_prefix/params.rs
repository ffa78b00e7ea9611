//! Parameters of `approx-prefix-cache-producer`.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::prefix::share::{Fingerprint, Scheme};
use usher_plugin::params::refused;

/// Smallest block, whatever is configured, as in llm-d-router.
const MIN_BLOCK: NonZeroU32 = NonZeroU32::MIN.saturating_add(63);
/// Blocks of a request that are looked at, whatever is configured: what a body of 32 MiB
/// comes to. A few bytes may stand for a video of any length.
const MAX_BLOCKS: usize = 1 << 17;

/// Parameters of `approx-prefix-cache-producer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApproxPrefixParams {
    /// Take the size of a block and the size of the caches from what the endpoints report.
    pub auto_tune: bool,
    /// Size of a block where none is reported; at least 64 count. The first candidate's report counts
    /// for all.
    ///
    /// The default is what vLLM's blocks have.
    #[schemars(extend("x-unit" = "tokens"))]
    pub block_size_tokens: i64,
    /// Deprecated, the older name of blockSizeTokens.
    #[serde(skip_serializing)]
    #[schemars(extend("x-unit" = "tokens"))]
    block_size: Option<i64>,
    /// Part of a request's prompts that is looked at. 0: as many blocks as the next parameter says.
    #[schemars(extend("x-unit" = "tokens"))]
    pub max_prefix_tokens_to_match: i64,
    /// Deprecated. 0: all, which is 131,072 blocks.
    #[schemars(extend("x-unit" = "blocks"))]
    pub max_prefix_blocks_to_match: i64,
    /// Size of a cache where none is reported. Below 1 means the default.
    #[schemars(extend("x-unit" = "blocks"))]
    pub lru_capacity_per_server: i64,
}

impl Default for ApproxPrefixParams {
    fn default() -> Self {
        Self {
            auto_tune: true,
            block_size_tokens: 16,
            block_size: None,
            max_prefix_tokens_to_match: 131_072,
            max_prefix_blocks_to_match: 2048,
            lru_capacity_per_server: 31_250,
        }
    }
}

impl ApproxPrefixParams {
    /// Reads the parameters. As in llm-d-router, a capacity below 1 means the default.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, a negative number of tokens, and no
    /// size of a block where none is reported.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, _) = (node.decode()?, Self::default());
        let mut key = "blockSizeTokens";
        if params.block_size_tokens == default.block_size_tokens
            && let Some(older) = params.block_size.take()
        {
            (key, params.block_size_tokens) = ("blockSize", older);
        }
        let size = params.block_size_tokens;
        if size <= 0 && !params.auto_tune {
            let message = format!("blockSizeTokens can't be {size} where autoTune is off");
            return Err(
                ConfigError::at(node.position_of(key), message).hint("the default is 16; at least 64 count")
            );
        }
        let tokens = params.max_prefix_tokens_to_match;
        if tokens < 0 {
            return Err(refused(node, "maxPrefixTokensToMatch", tokens)
                .hint("the default is 131072; 0 counts blocks instead"));
        }
        if params.lru_capacity_per_server <= 0 {
            params.lru_capacity_per_server = default.lru_capacity_per_server;
        }
        Ok(params)
    }

    /// Tokens of a block of the index, where an engine's has so many; `None`: nobody
    /// reports it.
    pub(super) fn block(&self, reported: Option<f64>) -> NonZeroU32 {
        let reported = reported.filter(|_| self.auto_tune);
        // Saturates, as casts from floats do.
        let tokens = reported.map_or(self.block_size_tokens, |tokens| tokens as i64);
        let tokens = u32::try_from(tokens.max(0)).unwrap_or(u32::MAX);
        NonZeroU32::new(tokens).map_or(MIN_BLOCK, |tokens| tokens.max(MIN_BLOCK))
    }

    /// Fingerprint of the hashes of a producer of this type and name.
    pub(super) fn fingerprint(&self, producer: (&str, &str)) -> Fingerprint {
        Fingerprint::of(Scheme { producer, block_tokens: self.block(None), follows_engines: self.auto_tune })
    }

    /// Blocks of a request that are looked at, over all its prompts.
    pub(super) fn max_blocks(&self, block: NonZeroU32) -> usize {
        let blocks = match self.max_prefix_tokens_to_match {
            0 => self.max_prefix_blocks_to_match,
            tokens => return number(tokens / i64::from(block.get())).min(MAX_BLOCKS),
        };
        if blocks > 0 { number(blocks).min(MAX_BLOCKS) } else { MAX_BLOCKS }
    }

    /// Blocks of the index that an endpoint holds which reports so many blocks of its
    /// engine, of so many tokens each. The engine's are as large as the configured ones
    /// where it doesn't say.
    pub(super) fn capacity(
        &self,
        reported: Option<f64>,
        reported_block: Option<f64>,
        block: NonZeroU32,
    ) -> usize {
        let Some(blocks) = reported.filter(|_| self.auto_tune) else {
            return number(self.lru_capacity_per_server);
        };
        let size = reported_block.unwrap_or_else(|| self.block_size_tokens.max(1) as f64);
        let capacity = blocks * size / f64::from(block.get());
        (capacity as usize).max(1)
    }
}

/// A number that is not negative.
fn number(value: i64) -> usize {
    usize::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(text: &str) -> ApproxPrefixParams {
        ApproxPrefixParams::decode(&Node::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn block_size_is_configured_or_reported_within_bounds() {
        // parameters, reported, tokens
        let table = [
            ("{}", None, 64),
            ("{}", Some(16.0), 64),
            ("{}", Some(128.0), 128),
            ("{}", Some(1e18), u32::MAX),
            ("{blockSizeTokens: 100}", None, 100),
            ("{blockSizeTokens: 100}", Some(80.0), 80),
            ("{blockSizeTokens: -1}", None, 64),
            ("{autoTune: false, blockSizeTokens: 100}", Some(200.0), 100),
            ("{autoTune: false, blockSizeTokens: 1}", None, 64),
            ("{blockSize: 256}", None, 256),
            ("{blockSize: 256, blockSizeTokens: 16}", None, 256),
            ("{blockSize: 256, blockSizeTokens: 128}", None, 128),
        ];
        for (text, reported, tokens) in table {
            assert_eq!(params(text).block(reported).get(), tokens, "{text} {reported:?}");
        }
    }

    #[test]
    fn replicas_share_blocks_of_the_same_size() {
        let fingerprint = |text: &str| params(text).fingerprint(("approx-prefix-cache-producer", "a"));
        // As small blocks come.
        for same in ["{blockSizeTokens: 64}", "{maxPrefixTokensToMatch: 640}", "{lruCapacityPerServer: 7}"] {
            assert_eq!(fingerprint(same), fingerprint("{}"), "{same}");
        }
        for other in ["{blockSizeTokens: 128}", "{autoTune: false}"] {
            assert_ne!(fingerprint(other), fingerprint("{}"), "{other}");
        }
    }

    #[test]
    fn blocks_of_a_request_are_bounded() {
        let table = [
            ("{}", 64, 2048),
            ("{}", 100, 1310),
            ("{maxPrefixTokensToMatch: 16384}", 64, 256),
            // Less than a block is none.
            ("{maxPrefixTokensToMatch: 50}", 64, 0),
            ("{maxPrefixTokensToMatch: 640, maxPrefixBlocksToMatch: 3}", 64, 10),
            ("{maxPrefixTokensToMatch: 0}", 64, 2048),
            ("{maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 3}", 64, 3),
            ("{maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 0}", 64, MAX_BLOCKS),
            ("{maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: -1}", 64, MAX_BLOCKS),
            ("{maxPrefixTokensToMatch: 9000000000}", 64, MAX_BLOCKS),
        ];
        for (text, block, blocks) in table {
            assert_eq!(params(text).max_blocks(NonZeroU32::new(block).unwrap()), blocks, "{text}");
        }
    }

    #[test]
    fn reported_capacity_is_converted_to_index_blocks() {
        // parameters, reported blocks and their tokens, tokens of the index's, blocks of it
        let table = [
            ("{}", None, None, 64, 31_250),
            ("{}", None, Some(16.0), 64, 31_250),
            ("{lruCapacityPerServer: 7}", None, None, 64, 7),
            ("{lruCapacityPerServer: 0}", None, None, 64, 31_250),
            ("{lruCapacityPerServer: -7}", None, None, 64, 31_250),
            ("{lruCapacityPerServer: 7}", Some(8000.0), Some(16.0), 64, 2000),
            ("{}", Some(8000.0), Some(128.0), 128, 8000),
            ("{}", Some(8000.0), None, 64, 2000),
            ("{blockSizeTokens: 32}", Some(8000.0), None, 64, 4000),
            ("{}", Some(1.0), Some(16.0), 64, 1),
            ("{autoTune: false, lruCapacityPerServer: 7}", Some(8000.0), Some(16.0), 64, 7),
        ];
        for (text, blocks, size, block, capacity) in table {
            let block = NonZeroU32::new(block).unwrap();
            assert_eq!(params(text).capacity(blocks, size, block), capacity, "{text} {blocks:?} {size:?}");
        }
    }

    #[test]
    fn invalid_parameters_are_refused_with_position() {
        let table = [
            ("{autoTune: false, blockSizeTokens: 0}", 36, "blockSizeTokens can't be 0"),
            ("{blockSize: -5, autoTune: false}", 13, "blockSizeTokens can't be -5"),
            ("{maxPrefixTokensToMatch: -1}", 26, "maxPrefixTokensToMatch can't be -1"),
            ("{autotune: true}", 2, "unknown field 'autotune'"),
            ("{blockSizeTokens: many}", 19, "expected"),
        ];
        for (text, column, message) in table {
            let error = ApproxPrefixParams::decode(&Node::parse(text).unwrap()).unwrap_err();
            assert!(error.message().contains(message), "{text}: {}", error.message());
            assert_eq!(error.position().unwrap().column, column, "{text}");
        }
    }
}
