//! `utilization-detector`: how full endpoints are by their waiting queues and KV caches.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use usher_core::config::{ConfigError, Node, duration};
use usher_core::endpoints::{Endpoint, Gauge, Snapshot, View};
use usher_plugin::params::in_range;
use usher_plugin::{
    Build, BuildContext, Context, Filter, Kind, Level, PluginParts, PluginType, SaturationDetector, beta,
};

use super::mean_or_full;
use crate::filter::retain_or_all;

/// `utilization-detector` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("utilization-detector", &[Kind::SaturationDetector, Kind::Filter],
    "Measures the pool's saturation by waiting queues and KV caches. As a filter, keeps the endpoints that have room, or all when none has.",
    Build::Reading(build)).takes::<UtilizationDetectorParams>()
    .when("Part of the default. Declare it for other thresholds.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = UtilizationDetectorParams::decode(cx.parameters)?;
    let plugin = Arc::new(UtilizationDetector::new(params));
    let filter = Some(Arc::clone(&plugin) as _);
    let staleness = Some(params.metrics_staleness_threshold);
    Ok(PluginParts {
        filter,
        detector: Some(plugin),
        staleness,
        ..PluginParts::with(&params)?.with_summary(params.summary())
    })
}

/// Parameters of `utilization-detector`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UtilizationDetectorParams {
    /// Waiting requests at which an endpoint is full.
    #[schemars(extend("x-unit" = "requests"))]
    pub queue_depth_threshold: f64,
    /// Share of the KV cache at which it is.
    #[schemars(extend("x-unit" = "share"))]
    pub kv_cache_util_threshold: f64,
    /// Age at which its numbers count as full.
    ///
    /// 200 ms are four scrapes at the default interval.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    #[schemars(with = "String", extend("x-unit" = "duration"))]
    pub metrics_staleness_threshold: Duration,
    /// Excess over the thresholds that the filter allows.
    #[schemars(extend("x-unit" = "share"))]
    pub headroom: f64,
}

impl Default for UtilizationDetectorParams {
    fn default() -> Self {
        Self {
            queue_depth_threshold: 5.0,
            kv_cache_util_threshold: 0.8,
            metrics_staleness_threshold: DEFAULT_STALENESS,
            headroom: 0.0,
        }
    }
}

const DEFAULT_STALENESS: Duration = Duration::from_millis(200);

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    duration(deserializer).map(|duration| duration.unwrap_or(DEFAULT_STALENESS))
}

fn as_text<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{duration:?}"))
}

impl UtilizationDetectorParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let (queue, cache) = (self.queue_depth_threshold, 100.0 * self.kv_cache_util_threshold);
        let age = self.metrics_staleness_threshold;
        format!(
            "Takes an endpoint for full with {queue} waiting requests, with {cache} % of its KV cache in use, or where that was read {age:?} ago or longer."
        )
    }
}

impl UtilizationDetectorParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and numbers out of range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (params, default): (Self, _) = (node.decode()?, Self::default());
        let (queue, kv) = (params.queue_depth_threshold, params.kv_cache_util_threshold);
        in_range(node, "queueDepthThreshold", queue, default.queue_depth_threshold, |depth| depth > 0.0)?;
        in_range(node, "kvCacheUtilThreshold", kv, default.kv_cache_util_threshold, |share| {
            share > 0.0 && share <= 1.0
        })?;
        in_range(node, "headroom", params.headroom, default.headroom, |share| share >= 0.0)?;
        Ok(params)
    }
}

/// Judges endpoints by what they say of themselves. A number that an endpoint never
/// reported doesn't count, as not every engine has it; one that it no longer reports
/// counts as full, and so does an endpoint that reports nothing.
#[derive(Clone, Copy, Debug)]
pub struct UtilizationDetector {
    params: UtilizationDetectorParams,
}

/// State of a number that an endpoint reports.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reading {
    Never,
    Old,
    Fresh(f64),
}

impl UtilizationDetector {
    /// A detector with these parameters.
    pub fn new(params: UtilizationDetectorParams) -> Self {
        Self { params }
    }

    /// Both numbers of an endpoint, each with its threshold.
    fn readings(&self, now_ms: u64, endpoint: &Endpoint) -> [(Reading, f64); 2] {
        let load = endpoint.load();
        let read = |gauge: &Gauge| match gauge.fresh(now_ms, self.params.metrics_staleness_threshold) {
            Some(value) if value.is_finite() => Reading::Fresh(value),
            None if gauge.read_at_ms().is_none() => Reading::Never,
            _ => Reading::Old,
        };
        [
            (read(&load.waiting), self.params.queue_depth_threshold),
            (read(&load.kv_usage), self.params.kv_cache_util_threshold),
        ]
    }

    /// The larger of waiting ÷ threshold and KV usage ÷ threshold, with so many requests
    /// more that wait there. An endpoint that never says how many do has none of them.
    fn fullness(&self, now_ms: u64, endpoint: &Endpoint, unseen: f64) -> f64 {
        let [(waiting, full_queue), (kv, full_cache)] = self.readings(now_ms, endpoint);
        let share = |reading: Reading, more: f64, full: f64| match reading {
            Reading::Never => None,
            Reading::Old => Some(1.0),
            Reading::Fresh(value) => Some((value + more) / full),
        };
        let shares = [share(waiting, unseen, full_queue), share(kv, 0.0, full_cache)];
        shares.into_iter().flatten().reduce(f64::max).unwrap_or(1.0)
    }

    /// Returns `true` if an endpoint is below both thresholds and their headroom.
    fn has_room(&self, now_ms: u64, endpoint: &Endpoint) -> bool {
        let readings = self.readings(now_ms, endpoint);
        let below = |(reading, full): (Reading, f64)| match reading {
            Reading::Never => true,
            Reading::Old => false,
            Reading::Fresh(value) => value < full * (1.0 + self.params.headroom),
        };
        readings.into_iter().all(below) && readings.iter().any(|(reading, _)| *reading != Reading::Never)
    }
}

impl SaturationDetector for UtilizationDetector {
    /// The mean over the endpoints of the larger of both shares.
    fn saturation(&self, now_ms: u64, endpoints: View<'_>) -> f64 {
        mean_or_full(endpoints.iter().map(|endpoint| self.fullness(now_ms, endpoint, 0.0)), 1.0)
    }

    /// Requests sent to an endpoint since its numbers were asked for count as waiting there, as do
    /// those whose first byte is overdue.
    fn level(&self, now_ms: u64, endpoints: View<'_>) -> Level {
        let fullness = |endpoint: &Arc<Endpoint>| {
            let load = endpoint.load();
            self.fullness(now_ms, endpoint, (load.unseen() + load.overdue()) as f64)
        };
        let saturation = mean_or_full(endpoints.iter().map(fullness), 1.0);
        let slots = endpoints.len() as f64 * self.params.queue_depth_threshold;
        let per_request = if endpoints.is_empty() { 0.0 } else { 1.0 / slots };
        Level { saturation, per_request, per_byte: 0.0 }
    }

    fn stale(&self, now_ms: u64, endpoints: View<'_>) -> Option<usize> {
        let is_stale = |endpoint: &&Arc<Endpoint>| {
            !self.readings(now_ms, endpoint).iter().any(|(reading, _)| matches!(reading, Reading::Fresh(_)))
        };
        Some(endpoints.iter().filter(is_stale).count())
    }
}

/// Keeps the endpoints that have room, or all when none has.
impl Filter for UtilizationDetector {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        retain_or_all(snapshot, kept, |endpoint| self.has_room(cx.now_ms, endpoint));
    }

    fn drops_the_busy(&self) -> bool {
        true
    }
}
