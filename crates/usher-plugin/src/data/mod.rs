//! The facts that plugins exchange, one file per kind. Producers write them,
//! scorers, filters and effects read them.

mod encoder_cache;
mod kv_events_match;
mod latency_prediction;
mod prefix_match;
mod prompt_blocks;
mod prompt_tokens;
mod session;
mod token_ids;
mod uncached;

pub use encoder_cache::EncoderCacheMatch;
pub use kv_events_match::KvEventsMatch;
pub use latency_prediction::{LatencyPrediction, LatencyPredictions};
pub use prefix_match::PrefixMatch;
pub use prompt_blocks::PromptBlocks;
pub use prompt_tokens::PromptTokens;
pub use session::SessionId;
pub use token_ids::{PromptTokenIds, TokenizedItem, TokenizedPrompt};
pub use uncached::UncachedTokens;
