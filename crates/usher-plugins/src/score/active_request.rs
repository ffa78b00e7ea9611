//! `active-request-scorer`: the fewer requests are under way at an endpoint, the better.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{InFlightId, View};
use usher_plugin::params::{INFLIGHT_PRODUCER, or_default};
use usher_plugin::{Build, BuildContext, Context, Kind, PluginParts, PluginType, Scorer, beta};

/// `active-request-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("active-request-scorer", &[Kind::Scorer],
    "The fewer requests are under way at an endpoint, the better.",
    Build::Reading(build)).takes::<ActiveRequestParams>()
    .when("Bursts: it counts at once what this picker sent, where the scraped queue is a moment old.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = ActiveRequestParams::decode(cx.parameters)?;
    let counters = cx.reads_in_flight(&params.in_flight_load_producer_name);
    let scorer = Arc::new(ActiveRequestScorer::new(&params, counters));
    Ok(PluginParts { scorer: Some(scorer), ..PluginParts::with(&params)?.with_summary(params.summary()) })
}

/// Parameters of `active-request-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ActiveRequestParams {
    /// Requests up to which an endpoint counts as idle.
    #[schemars(extend("x-unit" = "requests"))]
    pub idle_threshold: i64,
    /// Best score of an endpoint that isn't idle.
    ///
    /// 0 to 1.
    #[schemars(extend("x-unit" = "score"))]
    pub max_busy_score: f64,
    /// The producer that counts.
    pub in_flight_load_producer_name: String,
    /// Deprecated, without effect.
    #[serde(skip_serializing)]
    request_timeout: Option<String>,
}

impl Default for ActiveRequestParams {
    fn default() -> Self {
        Self {
            idle_threshold: 0,
            max_busy_score: 1.0,
            in_flight_load_producer_name: INFLIGHT_PRODUCER.to_owned(),
            request_timeout: None,
        }
    }
}

impl ActiveRequestParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let (idle, busy) = (self.idle_threshold, self.max_busy_score);
        format!(
            "The fewer requests are in flight at an endpoint, the better: up to {idle} of them score 1, more at most {busy}."
        )
    }
}

impl ActiveRequestParams {
    /// Reads the parameters. As in llm-d-router, a `maxBusyScore` out of its range means 1.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        if !(0.0..=1.0).contains(&params.max_busy_score) {
            params.max_busy_score = 1.0;
        }
        or_default(&mut params.in_flight_load_producer_name, INFLIGHT_PRODUCER);
        Ok(params)
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
            // Where nothing is under way anywhere, all are equal, also below a negative threshold.
            let is_idle = *score as i64 <= self.idle_threshold || most == 0.0;
            *score = if is_idle { 1.0 } else { (most - *score) / most * self.max_busy_score };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use usher_core::endpoints::{EndpointSpec, Share, Store};
    use usher_core::request::Request;

    /// Scores of endpoints with so many requests each.
    fn scores(requests: &[u32], parameters: &str) -> Vec<f32> {
        let counters = InFlightId::new(0).unwrap();
        let store = Store::default();
        let spec = |index| EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index], 8000));
        store.replace((0..requests.len() as u8).map(spec).collect());
        let candidates = store.snapshot().all();
        let book = |(endpoint, count): (_, &u32)| {
            let endpoint: &std::sync::Arc<usher_core::endpoints::Endpoint> = endpoint;
            (0..*count).map(|_| Share::new(endpoint.load(), counters, 0)).collect::<Vec<_>>()
        };
        let _shares: Vec<_> = candidates.view().iter().zip(requests).map(book).collect();
        let params = ActiveRequestParams::decode(&Node::parse(parameters).unwrap()).unwrap();
        let scorer = ActiveRequestScorer::new(&params, counters);
        let request = Request::default();
        let mut out = vec![0.0; requests.len()];
        scorer.score(&Context::new(&request, 1, Duration::ZERO), candidates.view(), &mut out);
        out
    }

    #[test]
    fn scores_match_llm_d_router() {
        let table: [(&[u32], &str, &[f32]); 7] = [
            (&[0, 1, 4], "{}", &[1.0, 0.75, 0.0]),
            (&[3, 3], "{}", &[0.0, 0.0]),
            (&[0, 0], "{}", &[1.0, 1.0]),
            (&[0, 1, 2, 4], "{idleThreshold: 1}", &[1.0, 1.0, 0.5, 0.0]),
            (&[0, 1, 4], "{maxBusyScore: 0.5}", &[1.0, 0.375, 0.0]),
            (&[0, 1, 4], "{maxBusyScore: 1.5}", &[1.0, 0.75, 0.0]),
            (&[0, 0], "{idleThreshold: -1}", &[1.0, 1.0]),
        ];
        for (requests, parameters, expected) in table {
            assert_eq!(scores(requests, parameters), expected, "{requests:?} {parameters}");
        }
    }

    proptest! {
        #[test]
        fn scores_match_a_plain_reference_loop(
            requests in proptest::collection::vec(0u32..9, 1..8),
            idle in 0i64..4,
            busy in 0.0f64..=1.0,
        ) {
            let most = f64::from(*requests.iter().max().unwrap());
            let expected = requests.iter().map(|count| {
                if i64::from(*count) <= idle { 1.0 } else { (most - f64::from(*count)) / most * busy }
            });
            let parameters = format!("{{idleThreshold: {idle}, maxBusyScore: {busy}}}");
            for (score, expected) in scores(&requests, &parameters).iter().zip(expected) {
                prop_assert!((f64::from(*score) - expected).abs() < 1e-5, "{score} and {expected}");
            }
        }
    }
}
