//! `concurrency-detector`: how full endpoints are by what pickers have under way there.

use std::sync::Arc;

use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Endpoint, InFlightId, Snapshot, View};
use usher_plugin::params::{INFLIGHT_PRODUCER, any_word, in_range, or_default, refused, word};
use usher_plugin::{
    Build, BuildContext, Context, Filter, Kind, Level, PluginParts, PluginType, SaturationDetector, beta,
};

use super::mean_or_full;
use crate::filter::retain;

/// `concurrency-detector` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("concurrency-detector", &[Kind::SaturationDetector, Kind::Filter],
    "Measures the pool's saturation by requests or tokens in flight. As a filter, keeps the endpoints that have room, also when none has.",
    Build::Reading(build)).takes::<ConcurrencyDetectorParams>()
    .when("Servers without metrics, or bursts: it counts what this picker sent.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = ConcurrencyDetectorParams::decode(cx.parameters)?;
    let counters = cx.reads_in_flight(&params.in_flight_load_producer_name);
    let plugin = Arc::new(ConcurrencyDetector::new(&params, counters));
    let filter = Some(Arc::clone(&plugin) as _);
    Ok(PluginParts {
        filter,
        detector: Some(plugin),
        ..PluginParts::with(&params)?.with_summary(params.summary())
    })
}

/// Parameters of `concurrency-detector`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConcurrencyDetectorParams {
    /// Requests under way at which an endpoint is full.
    #[schemars(extend("x-unit" = "requests"))]
    pub max_concurrency: i64,
    /// Measure that counts: requests, tokens, or hybrid, whichever is nearer to its limit.
    #[serde(deserialize_with = "any_word")]
    pub concurrency_mode: ConcurrencyMode,
    /// Tokens under way at which an endpoint is full.
    #[schemars(extend("x-unit" = "tokens"))]
    pub max_token_concurrency: i64,
    /// Excess over the limits that the filter allows.
    #[schemars(extend("x-unit" = "share"))]
    pub headroom: f64,
    /// The producer that counts.
    pub in_flight_load_producer_name: String,
}

/// Bytes of a body for a token, as the estimate of tokens has it.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Measure by which an endpoint fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConcurrencyMode {
    /// Requests.
    #[default]
    Requests,
    /// Tokens.
    Tokens,
    /// Whichever of both is nearer to its limit.
    Hybrid,
}

impl Default for ConcurrencyDetectorParams {
    fn default() -> Self {
        Self {
            max_concurrency: 100,
            concurrency_mode: ConcurrencyMode::Requests,
            max_token_concurrency: 1_000_000,
            headroom: 0.0,
            in_flight_load_producer_name: INFLIGHT_PRODUCER.to_owned(),
        }
    }
}

impl ConcurrencyDetectorParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let (requests, tokens) = (self.max_concurrency, self.max_token_concurrency);
        let full = match self.concurrency_mode {
            ConcurrencyMode::Requests => format!("{requests} requests"),
            ConcurrencyMode::Tokens => format!("{tokens} tokens"),
            ConcurrencyMode::Hybrid => format!("{requests} requests or {tokens} tokens"),
        };
        format!("Takes an endpoint for full with {full} in flight.")
    }
}

impl ConcurrencyDetectorParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and modes, wrong types, and numbers out of range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, _) = (node.decode()?, Self::default());
        let positive = |key: &str, value: i64, default: i64| match value > 0 {
            true => Ok(()),
            false => Err(refused(node, key, value).hint(format!("the default is {default}"))),
        };
        positive("maxConcurrency", params.max_concurrency, default.max_concurrency)?;
        params.concurrency_mode = word(node, "concurrencyMode")?;
        positive("maxTokenConcurrency", params.max_token_concurrency, default.max_token_concurrency)?;
        in_range(node, "headroom", params.headroom, default.headroom, |share| share >= 0.0)?;
        or_default(&mut params.in_flight_load_producer_name, INFLIGHT_PRODUCER);
        Ok(params)
    }
}

/// Judges endpoints by requests and tokens that pickers sent there and that are not
/// answered yet.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyDetector {
    mode: ConcurrencyMode,
    max_requests: u64,
    max_tokens: u64,
    headroom: f64,
    counters: InFlightId,
}

impl ConcurrencyDetector {
    /// A detector by these counters.
    pub fn new(params: &ConcurrencyDetectorParams, counters: InFlightId) -> Self {
        Self {
            mode: params.concurrency_mode,
            max_requests: params.max_concurrency.unsigned_abs(),
            max_tokens: params.max_token_concurrency.unsigned_abs(),
            headroom: params.headroom,
            counters,
        }
    }

    /// Returns `true` if an endpoint is below its limit and the headroom.
    fn has_room(&self, endpoint: &Endpoint) -> bool {
        let counted = endpoint.load().in_flight_of(self.counters);
        // Rounded down, as in llm-d-router. Saturates, as casts from floats do.
        let limit = |max: u64| (max as f64 * (1.0 + self.headroom)) as u64;
        let (requests, tokens) =
            (|| counted.requests() < limit(self.max_requests), || counted.tokens() < limit(self.max_tokens));
        match self.mode {
            ConcurrencyMode::Requests => requests(),
            ConcurrencyMode::Tokens => tokens(),
            ConcurrencyMode::Hybrid => requests() && tokens(),
        }
    }
}

impl SaturationDetector for ConcurrencyDetector {
    /// Load under way at all endpoints ÷ the sum of their limits, 1 without endpoints; for both
    /// kinds together the mean over the endpoints of the larger share.
    fn saturation(&self, _now_ms: u64, endpoints: View<'_>) -> f64 {
        let (max_requests, max_tokens) = (self.max_requests as f64, self.max_tokens as f64);
        let counts = endpoints.iter().map(|endpoint| {
            let counted = endpoint.load().in_flight_of(self.counters);
            (counted.requests() as f64, counted.tokens() as f64)
        });
        // Whole numbers are added before they are divided, so that a pool which is just
        // full counts as full.
        match self.mode {
            ConcurrencyMode::Requests => mean_or_full(counts.map(|(requests, _)| requests), max_requests),
            ConcurrencyMode::Tokens => mean_or_full(counts.map(|(_, tokens)| tokens), max_tokens),
            ConcurrencyMode::Hybrid => {
                let larger = |(requests, tokens)| f64::max(requests / max_requests, tokens / max_tokens);
                mean_or_full(counts.map(larger), 1.0)
            }
        }
    }

    /// A request's tokens are counted once it is placed; until then they are guessed from
    /// its bytes.
    fn level(&self, now_ms: u64, endpoints: View<'_>) -> Level {
        let saturation = self.saturation(now_ms, endpoints);
        let share =
            |max: u64| if endpoints.is_empty() { 0.0 } else { 1.0 / (endpoints.len() as f64 * max as f64) };
        let (by_requests, by_tokens) = (share(self.max_requests), share(self.max_tokens) / BYTES_PER_TOKEN);
        let (per_request, per_byte) = match self.mode {
            ConcurrencyMode::Requests => (by_requests, 0.0),
            ConcurrencyMode::Tokens => (0.0, by_tokens),
            ConcurrencyMode::Hybrid => (by_requests, by_tokens),
        };
        Level { saturation, per_request, per_byte }
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// Keeps the endpoints that have room, also when none has.
impl Filter for ConcurrencyDetector {
    fn filter(&self, _cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        retain(snapshot, kept, |endpoint| self.has_room(endpoint));
    }

    fn drops_the_busy(&self) -> bool {
        true
    }
}
