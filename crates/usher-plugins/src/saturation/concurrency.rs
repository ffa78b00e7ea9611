//! `concurrency-detector`: how full endpoints are by what pickers have under way there.

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_core::endpoints::{Endpoint, InFlightId, Snapshot, View};
use usher_plugin::params::checked;
use usher_plugin::{
    Build, Built, Context, Filter, Kind, Level, PluginType, SaturationDetector, Site, beta, parameter,
};

use super::mean_or_full;
use crate::filter::retain;

/// `concurrency-detector` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("concurrency-detector", &[Kind::SaturationDetector, Kind::Filter],
    "Says how busy the pool is, by what is under way. As a filter, keeps the endpoints that have room, also when none has.",
    &[
        parameter("maxConcurrency", "100", "requests", "Requests under way at which an endpoint is full."),
        parameter("concurrencyMode", "requests", "", "What counts: requests, tokens, or hybrid, whichever is nearer to its limit."),
        parameter("maxTokenConcurrency", "1000000", "tokens", "Tokens under way at which an endpoint is full."),
        parameter("headroom", "0", "share", "How far beyond the limits the filter lets it go."),
        parameter("inFlightLoadProducerName", "inflight-load-producer", "", "The producer that counts."),
    ],
    Build::Reading(build))
    .when("Servers without metrics, or bursts: it counts what this picker sent.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ConcurrencyDetectorParams::decode(site.parameters)?;
    let counters = site.reads_in_flight(&params.in_flight_load_producer_name);
    let plugin = Arc::new(ConcurrencyDetector::new(&params, counters));
    let filter = Some(Arc::clone(&plugin) as _);
    Ok(Built { filter, detector: Some(plugin), ..Built::with(&params)? })
}

/// Parameters of `concurrency-detector`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConcurrencyDetectorParams {
    /// Requests at which an endpoint is full. Default 100, as with the peer.
    pub max_concurrency: u64,
    /// What is counted. Default requests.
    pub concurrency_mode: ConcurrencyMode,
    /// Tokens at which an endpoint is full. Default 1,000,000, as with the peer.
    pub max_token_concurrency: u64,
    /// Share by which the filter lets it go beyond. Default 0.
    pub headroom: f64,
    /// The producer that counts. Default `inflight-load-producer`.
    pub in_flight_load_producer_name: String,
}

/// Bytes of a body for a token, as the estimate of tokens has it.
const BYTES_PER_TOKEN: f64 = 4.0;

/// What fills an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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

impl ConcurrencyDetectorParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and modes, wrong types, and numbers out of range, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            max_concurrency: Option<Positioned<i64>>,
            concurrency_mode: Option<Positioned<String>>,
            max_token_concurrency: Option<Positioned<i64>>,
            headroom: Option<Positioned<f64>>,
            in_flight_load_producer_name: Option<String>,
        }
        let written: Written = node.decode()?;
        let name = written.in_flight_load_producer_name.filter(|name| !name.is_empty());
        Ok(Self {
            max_concurrency: positive("maxConcurrency", written.max_concurrency, 100)?,
            concurrency_mode: written.concurrency_mode.as_ref().map(mode).transpose()?.unwrap_or_default(),
            max_token_concurrency: positive("maxTokenConcurrency", written.max_token_concurrency, 1_000_000)?,
            headroom: checked("headroom", written.headroom, 0.0, |v| v >= 0.0)?,
            in_flight_load_producer_name: name.unwrap_or_else(|| "inflight-load-producer".to_owned()),
        })
    }
}

fn mode(written: &Name) -> Result<ConcurrencyMode, ConfigError> {
    match written.value.as_str() {
        "" | "requests" => Ok(ConcurrencyMode::Requests),
        "tokens" => Ok(ConcurrencyMode::Tokens),
        "hybrid" => Ok(ConcurrencyMode::Hybrid),
        other => Err(ConfigError::at(written.at, format!("concurrencyMode '{other}' is not known"))
            .hint("known here: requests, tokens, hybrid")
            .did_you_mean(other, ["requests", "tokens", "hybrid"])),
    }
}

fn positive(name: &str, written: Option<Positioned<i64>>, default: u64) -> Result<u64, ConfigError> {
    let Some(Positioned { at, value }) = written else { return Ok(default) };
    u64::try_from(value).ok().filter(|value| *value > 0).ok_or_else(|| {
        ConfigError::at(at, format!("{name} can't be {value}")).hint(format!("the default is {default}"))
    })
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
            max_requests: params.max_concurrency,
            max_tokens: params.max_token_concurrency,
            headroom: params.headroom,
            counters,
        }
    }

    /// Whether an endpoint is below its limit and the headroom.
    fn has_room(&self, endpoint: &Endpoint) -> bool {
        let counted = endpoint.load().in_flight_of(self.counters);
        // Rounded down, as with the peer. Saturates, as casts from floats do.
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
    /// What is under way everywhere ÷ what all endpoints may have; for both kinds
    /// together the mean over the endpoints of the larger share.
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
