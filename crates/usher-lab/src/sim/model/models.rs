//! The models of an engine, and their names.

use std::fmt;
use std::str::FromStr;

use super::chunked_prefill::ChunkedPrefill;
use super::prefill_first::PrefillFirst;
use crate::sim::error::ConfigError;

/// Largest constant of a model, in seconds.
const LARGEST: f64 = 1e6;

/// Model of an engine's scheduling and of the cost of its steps.
///
/// The models differ in structure, so that a policy that fits one of them need not fit
/// the others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum EngineModel {
    /// Chunked prefill mixed with decoding, a step's time linear in tokens and requests.
    /// Its constants are fields of [`EngineConfig`](crate::sim::EngineConfig).
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

impl EngineModel {
    /// The model without its constants.
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Linear => ModelKind::Linear,
            Self::ChunkedPrefill(_) => ModelKind::ChunkedPrefill,
            Self::PrefillFirst(_) => ModelKind::PrefillFirst,
        }
    }

    /// Returns `true` if all constants are in their ranges.
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
    pub(super) fn seconds_mut(&mut self) -> Vec<&mut f64> {
        match self {
            Self::Linear => Vec::new(),
            Self::ChunkedPrefill(model) => model.seconds_mut().into(),
            Self::PrefillFirst(model) => model.seconds_mut().into(),
        }
    }
}
