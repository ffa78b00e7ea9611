//! Usage limit policies: the part of the pool that a priority may fill.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::in_range;
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, beta};

use super::ceiling::{BandPosition, Ceiling};
use super::holdback::HoldbackParams;
use super::reflective;

/// `static-usage-limit-policy` in a configuration.
#[rustfmt::skip]
pub static STATIC: PluginType = beta("static-usage-limit-policy", &[Kind::UsageLimitPolicy],
    "Lets every priority fill the same share of the pool.",
    Build::Reading(static_usage_limit)).takes::<StaticUsageLimitParams>()
    .when("Part of the default: no priority keeps room free for another.");

/// `priority-holdback-policy` in a configuration.
#[rustfmt::skip]
pub static HOLDBACK: PluginType = beta("priority-holdback-policy", &[Kind::UsageLimitPolicy],
    "Lets lower priorities fill less of the pool than higher ones.",
    Build::Reading(holdback)).takes::<HoldbackParams>().alpha()
    .when("Important requests have to find room at once.");

/// `soft-reflective-ceiling-policy` in a configuration.
#[rustfmt::skip]
pub static SOFT_REFLECTIVE: PluginType = beta("soft-reflective-ceiling-policy", &[Kind::UsageLimitPolicy],
    "Lets lower priorities through ever more rarely as the pool fills, the lowest first.",
    Build::Reading(soft_reflective)).alpha()
    .when("As above, where a fixed share held back would be idle too often.");

fn static_usage_limit(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = StaticUsageLimitParams::decode(cx.parameters)?;
    let percent = 100.0 * params.threshold;
    let summary = format!("Lets every priority through while the pool is less than {percent} % full.");
    Ok(PluginParts::with(&params)?.with_summary(summary).with_extra(UsageLimit::Static(params)))
}

fn holdback(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = HoldbackParams::decode(cx.parameters)?;
    Ok(PluginParts::with(&params)?.with_extra(UsageLimit::Holdback(params)))
}

fn soft_reflective(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts::bare().with_extra(UsageLimit::SoftReflective))
}

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
        Self::Static(StaticUsageLimitParams::default())
    }
}

/// Parameters of `static-usage-limit-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StaticUsageLimitParams {
    /// Saturation up to which requests are let through.
    #[schemars(extend("x-unit" = "saturation"))]
    pub threshold: f64,
}

impl Default for StaticUsageLimitParams {
    fn default() -> Self {
        Self { threshold: 1.0 }
    }
}

impl StaticUsageLimitParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and numbers out of range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        in_range(node, "threshold", params.threshold, 1.0, |threshold| threshold >= 0.0)?;
        Ok(params)
    }
}

impl UsageLimit {
    /// The ceiling of a band while the pool is so saturated.
    pub fn ceiling(&self, position: BandPosition, saturation: f64) -> Ceiling {
        match self {
            Self::Static(params) => Ceiling::Below(params.threshold),
            Self::Holdback(params) => Ceiling::Below(params.ceiling(position)),
            Self::SoftReflective => reflective::ceiling(position, saturation),
        }
    }
}
