//! `slo-headroom-tier-filter`: endpoints that are predicted to keep a request's latency
//! targets go before those that aren't.

use std::sync::Arc;

use rand::{Rng, RngExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::Snapshot;
use usher_plugin::data::LatencyPredictions;
use usher_plugin::params::{LATENCY_PRODUCER, in_range, or_default};
use usher_plugin::{Build, BuildContext, Context, Filter, Key, Kind, PluginParts, PluginType, beta};

/// `slo-headroom-tier-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("slo-headroom-tier-filter", &[Kind::Filter],
    "Keeps the endpoints that are predicted to keep a request's latency targets, or now and then the others; all of them where none does.",
    Build::Reading(build)).takes::<SloHeadroomTierParams>()
    .when("Configurations of llm-d-router with predicted latencies. expected-latency-scorer weighs targets without it.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = SloHeadroomTierParams::decode(cx.parameters)?;
    let predictions = cx.reads(&params.latency_prediction_info_producer_name);
    let filter = Arc::new(SloHeadroomTierFilter::new(&params, predictions));
    Ok(PluginParts { filter: Some(filter), ..PluginParts::with(&params)? })
}

/// Parameters of `slo-headroom-tier-filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SloHeadroomTierParams {
    /// Share of the requests that go to the others, so that their recovery is noticed.
    pub epsilon_explore_neg: f64,
    /// The producer of the predictions.
    pub latency_prediction_info_producer_name: String,
}

impl Default for SloHeadroomTierParams {
    fn default() -> Self {
        Self { epsilon_explore_neg: 0.01, latency_prediction_info_producer_name: LATENCY_PRODUCER.to_owned() }
    }
}

impl SloHeadroomTierParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and a probability out of range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, _) = (node.decode()?, Self::default());
        let share = |value| (0.0..=1.0).contains(&value);
        in_range(node, "epsilonExploreNeg", params.epsilon_explore_neg, default.epsilon_explore_neg, share)?;
        or_default(&mut params.latency_prediction_info_producer_name, LATENCY_PRODUCER);
        Ok(params)
    }
}

/// Keeps the endpoints with headroom to both targets where there are some, and now and then
/// the others. An endpoint without a prediction is one of the others.
#[derive(Clone, Debug)]
pub struct SloHeadroomTierFilter {
    epsilon: f64,
    predictions: Key<LatencyPredictions>,
}

impl SloHeadroomTierFilter {
    /// A filter by the predictions under this key.
    pub fn new(params: &SloHeadroomTierParams, predictions: Key<LatencyPredictions>) -> Self {
        Self { epsilon: params.epsilon_explore_neg, predictions }
    }
}

impl Filter for SloHeadroomTierFilter {
    fn filter(&self, cx: &Context<'_>, _snapshot: &Snapshot, kept: &mut Vec<u32>, rng: &mut dyn Rng) {
        let Some(known) = cx.facts.get(self.predictions) else { return };
        if kept.len() <= 1 || kept.iter().all(|position| known.at(*position).is_none()) {
            return;
        }
        let is_positive = |position: u32| {
            known
                .at(position)
                .is_some_and(|predicted| predicted.ttft_headroom >= 0.0 && predicted.tpot_headroom >= 0.0)
        };
        let positive = kept.iter().filter(|position| is_positive(**position)).count();
        if positive == 0 || positive == kept.len() {
            return;
        }
        let explores = self.epsilon > 0.0 && rng.random::<f64>() < self.epsilon;
        kept.retain(|position| is_positive(*position) != explores);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use usher_core::endpoints::Store;
    use usher_core::request::Request;
    use usher_plugin::Facts;
    use usher_plugin::data::LatencyPrediction;

    fn kept(epsilon: f64, headrooms: &[Option<(f64, f64)>], seed: u64) -> Vec<u32> {
        let params = SloHeadroomTierParams {
            epsilon_explore_neg: epsilon,
            latency_prediction_info_producer_name: String::new(),
        };
        let predicted = |(ttft_headroom, tpot_headroom): (f64, f64)| LatencyPrediction {
            ttft_headroom,
            tpot_headroom,
            ..LatencyPrediction::default()
        };
        let at = headrooms.iter().map(|headroom| headroom.map(predicted)).collect();
        let (key, mut facts) = (Key::new(0), Facts::default());
        facts.set(key, LatencyPredictions { at });
        let request = Request::default();
        let cx = Context { facts: &facts, ..Context::new(&request, 1, Duration::from_secs(1)) };
        let mut kept = (0..headrooms.len() as u32).collect();
        let mut rng = StdRng::seed_from_u64(seed);
        let snapshot = Store::default().snapshot();
        SloHeadroomTierFilter::new(&params, key).filter(&cx, &snapshot, &mut kept, &mut rng);
        kept
    }

    #[test]
    fn endpoints_with_headroom_to_both_targets_go_first() {
        let (good, late, slow) = (Some((0.1, 0.0)), Some((-0.1, 0.1)), Some((0.1, -0.1)));
        let table: [(&[Option<(f64, f64)>], &[u32]); 6] = [
            (&[good, late, good, slow, None], &[0, 2]),
            (&[late, slow], &[0, 1]),
            (&[good, good], &[0, 1]),
            (&[None, None], &[0, 1]),
            (&[late], &[0]),
            (&[Some((0.0, 0.0)), None], &[0]),
        ];
        for (headrooms, expected) in table {
            assert_eq!(kept(0.0, headrooms, 1), expected, "{headrooms:?}");
        }
        assert_eq!(kept(1.0, &[good, late, None], 1), [1, 2], "all explore");
    }

    #[test]
    fn seed_determines_which_requests_explore() {
        let headrooms = [Some((0.1, 0.1)), Some((-0.1, 0.1))];
        let explored = (0..4000).filter(|seed| kept(0.25, &headrooms, *seed) == [1]).count();
        // Six standard deviations around 1000.
        assert!(explored.abs_diff(1000) < 165, "{explored}");
    }

    #[test]
    fn without_predictions_all_are_kept() {
        let params = SloHeadroomTierParams::decode(&Node::parse("{}").unwrap()).unwrap();
        assert_eq!(params.epsilon_explore_neg, 0.01);
        let filter = SloHeadroomTierFilter::new(&params, Key::new(0));
        let request = Request::default();
        let cx = Context::new(&request, 1, Duration::from_secs(1));
        let (mut kept, snapshot) = (vec![0, 1], Store::default().snapshot());
        filter.filter(&cx, &snapshot, &mut kept, &mut StdRng::seed_from_u64(1));
        assert_eq!(kept, [0, 1]);
        let wrong = SloHeadroomTierParams::decode(&Node::parse("{epsilonExploreNeg: 1.5}").unwrap());
        assert!(wrong.unwrap_err().message().contains("epsilonExploreNeg can't be 1.5"));
    }
}
