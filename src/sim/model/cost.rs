//! Models of an engine: how long a step takes, and how much a full engine can do.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::chunked_prefill::ChunkedPrefill;
use super::prefill_first::PrefillFirst;
use crate::sim::config::{ConfigError, EngineConfig};

/// Longest step, so that times fit their type.
const LONGEST_STEP: f64 = 365.0 * 24.0 * 3600.0;

/// Largest constant of a model, in seconds.
const LARGEST: f64 = 1e6;

/// How an engine schedules and what its steps cost.
///
/// The models differ in structure, so that a policy that fits one of them need not fit
/// the others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum EngineModel {
    /// Chunked prefill mixed with decoding, a step's time linear in tokens and requests.
    /// Its constants are fields of [`EngineConfig`].
    #[default]
    Linear,
    /// Chunked prefill mixed with decoding on a GPU that computes or reads memory.
    ChunkedPrefill(ChunkedPrefill),
    /// Steps of whole prompts, which go before steps of decoding.
    PrefillFirst(PrefillFirst),
}

/// An [`EngineModel`] without its constants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ModelKind {
    /// [`EngineModel::Linear`]
    #[default]
    Linear,
    /// [`EngineModel::ChunkedPrefill`]
    ChunkedPrefill,
    /// [`EngineModel::PrefillFirst`]
    PrefillFirst,
}

impl ModelKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Linear, Self::ChunkedPrefill, Self::PrefillFirst];

    /// Name in flags and files: `linear`, `chunked-prefill`, `prefill-first`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::ChunkedPrefill => "chunked-prefill",
            Self::PrefillFirst => "prefill-first",
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ModelKind {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            ConfigError(format!("there is no engine model '{name}'; known are {known}"))
        })
    }
}

/// Work of one step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Step {
    /// Tokens that it can still take.
    pub(super) budget: u32,
    /// Prompt tokens, and those computed anew.
    pub(super) prefill_tokens: u32,
    /// Requests that these tokens are of.
    pub(super) prefilling: u32,
    /// Pairs of such a token and one at or before its place, n²/2 for the first n.
    pub(super) attention_pairs: f64,
    /// Requests that decode, a token each.
    pub(super) decoding: u32,
    /// Tokens whose keys and values these read.
    pub(super) context: u64,
}

impl Step {
    /// An empty step.
    pub(super) fn new(budget: u32) -> Self {
        Self { budget, ..Self::default() }
    }

    /// Adds `tokens` of a request that has `before` in the cache.
    pub(super) fn prefill(&mut self, before: u32, tokens: u32) {
        let (before, chunk) = (f64::from(before), f64::from(tokens));
        self.budget -= tokens;
        self.prefill_tokens += tokens;
        self.prefilling += 1;
        self.attention_pairs += chunk * before + chunk * chunk / 2.0;
    }

    /// Adds the next token of a request of `context` tokens.
    pub(super) fn decode(&mut self, context: u32) {
        self.budget -= 1;
        self.decoding += 1;
        self.context += u64::from(context);
    }

    /// Tokens computed.
    pub(super) fn tokens(&self) -> u32 {
        self.prefill_tokens + self.decoding
    }
}

/// A request of mean lengths, for [`EngineConfig::work`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Mean {
    /// Prompt tokens that aren't cached.
    pub(super) computed: f64,
    /// Prompt tokens.
    pub(super) prompt: f64,
    /// Generated tokens.
    pub(super) output: f64,
}

impl Mean {
    /// Pairs of tokens in the attention of the tokens to compute.
    pub(super) fn attention_pairs(&self) -> f64 {
        self.computed * (self.prompt - self.computed / 2.0)
    }

    /// Mean context of the request while it decodes.
    pub(super) fn context(&self) -> f64 {
        self.prompt + self.output / 2.0
    }
}

impl EngineModel {
    /// The model without its constants.
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Linear => ModelKind::Linear,
            Self::ChunkedPrefill(_) => ModelKind::ChunkedPrefill,
            Self::PrefillFirst(_) => ModelKind::PrefillFirst,
        }
    }

    /// Whether all constants are in their ranges.
    pub(in crate::sim) fn is_valid(mut self) -> bool {
        let sound = match self {
            Self::PrefillFirst(model) => {
                model.max_prefill_steps > 0 && (0.0..=1.0).contains(&model.reserve_ratio)
            }
            Self::Linear | Self::ChunkedPrefill(_) => true,
        };
        sound && self.seconds_mut().iter().all(|seconds| (0.0..=LARGEST).contains(*seconds))
    }

    // The constants that are times, but for those in the engine's configuration.
    fn seconds_mut(&mut self) -> Vec<&mut f64> {
        match self {
            Self::Linear => Vec::new(),
            Self::ChunkedPrefill(model) => model.seconds_mut().into(),
            Self::PrefillFirst(model) => model.seconds_mut().into(),
        }
    }
}

impl EngineConfig {
    /// An engine of this model, with the constants that the seed draws. Nothing is drawn
    /// for [`ModelKind::Linear`], whose constants are the defaults.
    pub fn drawn(kind: ModelKind, seed: u64) -> Self {
        match kind {
            ModelKind::Linear => Self::default(),
            ModelKind::ChunkedPrefill => ChunkedPrefill::drawn(seed),
            ModelKind::PrefillFirst => PrefillFirst::drawn(seed),
        }
    }

    /// Lets every step take `times` as long; above 0.
    pub fn slow_down(&mut self, times: f64) {
        if self.model == EngineModel::Linear {
            self.prefill_tokens_per_second /= times;
            let step = Duration::try_from_secs_f64(self.decode_step.as_secs_f64() * times);
            self.decode_step = step.unwrap_or(Duration::MAX);
        }
        self.model.seconds_mut().into_iter().for_each(|seconds| *seconds *= times);
    }

    /// Seconds that a full engine takes for a request of mean lengths: of
    /// `context_tokens` of prompt it computes `computed_prompt_tokens`, the others are
    /// cached; then it generates `output_tokens`. Within 5 % while lengths vary little
    /// and requests are admitted without preemptions.
    pub fn work(&self, computed_prompt_tokens: f64, context_tokens: f64, output_tokens: f64) -> f64 {
        let mean = Mean {
            computed: computed_prompt_tokens.clamp(0.0, context_tokens.max(0.0)),
            prompt: context_tokens,
            output: output_tokens,
        };
        match &self.model {
            EngineModel::Linear => super::linear::work(self, mean),
            EngineModel::ChunkedPrefill(model) => model.work(self, mean),
            EngineModel::PrefillFirst(model) => model.work(self, mean),
        }
    }

    /// Requests in the batch of a full engine, if each holds `tokens` of its KV cache.
    pub(super) fn full_batch(&self, tokens: f64) -> f64 {
        let fits = f64::from(self.num_blocks) * f64::from(self.block_size) / tokens;
        fits.min(self.max_running as f64).max(1.0)
    }

    /// Seconds that a step takes, without jitter.
    pub(super) fn step_seconds(&self, step: &Step) -> f64 {
        match &self.model {
            EngineModel::Linear => super::linear::seconds(self, step),
            EngineModel::ChunkedPrefill(model) => model.seconds(step).min(LONGEST_STEP),
            EngineModel::PrefillFirst(model) => model.seconds(step).min(LONGEST_STEP),
        }
    }
}
