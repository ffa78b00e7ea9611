//! Who of the flows of a priority goes next.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_plugin::params::checked;
use usher_plugin::{Build, Built, Kind, PluginType, Site, beta, parameter};

/// `global-strict-fairness-policy` in a configuration.
#[rustfmt::skip]
pub static GLOBAL_STRICT: PluginType = beta("global-strict-fairness-policy", &[Kind::FairnessPolicy],
    "Serves all flows of a priority as one queue.",
    &[], Build::Ignoring(global_strict))
    .when("Part of the default: who shares the pool doesn't matter.");

/// `round-robin-fairness-policy` in a configuration.
#[rustfmt::skip]
pub static ROUND_ROBIN: PluginType = beta("round-robin-fairness-policy", &[Kind::FairnessPolicy],
    "Serves the flows of a priority in turns, a request each.",
    &[], Build::Ignoring(round_robin))
    .when("Tenants share the pool, and none may crowd the others out.");

/// `program-aware-fairness` in a configuration.
#[rustfmt::skip]
pub static PROGRAM_AWARE: PluginType = beta("program-aware-fairness", &[Kind::FairnessPolicy],
    "Serves the flow first that got the fewest tokens lately, generated ones counted twice, and gives those a push that wait long.",
    &[
        parameter("strategy", "las", "", "How flows are compared; las, least attained service, is the only way."),
        parameter("evictionTtlSeconds", "3600", "seconds", "How long a flow that sends nothing is remembered."),
        parameter("evictionSweepSeconds", "300", "seconds", "How often such flows are looked for."),
        parameter("lasWeightService", "0.8", "", "Weight of the tokens that a flow got."),
        parameter("lasWeightHeadWait", "0.2", "", "Weight of how long its first request waits."),
        parameter("lasHalfLifeSeconds", "60", "seconds", "Time after which half of what a flow got is forgotten."),
    ],
    Build::Reading(program_aware))
    .when("Agents or tenants whose requests differ much in size.");

fn global_strict(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built::bare().with_extra(Fairness::GlobalStrict))
}

fn round_robin(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built::bare().with_extra(Fairness::RoundRobin))
}

fn program_aware(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ProgramAwareParams::decode(site.parameters)?;
    Ok(Built::with(&params)?.with_extra(Fairness::ProgramAware(params.clone())))
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
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramAwareParams {
    /// How programs are compared. There is only `las`, least attained service.
    pub strategy: &'static str,
    /// How long a program that sends nothing is remembered, seconds. Default 3600.
    pub eviction_ttl_seconds: f64,
    /// How often forgotten programs are looked for, seconds. Default 300.
    pub eviction_sweep_seconds: f64,
    /// Weight of what a program got so far; less is better. Default 0.8.
    pub las_weight_service: f64,
    /// Weight of how long its first request waits; longer is better. Default 0.2.
    pub las_weight_head_wait: f64,
    /// Time after which half of what a program got is forgotten, seconds. Default 60.
    pub las_half_life_seconds: f64,
}

impl Default for ProgramAwareParams {
    fn default() -> Self {
        Self {
            strategy: LAS,
            eviction_ttl_seconds: 3600.0,
            eviction_sweep_seconds: 300.0,
            las_weight_service: 0.8,
            las_weight_head_wait: 0.2,
            las_half_life_seconds: 60.0,
        }
    }
}

/// The only strategy.
const LAS: &str = "las";

impl ProgramAwareParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and strategies, wrong types, and numbers out of range, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            strategy: Option<Name>,
            eviction_ttl_seconds: Option<Positioned<f64>>,
            eviction_sweep_seconds: Option<Positioned<f64>>,
            las_weight_service: Option<Positioned<f64>>,
            las_weight_head_wait: Option<Positioned<f64>>,
            las_half_life_seconds: Option<Positioned<f64>>,
        }
        let written: Written = node.decode()?;
        if let Some(strategy) = written.strategy.filter(|name| !matches!(name.value.as_str(), "" | LAS)) {
            return Err(ConfigError::at(strategy.at, format!("strategy '{}' is not known", strategy.value))
                .hint("known here: las")
                .did_you_mean(&strategy.value, [LAS]));
        }
        let default = Self::default();
        // A weight of a billion says no more than one of a hundred, and the sums stay finite.
        let weight = |value: f64| (0.0..=1e9).contains(&value);
        let seconds = |value: f64| value > 0.0 && value <= MAX_SECONDS;
        Ok(Self {
            strategy: LAS,
            eviction_ttl_seconds: checked(
                "evictionTtlSeconds",
                written.eviction_ttl_seconds,
                default.eviction_ttl_seconds,
                seconds,
            )?,
            eviction_sweep_seconds: checked(
                "evictionSweepSeconds",
                written.eviction_sweep_seconds,
                default.eviction_sweep_seconds,
                seconds,
            )?,
            las_weight_service: checked(
                "lasWeightService",
                written.las_weight_service,
                default.las_weight_service,
                weight,
            )?,
            las_weight_head_wait: checked(
                "lasWeightHeadWait",
                written.las_weight_head_wait,
                default.las_weight_head_wait,
                weight,
            )?,
            las_half_life_seconds: checked(
                "lasHalfLifeSeconds",
                written.las_half_life_seconds,
                default.las_half_life_seconds,
                seconds,
            )?,
        })
    }

    /// How long a program that sends nothing is remembered.
    pub fn eviction_ttl(&self) -> Duration {
        Duration::from_secs_f64(self.eviction_ttl_seconds)
    }

    /// How often forgotten programs are looked for.
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
