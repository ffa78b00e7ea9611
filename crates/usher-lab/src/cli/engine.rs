//! Speed and size of a simulated server: the flags that every command with simulated
//! servers has.

use std::time::Duration;

use clap::Args;

use super::range::{jitter, number, time, token_rate};
use crate::sim::{EngineConfig, ModelKind};

/// Longest decode step.
const LONGEST_STEP: Duration = Duration::from_secs(24 * 60 * 60);

/// The engine of simulated servers.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Scheduling and step costs: linear, chunked-prefill or prefill-first. chunked-prefill is as of vLLM,
    /// prefill-first as of SGLang without mixed chunks.
    #[arg(long, default_value_t, value_name = "MODEL")]
    pub engine_model: ModelKind,
    /// Draws the constants of the models chunked-prefill and prefill-first, their batch and
    /// their KV cache; other flags override them. linear has the defaults of its flags.
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    pub engine_seed: u64,
    /// Prompt tokens computed per second, of the model linear. 0: prefill costs nothing.
    /// [default: 15928]
    #[arg(long, value_name = "TOKENS", value_parser = token_rate)]
    pub prefill_rate: Option<f64>,
    /// Time of a decode step for one request, such as 8ms, of the model linear. 0: decode
    /// costs nothing. [default: 8ms]
    #[arg(long, value_name = "TIME", value_parser = time(Duration::ZERO, LONGEST_STEP, "0 to 24h"))]
    pub decode_step: Option<Duration>,
    /// Share of --decode-step that each further request in the batch adds to the step. [default: 0.01]
    #[arg(long, value_name = "FACTOR", value_parser = number(0.0, 1000.0))]
    pub batch_factor: Option<f64>,
    /// Random variation of a step's time: between 1 - jitter and 1 + jitter of it. [default: 0.05, or drawn]
    #[arg(long, value_name = "SHARE", value_parser = jitter)]
    pub jitter: Option<f64>,
    /// Requests in the batch at most. [default: 256, or drawn]
    #[arg(long, value_name = "N", value_parser = number(1usize, 1_000_000))]
    pub max_running: Option<usize>,
    /// Requests that may wait; more get status 429.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub max_waiting: usize,
    /// Tokens computed per step at most. [default: 8192, or drawn]
    #[arg(long, value_name = "TOKENS", value_parser = number(1, u32::MAX))]
    pub max_batched_tokens: Option<u32>,
    /// Prompt and output tokens of a request at most.
    #[arg(long, default_value_t = 131_072, value_name = "TOKENS", value_parser = number(2, u32::MAX))]
    pub max_model_len: u32,
    /// Tokens per KV block. [default: 16, or drawn]
    #[arg(long, value_name = "TOKENS", value_parser = number(1, u32::MAX))]
    pub block_size: Option<u32>,
    /// KV blocks per server. [default: 27000, or drawn]
    #[arg(long, value_name = "BLOCKS", value_parser = number(1, u32::MAX))]
    pub num_blocks: Option<u32>,
    /// Prompts that come from other servers at the same time share the speed of their links.
    #[arg(long)]
    pub shared_link: bool,
}

impl EngineArgs {
    /// The configuration of an engine, which may not be valid.
    pub fn config(&self) -> EngineConfig {
        let drawn = EngineConfig::drawn(self.engine_model, self.engine_seed);
        EngineConfig {
            prefill_tokens_per_second: self.prefill_rate.unwrap_or(drawn.prefill_tokens_per_second),
            decode_step: self.decode_step.unwrap_or(drawn.decode_step),
            batch_factor: self.batch_factor.unwrap_or(drawn.batch_factor),
            jitter: self.jitter.unwrap_or(drawn.jitter),
            max_running: self.max_running.unwrap_or(drawn.max_running),
            max_waiting: self.max_waiting,
            max_batched_tokens: self.max_batched_tokens.unwrap_or(drawn.max_batched_tokens),
            max_model_len: self.max_model_len,
            block_size: self.block_size.unwrap_or(drawn.block_size),
            num_blocks: self.num_blocks.unwrap_or(drawn.num_blocks),
            shared_link: self.shared_link,
            ..drawn
        }
    }
}
