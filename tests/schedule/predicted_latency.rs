//! llm-d-router's plugins for predicted latencies, on the model of this process.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use usher::config::Node;
use usher::endpoints::health::Verdict;
use usher::endpoints::{Clock, EndpointSpec};
use usher::flow::Routed;
use usher::metrics::render;
use usher::request::usage::Usage;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::data::{LatencyPrediction, LatencyPredictions, PrefixMatch};
use usher::schedule::latency::{Model, Reported};
use usher::schedule::{
    AffinityFamilies, Context, Facts, Filter, Key, PrefixCacheAffinityFilter,
    PrefixCacheAffinityFilterParams, Served, State,
};

use crate::pool::{Pool, asking, labelled, pipeline};
use crate::support::{self, MAX_AGE, NOW};

/// As a user of llm-d-router writes it, with all types and most parameters.
const PEERS: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: predicted-latency-producer
  parameters:
    samplingMean: 1000
    maxDecodeTokenSamplesForPrediction: 0
    sloBufferFactor: 1.0
    contextTTL: 5m
    streamingMode: true
    endpointRoleLabel: llm-d.ai/role
    predictInProduce: true
    useEncoderCacheFeatures: false
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.8, explorationProbability: 0.01, maxTTFTPenaltyMs: 5000, ttftSource: latencyPredictor}
- type: slo-headroom-tier-filter
  parameters: {epsilonExploreNeg: 0.01}
- type: latency-scorer
  parameters: {ttftWeight: 0.8, tpotWeight: 0.2, headroomSelectionStrategy: least, compositeKVWeight: 1, compositeQueueWeight: 1, compositePrefixWeight: 1}
- type: latency-slo-admitter
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: prefix-cache-affinity-filter
  - pluginRef: slo-headroom-tier-filter
  - {pluginRef: latency-scorer, weight: 1}
  - pluginRef: weighted-random-picker
";

#[test]
fn a_configuration_of_the_peer_starts_with_one_note() {
    let built = pipeline(PEERS, &State::default()).unwrap();
    let about = |note: &&String| note.contains("PREDICTION_SERVER_URL");
    assert_eq!(built.notes.iter().filter(about).count(), 1, "{:?}", built.notes);
    assert!(built.warnings.is_empty(), "{:?}", built.warnings);
    let stages = &built.resolved.stages;
    assert!(stages.producers.contains(&"predicted-latency-producer".to_owned()), "{stages:?}");
    assert_eq!(stages.admitters, ["latency-slo-admitter"]);
}

#[test]
fn readers_of_predictions_bring_their_producer() {
    for (plugin, produced) in [
        ("latency-scorer", true),
        ("slo-headroom-tier-filter", true),
        ("latency-slo-admitter", true),
        ("prefix-cache-affinity-filter, parameters: {ttftSource: latencyPredictor}", true),
        (
            "prefix-cache-affinity-filter, parameters: {ttftSource: latencyPredictor, maxTTFTPenaltyMs: 0}",
            false,
        ),
        ("prefix-cache-affinity-filter", false),
    ] {
        let built = pipeline(&format!("plugins: [{{type: {plugin}}}]\n"), &State::default()).unwrap();
        let names: Vec<&str> = built.resolved.plugins.iter().map(|plugin| plugin.name.as_str()).collect();
        assert_eq!(names.contains(&"predicted-latency-producer"), produced, "{plugin}: {names:?}");
        let notes = built.notes.iter().filter(|note| note.contains("PREDICTION_SERVER_URL")).count();
        assert_eq!(notes, usize::from(produced), "{:?}", built.notes);
    }
    let error = pipeline(
        "plugins: [{type: latency-scorer, parameters: {latencyPredictionInfoProducerName: mine}}]\n",
        &State::default(),
    );
    let message = "it reads LatencyPredictionInfo from the plugin 'mine', which is not declared";
    assert!(error.unwrap_err().message().contains(message));
}

#[test]
fn parameters_of_the_producer_are_strict() {
    for (parameters, message) in [
        ("{sloBufferFactor: 0}", "sloBufferFactor can't be 0"),
        ("{sloBufferFactor: -1}", "sloBufferFactor can't be -1"),
        ("{streaming: true}", "unknown field 'streaming'"),
        ("{predictInProduce: perhaps}", "predictInProduce"),
    ] {
        let text = format!("plugins: [{{type: predicted-latency-producer, parameters: {parameters}}}]\n");
        let error = pipeline(&text, &State::default()).expect_err(parameters);
        assert!(error.message().contains(message), "{error}");
    }
}

/// A filter by headroom and this producer, before a picker at random.
fn tiers(producer: &str) -> String {
    format!(
        "
plugins:
- {{type: predicted-latency-producer, parameters: {producer}}}
- {{type: slo-headroom-tier-filter, parameters: {{epsilonExploreNeg: 0}}}}
- {{type: latency-scorer}}
- {{type: max-score-picker}}
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: slo-headroom-tier-filter}}, {{pluginRef: latency-scorer}}, {{pluginRef: max-score-picker}}]
"
    )
}

/// Endpoints that run so many requests each.
fn running(config: &str, running: &[f64]) -> Pool {
    labelled_running(config, labelled(&vec![&[][..]; running.len()]), running)
}

fn labelled_running(config: &str, endpoints: Vec<EndpointSpec>, running: &[f64]) -> Pool {
    let pool = Pool::with_state(config, endpoints, Arc::new(State::new(Clock::stopped())));
    for (position, running) in running.iter().enumerate() {
        let (load, now) = pool.load(position);
        load.waiting.set(0.0, now);
        load.running.set(*running, now);
        load.kv_usage.set(0.5, now);
    }
    pool
}

fn with_slo(ttft: &str, tpot: &str) -> Request {
    asking(&[("x-llm-d-slo-ttft-ms", ttft), ("x-llm-d-slo-tpot-ms", tpot)])
}

// Before anything is learned the first token takes 30 ms and half a millisecond per request,
// and a step 15 ms and 0.15 ms per request.

#[test]
fn endpoints_that_would_miss_the_ttft_are_filtered() {
    let pool = running(&tiers("{}"), &[100.0, 10.0, 0.0]);
    assert_eq!(pool.kept(&with_slo("50", "1")), [1, 2], "80, 35 and 30 ms");
    assert_eq!(pool.kept(&with_slo("32", "1")), [2]);
    assert_eq!(pool.kept(&with_slo("20", "1")), [0, 1, 2], "all miss it");
    assert_eq!(pool.kept(&asking(&[("x-slo-ttft-ms", "50")])), [1, 2], "the older name");
    assert_eq!(pool.kept(&asking(&[])), [0, 1, 2], "no target, no difference");
    assert_eq!(pool.kept(&with_slo("soon", "1")), [0, 1, 2], "no number, no target");
}

#[test]
fn tpot_counts_for_streams_and_generating_endpoints() {
    let late = with_slo("1000", "30");
    let streaming = "{streamingMode: true, endpointRoleLabel: llm-d.ai/role}";
    assert_eq!(running(&tiers(streaming), &[200.0, 0.0]).kept(&late), [1], "45 and 15 ms");
    assert_eq!(running(&tiers("{}"), &[200.0, 0.0]).kept(&late), [0, 1]);
    let roles = labelled(&[&[("llm-d.ai/role", "prefill")], &[("llm-d.ai/role", "decode")]]);
    let pool = labelled_running(&tiers(streaming), roles.clone(), &[200.0, 200.0]);
    assert_eq!(pool.kept(&late), [0]);
    let pool = labelled_running(&tiers("{streamingMode: true}"), roles, &[200.0, 200.0]);
    assert_eq!(pool.kept(&late), [0, 1], "nobody says what the label is");
    let half = "{streamingMode: true, sloBufferFactor: 0.5}";
    assert_eq!(running(&tiers(half), &[20.0, 0.0]).kept(&with_slo("1000", "36")), [1], "18 and 15 ms");
}

#[test]
fn tighter_target_of_a_running_request_counts() {
    let pool = running(&tiers("{streamingMode: true}"), &[10.0, 40.0]);
    let tight = pool.route(&with_slo("1000", "18")).unwrap();
    assert_eq!(tight.decision().primary().picks.as_slice(), [0]);
    // 16.8 ms there with the second, and with another one more than what that may take.
    let loose = with_slo("1000", "100");
    let second = pool.route(&with_slo("1000", "16.9")).unwrap();
    assert_eq!(pool.kept(&loose), [1]);
    drop((tight, second));
    assert_eq!(pool.kept(&loose), [0, 1]);
}

#[test]
fn strategy_selects_among_the_good_endpoints() {
    let pick = |strategy: &str, slo: &Request| {
        let config = tiers("{streamingMode: true}").replace(
            "type: latency-scorer}",
            &format!("type: latency-scorer, parameters: {{headroomSelectionStrategy: {strategy}}}}}"),
        );
        let pool = running(&config, &[40.0, 0.0, 300.0, 80.0]);
        pool.route(slo).unwrap().decision().primary().picks[0]
    };
    // 50, 30, 180 and 70 ms; 21, 15, 60 and 27 ms.
    let slo = with_slo("100", "40");
    assert_eq!(pick("least", &slo), 3, "the nearest to the target");
    assert_eq!(pick("most", &slo), 1);
    for strategy in ["least", "most"] {
        assert_eq!(pick(strategy, &asking(&[])), 1, "without a target the soonest");
    }
}

#[test]
fn sheddable_requests_that_would_miss_targets_are_refused() {
    const CONFIG: &str = "
plugins:
- {type: predicted-latency-producer, parameters: {streamingMode: true}}
- {type: latency-slo-admitter}
- {type: random-picker}
- {name: detector, type: concurrency-detector}
saturationDetector: {pluginRef: detector}
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
";
    let of_priority = |priority: i32, headers: &[(&str, &str)]| {
        let mut request = asking(headers);
        request.priority = priority;
        request
    };
    let (ttft, tpot) = ("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms");
    let busy = running(CONFIG, &[100.0, 50.0]);
    let passes =
        |pool: &Pool, priority, headers: &[(&str, &str)]| pool.route(&of_priority(priority, headers)).is_ok();
    // 80 and 55 ms; 30 and 23 ms.
    assert!(!passes(&busy, -1, &[(ttft, "40")]));
    assert!(!passes(&busy, -1, &[(tpot, "20")]));
    assert!(!passes(&busy, -1, &[(ttft, "60"), (tpot, "20")]));
    assert!(passes(&busy, -1, &[(ttft, "60")]), "a target that isn't named can't be missed");
    assert!(passes(&busy, -1, &[(ttft, "60"), (tpot, "25")]));
    assert!(passes(&busy, 0, &[(ttft, "40")]), "it may not be shed");
    assert!(passes(&busy, -1, &[]));
    assert!(passes(&busy, -1, &[(ttft, "forty")]));
    assert!(passes(&running(CONFIG, &[100.0, 0.0]), -1, &[(ttft, "10")]), "one is idle");
    let (load, now) = busy.load(1);
    load.kv_usage.set(0.01, now);
    assert!(passes(&busy, -1, &[(ttft, "10")]), "one has just begun");
    load.kv_usage.set(0.02, now);
    let refusal = busy.route(&of_priority(-1, &[(ttft, "10")])).unwrap_err();
    assert_eq!((refusal.code.status(), refusal.reason), (429, Some("rejected-saturated")));
    let mut late = of_priority(-1, &[(ttft, "60")]);
    assert!(busy.route(&late).is_ok());
    late.received = std::time::Instant::now().checked_sub(Duration::from_millis(10));
    assert!(busy.route(&late).is_err(), "the target counts from the arrival of the request");
    let silent = CONFIG.replace("streamingMode: true", "predictInProduce: false");
    assert!(passes(&running(&silent, &[100.0]), -1, &[(ttft, "10")]), "nothing is predicted");
}

#[test]
fn requests_stick_unless_the_predicted_ttft_is_late() {
    let (prefix, predictions) = (Key::new(0), Key::new(1));
    let kept = |penalty: u32, ttft: &[Option<f64>]| {
        let text = format!("{{ttftSource: latencyPredictor, maxTTFTPenaltyMs: {penalty}}}");
        let params = PrefixCacheAffinityFilterParams::decode(&Node::parse(&text).unwrap()).unwrap();
        let registry = prometheus::Registry::new();
        let decisions = AffinityFamilies::register(&registry).unwrap().of("sticky");
        let filter = PrefixCacheAffinityFilter::new(&params, prefix, None, decisions);
        let filter = filter.predicted_by(params.reads_predictions().then_some(predictions));
        let candidates = support::pool(ttft.len(), |_, _| {});
        let mut facts = Facts::default();
        facts.set(prefix, PrefixMatch { total: 10, block_size: 64, matched: vec![10] });
        let predicted = |ttft| LatencyPrediction { ttft, ..LatencyPrediction::default() };
        let at = ttft.iter().map(|ttft| ttft.map(predicted)).collect();
        facts.set(predictions, LatencyPredictions { at });
        let (request, mut kept) = (support::request(), candidates.indices().to_vec());
        let cx = Context { facts: &facts, ..Context::new(&request, NOW, MAX_AGE) };
        filter.filter(&cx, candidates.snapshot(), &mut kept, &mut StdRng::seed_from_u64(1));
        kept
    };
    let all = [0, 1, 2];
    assert_eq!(kept(1000, &[Some(1.4), Some(0.5), Some(9.0)]), [0]);
    assert_eq!(kept(1000, &[Some(1.6), Some(0.5), Some(9.0)]), all);
    assert_eq!(kept(0, &[Some(99.0), Some(0.5), Some(9.0)]), [0]);
    assert_eq!(kept(1000, &[None, Some(0.5), None]), all, "nothing predicted is as late as can be");
    assert_eq!(kept(1000, &[Some(9.0), None, None]), [0]);
    assert_eq!(kept(1000, &[None, None, None]), [0]);
}

/// A streamed request of so many bytes of prompt.
fn stream(model: &str, bytes: usize, headers: &[(&str, &str)]) -> Request {
    let headers: Headers = [(":path", "/v1/completions")].iter().chain(headers).copied().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    let body = json!({"model": model, "prompt": "x".repeat(bytes), "stream": true});
    parser.push(body.to_string().into());
    parser.finish().unwrap()
}

#[test]
fn request_is_booked_once_for_several_plugins() {
    let config = "
plugins:
- {name: latency, type: predicted-latency-producer}
- {name: other, type: predicted-latency-producer}
- {type: expected-latency-scorer, parameters: {peakPrefillThroughput: 1000}}
- {type: latency-scorer, parameters: {latencyPredictionInfoProducerName: other}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: expected-latency-scorer}, {pluginRef: latency-scorer}]
";
    let pool = running(config, &[0.0]);
    let model = Model::of(&pool.state);
    let snapshot = pool.store.snapshot();
    let seconds = || {
        let many = Reported { running: 1000.0, ..Reported::default() };
        model.read().ttft(&snapshot.endpoints()[0], 0, &many)
    };
    let before = seconds();
    let routed = pool.route(&stream("m", 8000, &[])).unwrap();
    let more = seconds() - before;
    assert!((more - 2.0).abs() < 0.01, "2,000 tokens take 2 s: {more}");
    drop(routed);
    assert!((seconds() - before).abs() < 1e-6);
}

/// Lets a response's first token come after so many milliseconds, and the end of eleven tokens after
/// as many more.
fn respond(pool: &Pool, mut routed: Routed, first: u64, rest: u64) {
    let clock = pool.state.clock();
    let pass = |ms| clock.set(clock.elapsed() + Duration::from_millis(ms));
    routed.response_begins(&Served::Unknown, Verdict::Good, true);
    pass(first);
    routed.first_token();
    pass(rest);
    routed.response_ends(&Usage { completion_tokens: Some(11), ..Usage::default() }, 0);
}

#[test]
fn predictions_and_missed_targets_are_counted_by_model() {
    let pool = running(&tiers("{streamingMode: true}"), &[0.0]);
    let targets = [("x-llm-d-slo-ttft-ms", "100"), ("x-llm-d-slo-tpot-ms", "20")];
    for (first, rest) in [(90, 190), (110, 190), (90, 225)] {
        respond(&pool, pool.route(&stream("m", 4, &targets)).unwrap(), first, rest);
    }
    respond(&pool, pool.route(&stream("n", 4, &[])).unwrap(), 900, 900);
    let text = render(&pool.registry);
    let labels = |model: &str| {
        format!(
            r#"model_name="{model}",plugin_name="predicted-latency-producer",plugin_type="predicted-latency-producer",target_model_name="{model}""#
        )
    };
    let (m, n) = (labels("m"), labels("n"));
    for line in [
        format!("llm_d_epp_request_predicted_ttft_seconds_count{{{m}}} 3"),
        format!("llm_d_epp_request_predicted_tpot_seconds_count{{{m}}} 3"),
        format!("llm_d_epp_request_predicted_ttft_seconds_count{{{n}}} 1"),
        format!(r#"llm_d_epp_request_slo_violation_total{{{m},type="ttft"}} 1"#),
        format!(r#"llm_d_epp_request_slo_violation_total{{{m},type="tpot"}} 1"#),
        format!(r#"llm_d_epp_inference_request_metric{{{m},type="ttft"}} 0.09"#),
        format!(r#"llm_d_epp_inference_request_metric{{{m},type="tpot"}} 0.0225"#),
        format!(r#"llm_d_epp_inference_request_metric{{{m},type="tpot_slo_violation"}} 1"#),
        format!(r#"llm_d_epp_inference_request_metric{{{m},type="ttft_slo_violation"}} 0"#),
        format!(r#"llm_d_epp_inference_request_metric{{{n},type="ttft"}} 0.9"#),
        r#"inference_objective_request_slo_violation_total{model_name="m",target_model_name="m",type="ttft"} 1"#
            .to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains(&format!("request_slo_violation_total{{{n}")), "no target, nothing missed");
}

#[test]
fn invalid_targets_are_counted_once_per_request() {
    let config = "
plugins: [{type: predicted-latency-producer}, {type: expected-latency-scorer}, {type: latency-scorer}]
";
    let pool = running(config, &[0.0, 0.0]);
    for (ttft, tpot) in [("soon", "20"), ("-5", "fast"), ("100", "20")] {
        assert!(pool.route(&with_slo(ttft, tpot)).is_ok());
    }
    let text = render(&pool.registry);
    for (header, count) in [("x-llm-d-slo-ttft-ms", 2), ("x-llm-d-slo-tpot-ms", 1)] {
        let line = format!(r#"usher_slo_headers_ignored_total{{header="{header}"}} {count}"#);
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn invented_models_lose_their_series() {
    let pool = running(&tiers("{}"), &[0.0]);
    for number in 0..1200 {
        assert!(pool.route(&stream(&format!("m{number}"), 4, &[])).is_ok());
    }
    let text = render(&pool.registry);
    let series =
        text.lines().filter(|line| line.starts_with("llm_d_epp_request_predicted_ttft_seconds_count"));
    assert_eq!(series.count(), 1001);
}
