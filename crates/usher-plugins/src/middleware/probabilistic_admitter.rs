//! `probabilistic-admitter`: the busier the pool, the more of the requests that may be
//! shed are.

use std::sync::Arc;

use rand::{Rng, RngExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Candidates, Load};
use usher_plugin::{Admitter, Build, BuildContext, Context, Denied, Kind, PluginParts, PluginType, beta};

/// `probabilistic-admitter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("probabilistic-admitter", &[Kind::Admitter],
    "Refuses requests of a priority below 0, the more of them the busier the pool is.",
    Build::Reading(build)).takes::<ProbabilisticAdmitterParams>()
    .when("Requests of low priority should be refused little by little, before the pool is full.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = ProbabilisticAdmitterParams::decode(cx.parameters)?;
    let plugin = Arc::new(ProbabilisticAdmitter::new(params));
    Ok(PluginParts { admitter: Some(plugin), ..PluginParts::with(&params)? })
}

/// Parameters of `probabilistic-admitter`; all above 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbabilisticAdmitterParams {
    /// Waiting requests at which an endpoint is full.
    #[schemars(extend("x-unit" = "requests"))]
    pub queue_depth_threshold: f64,
    /// Share of the KV cache at which it is.
    #[schemars(extend("x-unit" = "share"))]
    pub kv_cache_util_threshold: f64,
    /// Power of the mean fullness in the probability.
    pub power: f64,
    /// Factor of that power in the probability.
    pub k: f64,
}

impl Default for ProbabilisticAdmitterParams {
    fn default() -> Self {
        Self { queue_depth_threshold: 5.0, kv_cache_util_threshold: 0.8, power: 5.0, k: 300.0 }
    }
}

impl ProbabilisticAdmitterParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and what is not above 0.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (params, default): (Self, _) = (node.decode()?, Self::default());
        for (key, value, default) in [
            ("queueDepthThreshold", params.queue_depth_threshold, default.queue_depth_threshold),
            ("kvCacheUtilThreshold", params.kv_cache_util_threshold, default.kv_cache_util_threshold),
            ("power", params.power, default.power),
            ("k", params.k, default.k),
        ] {
            if !(value.is_finite() && value > 0.0) {
                let message = format!("{key} can't be {value}, it has to be above 0");
                return Err(
                    ConfigError::at(node.position_of(key), message).hint(format!("the default is {default}"))
                );
            }
        }
        Ok(params)
    }
}

/// Refuses requests of a priority below 0 with the probability min(1, saturation^power × k),
/// where saturation is the mean over the candidates of the larger of queue and KV cache,
/// each divided by its threshold. An endpoint that nothing fresh is known of is full.
#[derive(Clone, Copy, Debug)]
pub struct ProbabilisticAdmitter {
    params: ProbabilisticAdmitterParams,
}

impl ProbabilisticAdmitter {
    /// An admitter with these parameters.
    pub fn new(params: ProbabilisticAdmitterParams) -> Self {
        Self { params }
    }

    /// Probability that a request which may be shed is, 0..=1.
    pub fn probability(&self, cx: &Context<'_>, candidates: &Candidates) -> f64 {
        let total: f64 = candidates.view().iter().map(|endpoint| self.share(cx, endpoint.load())).sum();
        let saturation = total / candidates.len().max(1) as f64;
        (saturation.powf(self.params.power) * self.params.k).clamp(0.0, 1.0)
    }

    /// Fill of an endpoint; 1 is full, and it may be more.
    fn share(&self, cx: &Context<'_>, load: &Load) -> f64 {
        let fresh = |reading: Option<f64>, threshold: f64| {
            reading.filter(|value| value.is_finite()).map(|value| value.max(0.0) / threshold)
        };
        let queue = fresh(load.waiting.fresh(cx.now_ms, cx.max_age), self.params.queue_depth_threshold);
        let kv = fresh(load.kv_usage.fresh(cx.now_ms, cx.max_age), self.params.kv_cache_util_threshold);
        match (queue, kv) {
            (Some(queue), Some(kv)) => queue.max(kv),
            // Not every engine reports both.
            (known, other) => known.or(other).unwrap_or(1.0),
        }
    }
}

impl Admitter for ProbabilisticAdmitter {
    fn admit(&self, cx: &Context<'_>, candidates: &Candidates, rng: &mut dyn Rng) -> Result<(), Denied> {
        if cx.request.priority >= 0 || rng.random::<f64>() >= self.probability(cx, candidates) {
            return Ok(());
        }
        Err(Denied("the pool is too busy for a request that may be shed".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_above_zero() {
        let decode = |text: &str| ProbabilisticAdmitterParams::decode(&Node::parse(text).unwrap());
        assert_eq!(decode("{}").unwrap(), ProbabilisticAdmitterParams::default());
        let set = decode("{queueDepthThreshold: 3, kvCacheUtilThreshold: 0.5, power: 2, k: 10}").unwrap();
        assert_eq!(
            (set.queue_depth_threshold, set.kv_cache_util_threshold, set.power, set.k),
            (3.0, 0.5, 2.0, 10.0)
        );
        let table = [
            ("{queueDepthThreshold: 0}", "queueDepthThreshold can't be 0", 23),
            ("{kvCacheUtilThreshold: -0.5}", "kvCacheUtilThreshold can't be -0.5", 24),
            ("{power: .nan}", "power can't be NaN", 9),
            ("{k: .inf}", "k can't be inf", 5),
            ("{K: 3}", "unknown field 'K'", 2),
            ("{k: many}", "k: expected a number", 5),
        ];
        for (text, message, column) in table {
            let error = decode(text).expect_err(text);
            assert!(error.message().contains(message), "{text}: {error}");
            assert_eq!(error.position().map(|at| at.column), Some(column), "{text}: {error}");
        }
    }
}
