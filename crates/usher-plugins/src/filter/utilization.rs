//! `utilization-filter`: the endpoints whose numbers are all within their limits.

use std::sync::Arc;

use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Endpoint, InFlightId, Load, Snapshot, View};
use usher_plugin::params::{INFLIGHT_PRODUCER, or_default, refused};
use usher_plugin::{Build, BuildContext, Context, Filter, Kind, PluginParts, PluginType, beta};

use super::{retain, retain_or_all};

/// `utilization-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("utilization-filter", &[Kind::Filter],
    "Keeps the endpoints whose numbers are all within their limits.",
    Build::Reading(build)).takes::<UtilizationFilterParams>().alpha()
    .when("No request may go to an endpoint beyond its limits, however good it is otherwise.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = UtilizationFilterParams::decode(cx.parameters)?;
    let reads = params.reads_in_flight();
    let counters = reads.then(|| cx.reads_in_flight(&params.in_flight_load_producer_name));
    let filter = Arc::new(UtilizationFilter::new(&params, counters));
    Ok(PluginParts { filter: Some(filter), ..PluginParts::with(&params)?.with_summary(params.summary()) })
}

/// Parameters of `utilization-filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UtilizationFilterParams {
    /// The limits, at least one; all have to hold.
    #[schemars(extend("x-required" = true))]
    pub conditions: Vec<Condition>,
    /// Keep every endpoint when none is within the limits.
    pub fallback_on_empty: bool,
    /// The producer that counts active requests.
    pub in_flight_load_producer_name: String,
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Number that is limited: active-requests, running-requests, waiting-queue or kv-cache-utilization.
    pub metric: Metric,
    /// The largest value that is fine, 0 or more.
    #[schemars(extend("x-unit" = "as the metric"))]
    pub max_value: f64,
}

/// Numbers that can be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Requests that pickers have under way there.
    ActiveRequests,
    /// Requests that the model server says it runs.
    RunningRequests,
    /// Requests that wait in the model server.
    WaitingQueue,
    /// Share of the KV cache in use, 0..=1.
    KvCacheUtilization,
}

impl Default for UtilizationFilterParams {
    fn default() -> Self {
        let (conditions, producer) = (Vec::new(), INFLIGHT_PRODUCER.to_owned());
        Self { conditions, fallback_on_empty: false, in_flight_load_producer_name: producer }
    }
}

impl UtilizationFilterParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let limits: Vec<String> = self
            .conditions
            .iter()
            .map(|Condition { metric, max_value }| {
                let name = match metric {
                    Metric::ActiveRequests => "requests in flight",
                    Metric::RunningRequests => "running requests",
                    Metric::WaitingQueue => "waiting requests",
                    Metric::KvCacheUtilization => "share of the KV cache in use",
                };
                format!("{name} at most {max_value}")
            })
            .collect();
        let otherwise = if self.fallback_on_empty { "all where none is" } else { "none where none is" };
        format!("Keeps the endpoints within these limits: {}; {otherwise}.", limits.join(", "))
    }
}

impl UtilizationFilterParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and metrics, wrong types, limits that can't be,
    /// and no condition at all.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        if params.conditions.is_empty() {
            let at = node.get("conditions").unwrap_or(node).at;
            return Err(ConfigError::at(at, "conditions is empty")
                .hint("write for example [{metric: waiting-queue, maxValue: 5}]"));
        }
        let items = node.get("conditions").map(Node::items).unwrap_or_default();
        for (Condition { max_value, .. }, item) in params.conditions.iter().zip(items) {
            if !(max_value.is_finite() && *max_value >= 0.0) {
                return Err(refused(item, "maxValue", max_value).hint("no endpoint is below 0"));
            }
        }
        or_default(&mut params.in_flight_load_producer_name, INFLIGHT_PRODUCER);
        Ok(params)
    }

    /// Returns `true` if active requests are limited.
    pub fn reads_in_flight(&self) -> bool {
        self.conditions.iter().any(|condition| condition.metric == Metric::ActiveRequests)
    }
}

/// Keeps the endpoints that are within all limits. A number that is missing or stale
/// counts as the largest of the other candidates', as with scores; where nobody's is
/// known, the limit doesn't count.
#[derive(Clone, Debug)]
pub struct UtilizationFilter {
    conditions: Vec<Condition>,
    fallback_on_empty: bool,
    counters: Option<InFlightId>,
}

impl UtilizationFilter {
    /// A filter with these parameters; `counters` are those of active requests, where
    /// they are limited.
    pub fn new(params: &UtilizationFilterParams, counters: Option<InFlightId>) -> Self {
        let UtilizationFilterParams { conditions, fallback_on_empty, .. } = params;
        Self { conditions: conditions.clone(), fallback_on_empty: *fallback_on_empty, counters }
    }

    /// The number, if it is known.
    fn value(&self, cx: &Context<'_>, metric: Metric, load: &Load) -> Option<f64> {
        let gauge = match metric {
            Metric::ActiveRequests => {
                return self.counters.map(|counters| load.in_flight_of(counters).requests() as f64);
            }
            Metric::RunningRequests => &load.running,
            Metric::WaitingQueue => &load.waiting,
            Metric::KvCacheUtilization => &load.kv_usage,
        };
        gauge.fresh(cx.now_ms, cx.max_age).filter(|value| value.is_finite())
    }
}

impl Filter for UtilizationFilter {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let candidates = View::new(snapshot, kept);
        let worst = |condition: &Condition| {
            let values =
                candidates.iter().filter_map(|endpoint| self.value(cx, condition.metric, endpoint.load()));
            values.reduce(f64::max)
        };
        let worst: SmallVec<[Option<f64>; 4]> = self.conditions.iter().map(worst).collect();
        let fits = |endpoint: &Endpoint| {
            self.conditions.iter().zip(&worst).all(|(condition, worst)| {
                let value = self.value(cx, condition.metric, endpoint.load()).or(*worst);
                value.is_none_or(|value| value <= condition.max_value)
            })
        };
        if self.fallback_on_empty {
            retain_or_all(snapshot, kept, fits);
        } else {
            retain(snapshot, kept, fits);
        }
    }

    fn drops_the_busy(&self) -> bool {
        true
    }
}
