//! `latency-scorer`: the headroom of predicted latencies to a request's targets.

mod composite;
mod headroom;
mod params;

use std::sync::Arc;

use smallvec::SmallVec;
use usher_core::config::ConfigError;
use usher_core::endpoints::View;
use usher_plugin::data::{LatencyPrediction, LatencyPredictions, PrefixMatch};
use usher_plugin::{Build, BuildContext, Context, Key, Kind, PluginParts, PluginType, Scorer, beta};

pub use params::{LatencyScorerParams, Strategy};

/// `latency-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("latency-scorer", &[Kind::Scorer],
    "Scores by headroom, the latency target less what is predicted: endpoints that keep both targets go first, by the strategy; without targets, the soonest.",
    Build::Reading(build)).takes::<LatencyScorerParams>()
    .when("Configurations of llm-d-router with predicted latencies. expected-latency-scorer needs no weights, and also minds what a request costs others.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = LatencyScorerParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    let predictions = cx.reads(&params.latency_prediction_info_producer_name);
    let prefix = cx.reads(&params.prefix_match_info_producer_name);
    Ok(PluginParts { scorer: Some(Arc::new(LatencyScorer::new(params, predictions, prefix))), ..parts })
}

/// Scores by headroom. Where some endpoint keeps both targets, or has no prediction, only
/// those score; else idle endpoints; else those that miss the least: the time per output token
/// alone, the time to the first token alone, or both. Without any prediction, KV cache use,
/// queues and cached prefixes decide.
#[derive(Clone, Debug)]
pub struct LatencyScorer {
    params: LatencyScorerParams,
    predictions: Key<LatencyPredictions>,
    prefix: Key<PrefixMatch>,
}

/// Ways to miss targets, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Positive,
    Idle,
    SlowTokens,
    LateFirst,
    Both,
}

impl Tier {
    fn of(predicted: Option<&LatencyPrediction>) -> Self {
        let Some(predicted) = predicted else { return Self::Positive };
        let (late, slow) = (predicted.ttft_headroom < 0.0, predicted.tpot_headroom < 0.0);
        match (late, slow) {
            (false, false) => Self::Positive,
            _ if predicted.dispatched == 0 => Self::Idle,
            (false, true) => Self::SlowTokens,
            (true, false) => Self::LateFirst,
            (true, true) => Self::Both,
        }
    }
}

impl LatencyScorer {
    /// A scorer by the predictions, and where there are none by the match of prefixes.
    pub fn new(
        params: LatencyScorerParams,
        predictions: Key<LatencyPredictions>,
        prefix: Key<PrefixMatch>,
    ) -> Self {
        Self { params, predictions, prefix }
    }
}

impl Scorer for LatencyScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let known = cx.facts.get(self.predictions);
        let at = |position: u32| known.and_then(|known| known.at(position));
        let positions = || candidates.indices().iter().copied();
        if positions().all(|position| at(position).is_none()) {
            composite::score(&self.params, cx, candidates, cx.facts.get(self.prefix), out);
            return;
        }
        let Some(best) = positions().map(|position| Tier::of(at(position))).min() else { return };
        let strategy = if best == Tier::Positive { self.params.strategy } else { Strategy::Least };
        let in_tier: SmallVec<[(usize, [f64; 2]); 64]> = (0..)
            .zip(positions())
            .filter(|(_, position)| Tier::of(at(*position)) == best)
            .map(|(place, position)| {
                let headroom = |predicted: &LatencyPrediction| {
                    [predicted.ttft_headroom.abs(), predicted.tpot_headroom.abs()]
                };
                (place, at(position).map(headroom).unwrap_or_default())
            })
            .collect();
        headroom::score(&self.params, strategy, &in_tier, out);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use usher_core::config::Node;
    use usher_core::endpoints::{EndpointSpec, Store};
    use usher_core::request::Request;
    use usher_plugin::Facts;

    const NOW: u64 = 1000;

    /// Scores of endpoints with these predictions: headrooms in milliseconds, and requests
    /// in flight.
    fn scores(params: &str, predictions: &[Option<(f64, f64, u64)>]) -> Vec<f32> {
        let predicted = |(ttft, tpot, dispatched)| LatencyPrediction {
            ttft_headroom: ttft / 1000.0,
            tpot_headroom: tpot / 1000.0,
            dispatched,
            ..LatencyPrediction::default()
        };
        let at = predictions.iter().map(|prediction| prediction.map(predicted)).collect();
        let mut facts = Facts::default();
        facts.set(Key::new(0), LatencyPredictions { at });
        scores_with(params, &facts, &vec![None; predictions.len()])
    }

    /// Scores by these facts, of endpoints with a queue and KV cache use.
    fn scores_with(params: &str, facts: &Facts, loads: &[Option<(f64, f64)>]) -> Vec<f32> {
        let params = LatencyScorerParams::decode(&Node::parse(params).unwrap()).unwrap();
        let store = Store::default();
        let spec = |n: usize| EndpointSpec::new(format!("pod-{n}"), ([10, 0, 0, n as u8 + 1], 80));
        store.replace((0..loads.len()).map(spec).collect());
        let candidates = store.snapshot().all();
        for (endpoint, load) in candidates.view().iter().zip(loads) {
            if let Some((waiting, kv)) = load {
                endpoint.load().waiting.set(*waiting, NOW);
                endpoint.load().kv_usage.set(*kv, NOW);
            }
        }
        let request = Request::default();
        let cx = Context { facts, ..Context::new(&request, NOW, Duration::from_secs(1)) };
        let mut out = vec![0.0; loads.len()];
        LatencyScorer::new(params, Key::new(0), Key::new(1)).score(&cx, candidates.view(), &mut out);
        out
    }

    #[track_caller]
    fn assert_scores(params: &str, predictions: &[Option<(f64, f64, u64)>], expected: &[f32]) {
        let got = scores(params, predictions);
        let near = got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6);
        assert!(near && got.len() == expected.len(), "{params} {predictions:?}: {got:?}");
    }

    #[test]
    fn strategy_orders_positive_headroom() {
        // Both are 0, 0.5 and 1 of their ranges.
        let three = [Some((100.0, 10.0, 1)), Some((200.0, 20.0, 1)), Some((300.0, 30.0, 1))];
        assert_scores("{}", &three, &[1.01, 0.51, 0.01]);
        assert_scores("{headroomSelectionStrategy: most}", &three, &[0.01, 0.51, 1.01]);
        // The time to the first token counts four times as much.
        let crossed = [Some((100.0, 30.0, 1)), Some((300.0, 10.0, 1))];
        assert_scores("{}", &crossed, &[0.81, 0.21]);
        assert_scores("{ttftWeight: 0.2, tpotWeight: 0.8}", &crossed, &[0.21, 0.81]);
        assert_scores("{ttftWeight: 0, tpotWeight: 0}", &crossed, &[1.01, 0.01]);
    }

    #[test]
    fn equal_predictions_do_not_affect_scores() {
        let first = [Some((100.0, 5.0, 1)), Some((200.0, 5.0, 1))];
        assert_scores("{}", &first, &[1.01, 0.01]);
        assert_scores("{}", &[Some((7.0, 5.0, 1)); 3], &[0.51; 3]);
        assert_scores("{}", &[Some((7.0, 5.0, 1)), None], &[0.01, 1.01]);
    }

    #[test]
    fn only_the_best_tier_scores() {
        let (good, idle) = (Some((10.0, 1.0, 3)), Some((-500.0, -50.0, 0)));
        let (slow, late, both) = (Some((10.0, -5.0, 2)), Some((-10.0, 0.0, 2)), Some((-1.0, -1.0, 2)));
        assert_scores("{}", &[good, idle, slow], &[0.51, 0.0, 0.0]);
        assert_scores("{headroomSelectionStrategy: most}", &[idle, slow, late, both], &[0.51, 0.0, 0.0, 0.0]);
        assert_scores("{}", &[both, late, slow], &[0.0, 0.0, 0.51]);
        assert_scores("{}", &[both, late], &[0.0, 0.51]);
        assert_scores("{}", &[both, Some((-3.0, -1.0, 2))], &[1.01, 0.01]);
    }

    #[test]
    fn without_a_target_the_earliest_first_token_scores_most() {
        // A target of 0 is missed by as much as the prediction is long.
        let late = |ttft: f64| Some((-ttft, 0.0, 4));
        let all = [late(300.0), late(100.0), late(200.0)];
        assert_scores("{headroomSelectionStrategy: most}", &all, &[0.01, 1.01, 0.51]);
    }

    #[test]
    fn without_predictions_kv_cache_queue_and_prefix_count() {
        let mut facts = Facts::default();
        facts.set(Key::new(1), PrefixMatch { total: 10, block_size: 64, matched: vec![5, 0] });
        let loads = [Some((0.0, 0.5)), Some((4.0, 0.25))];
        // A third each of 0.5, 1 and 0.5, and of 0.75, 0 and 0.
        assert_eq!(scores_with("{}", &facts, &loads), [0.67, 0.25]);
        let kv_alone = "{compositeKVWeight: 0, compositeQueueWeight: 0, compositePrefixWeight: 0}";
        assert_eq!(scores_with(kv_alone, &facts, &loads), [0.5, 0.75]);
        let queue = "{compositeKVWeight: 0, compositePrefixWeight: 0, compositeQueueWeight: 5}";
        assert_eq!(scores_with(queue, &facts, &loads), [1.0, 0.0]);
        assert_eq!(scores_with(queue, Facts::NONE, &[Some((0.0, 0.1)); 2]), [1.0; 2]);
        assert_eq!(scores_with(queue, Facts::NONE, &[Some((3.0, 0.1)), None]), [0.0; 2], "as the worst");
    }

    #[test]
    fn parameters_are_checked() {
        let decode = |text: &str| LatencyScorerParams::decode(&Node::parse(text).unwrap());
        let params = decode("{}").unwrap();
        assert_eq!((params.ttft_weight, params.tpot_weight, params.strategy), (0.8, 0.2, Strategy::Least));
        for (text, message) in [
            ("{headroomSelectionStrategy: some}", "headroomSelectionStrategy 'some' is not known"),
            ("{ttftWeight: .nan}", "ttftWeight can't be NaN"),
            ("{compositeKvWeight: 1}", "unknown field 'compositeKvWeight'"),
        ] {
            let error = decode(text).expect_err(text);
            assert!(error.message().contains(message), "{error}");
        }
    }
}
