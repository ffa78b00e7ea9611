//! How fast a simulated server is and what fits into it: the flags that every command
//! with simulated servers has.

use std::time::Duration;

use clap::Args;

use crate::config::units::parse_duration;
use crate::sim::EngineConfig;

/// The engine of simulated servers.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Prompt tokens computed per second. 0: prefill costs nothing.
    #[arg(long, default_value_t = 15_928.0, value_name = "TOKENS")]
    pub prefill_rate: f64,
    /// Time of a decode step for one request, such as 8ms. 0: decode costs nothing.
    #[arg(long, default_value = "8ms", value_parser = parse_duration, value_name = "TIME")]
    pub decode_step: Duration,
    /// By how much of that time each further request in the batch prolongs the step.
    #[arg(long, default_value_t = 0.01)]
    pub batch_factor: f64,
    /// Steps take between 1 - jitter and 1 + jitter of their time.
    #[arg(long, default_value_t = 0.05)]
    pub jitter: f64,
    /// Requests in the batch at most.
    #[arg(long, default_value_t = 256)]
    pub max_running: usize,
    /// Requests that may wait; more get status 429.
    #[arg(long, default_value_t = 1000)]
    pub max_waiting: usize,
    /// Tokens computed per step at most.
    #[arg(long, default_value_t = 8192, value_name = "TOKENS")]
    pub max_batched_tokens: u32,
    /// Prompt and output tokens of a request at most.
    #[arg(long, default_value_t = 131_072, value_name = "TOKENS")]
    pub max_model_len: u32,
    /// Tokens per KV block.
    #[arg(long, default_value_t = 16, value_name = "TOKENS")]
    pub block_size: u32,
    /// KV blocks per server.
    #[arg(long, default_value_t = 27_000, value_name = "BLOCKS")]
    pub num_blocks: u32,
}

impl EngineArgs {
    /// The configuration of an engine, which may not be valid.
    pub fn config(&self) -> EngineConfig {
        EngineConfig {
            prefill_tokens_per_second: self.prefill_rate,
            decode_step: self.decode_step,
            batch_factor: self.batch_factor,
            jitter: self.jitter,
            max_running: self.max_running,
            max_waiting: self.max_waiting,
            max_batched_tokens: self.max_batched_tokens,
            max_model_len: self.max_model_len,
            block_size: self.block_size,
            num_blocks: self.num_blocks,
            ..EngineConfig::default()
        }
    }
}
