//! Configuration of simulated servers.

use std::str::FromStr;
use std::time::Duration;

use super::disagg::DisaggConfig;
use super::error::ConfigError;
use super::kv_events::KvEventsConfig;
use super::model::EngineModel;

/// The longest step of decoding for one request.
const LONGEST_STEP: Duration = Duration::from_secs(24 * 60 * 60);

/// Speed and size of an engine.
///
/// The defaults are near an 8-billion-parameter model on one 80 GB GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Model of its scheduling and of a step's cost. Default [`EngineModel::Linear`], whose
    /// constants are the next three fields; other models have their own.
    pub model: EngineModel,
    /// Prompt tokens that an otherwise idle engine computes per second. 0 means that
    /// prefill costs nothing; otherwise at least 0.001. Default 15928, the rate that the picker assumes too.
    pub prefill_tokens_per_second: f64,
    /// Time of a step that decodes for one request, a day at most. Default 8 ms; zero: free.
    pub decode_step: Duration,
    /// By how much of `decode_step` each further request in the step prolongs it.
    /// In 0..=1000, default 0.01: a batch of 101 takes twice as long as a batch of one.
    pub batch_factor: f64,
    /// Each step's time is drawn evenly from `1 ± jitter` times its cost. In 0..1,
    /// default 0.05, so that equal servers do not run in lockstep.
    pub jitter: f64,
    /// Requests in the running batch at most (vLLM's `max_num_seqs`). Default 256.
    pub max_running: usize,
    /// Requests that may wait for a place in the batch; more are refused. Default 1000.
    pub max_waiting: usize,
    /// Tokens computed per step at most, decode and prefill together (vLLM's
    /// `max_num_batched_tokens`). Default 8192. Longer prompts take several steps. Of
    /// [`EngineModel::PrefillFirst`] only steps of prefill are limited.
    pub max_batched_tokens: u32,
    /// Tokens per KV block. Default 16, as vLLM's.
    pub block_size: u32,
    /// KV blocks. Default 27000 (432,000 tokens).
    pub num_blocks: u32,
    /// Prompt and output tokens of one request at most. Default 131072. What the KV
    /// cache can hold is a limit too.
    pub max_model_len: u32,
    /// LoRA adapters that can be in the batch at once. Default 1.
    pub max_loras: usize,
    /// `true` if prompts that come from other engines at the same time share the speed of
    /// their links evenly: of `n` on their way, each moves at `1/n` of its link's speed.
    /// Default false: each has its link to itself.
    pub shared_link: bool,
    /// Seed of the jitter. Default 0.
    pub seed: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            model: EngineModel::Linear,
            prefill_tokens_per_second: 15_928.0,
            decode_step: Duration::from_millis(8),
            batch_factor: 0.01,
            jitter: 0.05,
            max_running: 256,
            max_waiting: 1000,
            max_batched_tokens: 8192,
            block_size: 16,
            num_blocks: 27_000,
            max_model_len: 131_072,
            max_loras: 1,
            shared_link: false,
            seed: 0,
        }
    }
}

impl EngineConfig {
    /// The default engine with a cost of zero: every request finishes at the instant
    /// it arrives. For benchmarks of what stands in front of the servers.
    pub fn instant() -> Self {
        Self {
            prefill_tokens_per_second: 0.0,
            decode_step: Duration::ZERO,
            batch_factor: 0.0,
            jitter: 0.0,
            ..Self::default()
        }
    }

    /// Prompt and output tokens that one request may have together.
    pub fn context_limit(&self) -> u32 {
        self.max_model_len.min(self.num_blocks.saturating_mul(self.block_size))
    }

    fn has_default_linear_costs(&self) -> bool {
        let default = Self::default();
        self.prefill_tokens_per_second == default.prefill_tokens_per_second
            && (self.decode_step, self.batch_factor) == (default.decode_step, default.batch_factor)
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// `ConfigError` that names the setting and its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let rate = self.prefill_tokens_per_second;
        let free_or_finite = rate == 0.0 || (rate >= 1e-3 && rate.is_finite());
        let checks = [
            // Bounds, so that the time of a step fits its type.
            (free_or_finite, "prefill tokens per second must be 0 (free) or at least 0.001"),
            (self.decode_step <= LONGEST_STEP, "a decode step must take a day at most"),
            ((0.0..=1000.0).contains(&self.batch_factor), "the batch factor must be 0 to 1000"),
            (
                self.model == EngineModel::Linear || self.has_default_linear_costs(),
                "the prefill rate, the decode step and the batch factor are those of the model linear",
            ),
            (self.model.is_valid(), "the model's constants must be finite and at least 0"),
            ((0.0..1.0).contains(&self.jitter), "jitter must be at least 0 and below 1"),
            (self.max_running > 0, "max running must be at least 1"),
            (self.max_batched_tokens > 0, "max batched tokens must be at least 1"),
            (self.block_size > 0, "the block size must be at least 1 token"),
            (self.num_blocks > 0, "there must be at least 1 KV block"),
            (self.context_limit() > 1, "a request must have room for 2 tokens"),
            (self.max_loras > 0, "max LoRAs must be at least 1"),
        ];
        match checks.iter().find(|(good, _)| !good) {
            Some((_, reason)) => Err(ConfigError((*reason).to_owned())),
            None => Ok(()),
        }
    }
}

/// The engine whose names the metrics have. Everything else is vLLM's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM with its own server.
    TrtllmServe,
    /// TensorRT-LLM behind Triton.
    TritonTensorrtLlm,
    /// Triton with any other backend.
    Triton,
}

impl Dialect {
    /// All of them, under the names that pickers know the engines by.
    pub const ALL: [(&'static str, Self); 5] = [
        ("vllm", Self::Vllm),
        ("sglang", Self::Sglang),
        ("trtllm-serve", Self::TrtllmServe),
        ("triton-tensorrt-llm", Self::TritonTensorrtLlm),
        ("triton", Self::Triton),
    ];
}

impl FromStr for Dialect {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, dialect)| dialect).ok_or_else(|| {
            let known = Self::ALL.map(|(known, _)| known).join(", ");
            ConfigError(format!("there is no engine '{name}'; known are {known}"))
        })
    }
}

/// Configuration of a group of simulated servers.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Servers are named `{name_prefix}-{index}`. Default `sim`.
    pub name_prefix: String,
    /// Number of the first server. Default 0.
    pub first_index: usize,
    /// Inference server whose metric names are used. Default vLLM.
    pub dialect: Dialect,
    /// The name of the base model.
    pub model: String,
    /// Respond with 404 for a model that is neither `model` nor in `loras`, as vLLM does.
    /// Default false: any name is served as the base model.
    pub strict_models: bool,
    /// `true` if it has /v1/completions/render and /v1/chat/completions/render, as vLLM does with
    /// `VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1`. Default true. `/tokenize` is there anyway.
    pub has_render: bool,
    /// Names of the LoRA adapters that are served. Default none.
    pub loras: Vec<String>,
    /// Output tokens of a request that sets no limit. Default 64.
    pub default_output_tokens: u32,
    /// Tokens of an event of a stream (vLLM's `stream_interval`), at least 1: the first token
    /// comes at once, then an event after so many, and the rest at the end. Default 1.
    pub stream_interval: u32,
    /// Largest request body in bytes; a longer one is answered with 413. Default 32 MiB.
    pub max_body_bytes: usize,
    /// For how long after the start, in simulated time, everything but `/admin` and
    /// `/metrics` responds with 503. Default zero.
    pub startup: Duration,
    /// Simulated seconds per real second, 0.001 to 1,000,000. Default 1.
    pub time_scale: f64,
    /// The engine. Server number `i` gets the seed plus `i`.
    pub engine: EngineConfig,
    /// Division of the work of requests among them. Default: they don't, unless a request's
    /// headers ask for it.
    pub disagg: DisaggConfig,
    /// KV events to publish, and their sockets. Default: none.
    pub kv_events: Option<KvEventsConfig>,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            name_prefix: "sim".to_owned(),
            first_index: 0,
            dialect: Dialect::default(),
            model: "meta-llama/Llama-3.1-8B-Instruct".to_owned(),
            strict_models: false,
            has_render: true,
            loras: Vec::new(),
            default_output_tokens: 64,
            stream_interval: 1,
            max_body_bytes: 32 << 20,
            startup: Duration::ZERO,
            time_scale: 1.0,
            engine: EngineConfig::default(),
            disagg: DisaggConfig::default(),
            kv_events: None,
        }
    }
}

impl SimConfig {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// `ConfigError` that names the setting and its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.engine.validate()?;
        self.disagg.validate()?;
        // Far enough for any use, and times so scaled fit their type.
        if !(1e-3..=1e6).contains(&self.time_scale) {
            return Err(ConfigError("the time scale must be 0.001 to 1000000".to_owned()));
        }
        if self.default_output_tokens == 0 {
            return Err(ConfigError("the default output must be at least 1 token".to_owned()));
        }
        if self.stream_interval == 0 {
            return Err(ConfigError("the stream interval must be at least 1 token".to_owned()));
        }
        if self.name_prefix.is_empty() || !self.name_prefix.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(ConfigError("the name prefix must be printable ASCII without spaces".to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::ModelKind;

    #[test]
    fn defaults_are_valid_and_bad_settings_are_named() {
        SimConfig::default().validate().unwrap();
        EngineConfig::instant().validate().unwrap();
        let default = EngineConfig::default();
        let engines = [
            (EngineConfig { jitter: 1.0, ..default.clone() }, "jitter"),
            (EngineConfig { prefill_tokens_per_second: 1e-300, ..default.clone() }, "prefill tokens"),
            (EngineConfig { decode_step: Duration::MAX, ..default.clone() }, "decode step"),
            (EngineConfig { batch_factor: 1e300, ..default }, "batch factor"),
            // Without an effect on other models.
            (EngineConfig { batch_factor: 0.5, ..EngineConfig::drawn(ModelKind::PrefillFirst, 1) }, "linear"),
        ];
        for (bad, name) in engines {
            assert!(bad.validate().unwrap_err().to_string().contains(name));
        }
        for time_scale in [f64::NAN, f64::INFINITY, 0.0, 1e-300, 1e300] {
            let bad = SimConfig { time_scale, ..SimConfig::default() };
            assert!(bad.validate().unwrap_err().to_string().contains("time scale"));
        }
    }

    #[test]
    fn events_without_tokens_are_refused() {
        let bad = SimConfig { stream_interval: 0, ..SimConfig::default() };
        assert!(bad.validate().unwrap_err().to_string().contains("stream interval"));
    }

    #[test]
    fn the_kv_cache_limits_the_context() {
        let small = EngineConfig { num_blocks: 4, ..EngineConfig::default() };
        assert_eq!(small.context_limit(), 64);
    }
}
