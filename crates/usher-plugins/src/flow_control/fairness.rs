//! Fairness policies: which flow of a priority goes next.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::{any_word, in_range, word};
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, beta};

/// `global-strict-fairness-policy` in a configuration.
#[rustfmt::skip]
pub static GLOBAL_STRICT: PluginType = beta("global-strict-fairness-policy", &[Kind::FairnessPolicy],
    "Serves all flows of a priority as one queue.",
    Build::Ignoring(global_strict))
    .when("Part of the default: who shares the pool doesn't matter.");

/// `round-robin-fairness-policy` in a configuration.
#[rustfmt::skip]
pub static ROUND_ROBIN: PluginType = beta("round-robin-fairness-policy", &[Kind::FairnessPolicy],
    "Serves the flows of a priority in turns, a request each.",
    Build::Ignoring(round_robin))
    .when("Tenants share the pool, and none may crowd the others out.");

/// `program-aware-fairness` in a configuration.
#[rustfmt::skip]
pub static PROGRAM_AWARE: PluginType = beta("program-aware-fairness", &[Kind::FairnessPolicy],
    "Serves the flow with the fewest recent tokens first, generated ones counted twice, and favours flows that wait long.",
    Build::Reading(program_aware)).takes::<ProgramAwareParams>()
    .when("Agents or tenants whose requests differ much in size.");

fn global_strict(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts::bare().with_extra(Fairness::GlobalStrict))
}

fn round_robin(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts::bare().with_extra(Fairness::RoundRobin))
}

fn program_aware(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = ProgramAwareParams::decode(cx.parameters)?;
    Ok(PluginParts::with(&params)?.with_extra(Fairness::ProgramAware(params.clone())))
}

/// The order of flows.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Fairness {
    /// `global-strict-fairness-policy`: flows don't matter, the order of requests does.
    #[default]
    GlobalStrict,
    /// `round-robin-fairness-policy`: in turns.
    RoundRobin,
    /// `program-aware-fairness`: who got least, and who waits longest.
    ProgramAware(ProgramAwareParams),
}

/// Parameters of `program-aware-fairness`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProgramAwareParams {
    /// Comparison of flows; las, least attained service, is the only one.
    #[serde(deserialize_with = "any_word")]
    pub strategy: Strategy,
    /// Time for which a flow that sends nothing is remembered.
    #[schemars(extend("x-unit" = "seconds"))]
    pub eviction_ttl_seconds: f64,
    /// Interval at which such flows are looked for.
    #[schemars(extend("x-unit" = "seconds"))]
    pub eviction_sweep_seconds: f64,
    /// Weight of the tokens that a flow got.
    pub las_weight_service: f64,
    /// Weight of how long its first request waits.
    pub las_weight_head_wait: f64,
    /// Time after which half of what a flow got is forgotten.
    #[schemars(extend("x-unit" = "seconds"))]
    pub las_half_life_seconds: f64,
}

/// Comparison of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// By the service that they attained; the least goes first.
    #[default]
    Las,
}

impl Default for ProgramAwareParams {
    fn default() -> Self {
        Self {
            strategy: Strategy::Las,
            eviction_ttl_seconds: 3600.0,
            eviction_sweep_seconds: 300.0,
            las_weight_service: 0.8,
            las_weight_head_wait: 0.2,
            las_half_life_seconds: 60.0,
        }
    }
}

impl ProgramAwareParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and strategies, wrong types, and numbers out of
    /// range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, _) = (node.decode()?, Self::default());
        params.strategy = word(node, "strategy")?;
        // A weight of a billion says no more than one of a hundred, and the sums stay finite.
        let weight = |value: f64| (0.0..=1e9).contains(&value);
        let seconds = |value: f64| value > 0.0 && value <= MAX_SECONDS;
        let (ttl, sweep) = (params.eviction_ttl_seconds, params.eviction_sweep_seconds);
        let (service, head_wait) = (params.las_weight_service, params.las_weight_head_wait);
        let half_life = params.las_half_life_seconds;
        in_range(node, "evictionTtlSeconds", ttl, default.eviction_ttl_seconds, seconds)?;
        in_range(node, "evictionSweepSeconds", sweep, default.eviction_sweep_seconds, seconds)?;
        in_range(node, "lasWeightService", service, default.las_weight_service, weight)?;
        in_range(node, "lasWeightHeadWait", head_wait, default.las_weight_head_wait, weight)?;
        in_range(node, "lasHalfLifeSeconds", half_life, default.las_half_life_seconds, seconds)?;
        Ok(params)
    }

    /// Time for which a program that sends nothing is remembered.
    pub fn eviction_ttl(&self) -> Duration {
        Duration::from_secs_f64(self.eviction_ttl_seconds)
    }

    /// Interval at which forgotten programs are looked for.
    pub fn eviction_sweep(&self) -> Duration {
        Duration::from_secs_f64(self.eviction_sweep_seconds)
    }

    /// Time after which half of what a program got is forgotten.
    pub fn half_life(&self) -> Duration {
        Duration::from_secs_f64(self.las_half_life_seconds)
    }
}

/// A hundred years: more is a mistake, and less is a duration.
const MAX_SECONDS: f64 = 100.0 * 365.0 * 86_400.0;
