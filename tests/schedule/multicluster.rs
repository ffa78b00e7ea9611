//! Plugins for pools whose endpoints are clusters.

use std::sync::Arc;

use usher::endpoints::health::Verdict;
use usher::schedule::{Served, State};

use crate::pool::{Pool, asking, at, pipeline};

const EXTRACTOR: &str = "- {type: core-metrics-extractor, parameters: {engineConfigs: [{name: vllm, customMetrics: [{attributeKey: llm-d.ai/multicluster-queue-size, metricSpec: llm_d_epp_average_queue_size}, {attributeKey: llm-d.ai/multicluster-kv-cache-utilization, metricSpec: llm_d_epp_average_kv_cache_utilization}]}]}}\n";

fn config(scorer: &str) -> String {
    format!("plugins:\n- {{type: {scorer}}}\n{EXTRACTOR}")
}

#[test]
fn clusters_are_scored_as_pods_are() {
    let queues = [Some(2.0), Some(10.0), None, Some(4.0), Some(10.0)];
    let shares = [Some(0.25), Some(0.0), None, Some(1.0), Some(1.5)];
    let table = [
        ("multicluster-queue-scorer", "llm-d.ai/multicluster-queue-size", queues, [1.0, 0.0, 0.0, 0.75, 0.0]),
        (
            "multicluster-kv-cache-utilization-scorer",
            "llm-d.ai/multicluster-kv-cache-utilization",
            shares,
            [0.75, 1.0, 0.0, 0.0, 0.0],
        ),
        ("multicluster-queue-scorer", "llm-d.ai/multicluster-queue-size", [Some(3.5); 5], [1.0; 5]),
        ("multicluster-queue-scorer", "llm-d.ai/multicluster-queue-size", [None; 5], [0.0; 5]),
    ];
    for (scorer, attribute, values, expected) in table {
        let state = Arc::new(State::default());
        let addresses = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80", "10.0.0.5:80"];
        let pool = Pool::with_state(&config(scorer), at(&addresses), Arc::clone(&state));
        let id = state.attribute("core-metrics-extractor", attribute).unwrap().id();
        for (position, value) in values.into_iter().enumerate() {
            let (load, now) = pool.load(position);
            if let Some(value) = value {
                load.attribute(id).set(value, now);
            }
        }
        let scores = pool.route(&asking(&[])).unwrap().take_scores().unwrap();
        let scores: Vec<f64> = scores.into_iter().map(|(_, score)| score).collect();
        assert_eq!(scores, expected, "{scorer} {values:?}");
    }
}

#[test]
fn multicluster_scorer_needs_its_attribute_source() {
    let error = pipeline("plugins: [{type: multicluster-queue-scorer}]\n", &State::default()).unwrap_err();
    let message = "plugin 'multicluster-queue-scorer': it reads the attribute 'llm-d.ai/multicluster-queue-size' of the plugin 'core-metrics-extractor', which doesn't have it";
    assert_eq!(error.message(), message);
    let text = config("multicluster-queue-scorer, parameters: {threshold: 1}");
    let error = pipeline(&text, &State::default()).unwrap_err();
    assert!(error.message().contains("unknown field 'threshold'"), "{error}");
}

#[test]
fn a_session_stays_in_its_cluster() {
    let text = "plugins: [{type: multicluster-session-affinity-filter}]\n";
    let pool = Pool::new(text, at(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]));
    let mut routed = pool.route(&asking(&[])).unwrap();
    let first = routed.decision().primary_endpoint().id().clone();
    let headers = routed.response_begins(&Served::Unknown, Verdict::Good, false);
    let token = std::str::from_utf8(&headers[0].value).unwrap();
    for _ in 0..10 {
        let again = pool.route(&asking(&[("x-session-token", token)])).unwrap();
        assert_eq!(*again.decision().primary_endpoint().id(), first);
    }
    assert_eq!(pool.kept(&asking(&[("x-session-token", "bm9ib2R5")])).len(), 3, "nobody's session");
}
