//! `active-request-scorer`: the fewer requests are under way at an endpoint, the better.

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Node};
use crate::endpoints::{InFlightId, View};
use crate::schedule::{Context, Scorer};

/// Parameters of `active-request-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActiveRequestParams {
    /// Requests up to which an endpoint counts as idle. Default 0.
    pub idle_threshold: i64,
    /// The best score of an endpoint that isn't idle, 0..=1. Default 1.
    pub max_busy_score: f64,
    /// The producer that counts. Default `inflight-load-producer`.
    pub in_flight_load_producer_name: String,
}

impl ActiveRequestParams {
    /// Reads the parameters. As with the peer, a `maxBusyScore` out of its range means 1.
    ///
    /// # Errors
    /// Unknown keys and wrong types, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            idle_threshold: i64,
            max_busy_score: Option<f64>,
            in_flight_load_producer_name: Option<String>,
            /// Deprecated, and ignored by the peer.
            #[serde(rename = "requestTimeout")]
            _request_timeout: Option<String>,
        }
        let written: Written = node.decode()?;
        let name = written.in_flight_load_producer_name.filter(|name| !name.is_empty());
        Ok(Self {
            idle_threshold: written.idle_threshold,
            max_busy_score: written.max_busy_score.filter(|max| (0.0..=1.0).contains(max)).unwrap_or(1.0),
            in_flight_load_producer_name: name.unwrap_or_else(|| "inflight-load-producer".to_owned()),
        })
    }
}

/// Scores 1 for idle endpoints, others (most − requests) / most × `maxBusyScore`,
/// where `most` is the largest number of requests at a candidate.
#[derive(Clone, Debug)]
pub struct ActiveRequestScorer {
    idle_threshold: i64,
    max_busy_score: f32,
    counters: InFlightId,
}

impl ActiveRequestScorer {
    /// A scorer by these counters.
    pub fn new(params: &ActiveRequestParams, counters: InFlightId) -> Self {
        let ActiveRequestParams { idle_threshold, max_busy_score, .. } = *params;
        Self { idle_threshold, max_busy_score: max_busy_score as f32, counters }
    }
}

impl Scorer for ActiveRequestScorer {
    fn score(&self, _cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let mut most = 0.0f32;
        for (score, endpoint) in out.iter_mut().zip(candidates.iter()) {
            *score = endpoint.load().in_flight_of(self.counters).requests() as f32;
            most = most.max(*score);
        }
        for score in out {
            let is_idle = *score as i64 <= self.idle_threshold;
            *score = if is_idle { 1.0 } else { (most - *score) / most * self.max_busy_score };
        }
    }
}
