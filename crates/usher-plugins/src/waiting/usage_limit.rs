//! How much of the pool a priority may fill.

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node, Positioned};
use usher_plugin::params::checked;

use super::ceiling::{Ceiling, Standing};
use super::holdback::HoldbackParams;
use super::reflective;

/// A policy that gives every priority its ceiling.
#[derive(Clone, Debug, PartialEq)]
pub enum UsageLimit {
    /// `static-usage-limit-policy`: the same for all.
    Static(StaticUsageLimitParams),
    /// `priority-holdback-policy`: the lower the priority, the lower its ceiling.
    Holdback(HoldbackParams),
    /// `soft-reflective-ceiling-policy`: lower priorities give way as the pool fills.
    SoftReflective,
}

impl Default for UsageLimit {
    fn default() -> Self {
        Self::Static(StaticUsageLimitParams { threshold: 1.0 })
    }
}

/// Parameters of `static-usage-limit-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StaticUsageLimitParams {
    /// Saturation up to which every priority is let through. Default 1.
    pub threshold: f64,
}

impl StaticUsageLimitParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types, and numbers out of range, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Written {
            threshold: Option<Positioned<f64>>,
        }
        let written: Written = node.decode()?;
        Ok(Self { threshold: checked("threshold", written.threshold, 1.0, |v| v >= 0.0)? })
    }
}

impl UsageLimit {
    /// The ceiling of a band while the pool is so saturated.
    pub fn ceiling(&self, standing: Standing, saturation: f64) -> Ceiling {
        match self {
            Self::Static(params) => Ceiling::Below(params.threshold),
            Self::Holdback(params) => Ceiling::Below(params.ceiling(standing)),
            Self::SoftReflective => reflective::ceiling(standing, saturation),
        }
    }
}
