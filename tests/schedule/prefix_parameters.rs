//! Parameters of the plugins around prefix caches: defaults, and what is refused.

use serde_json::{Value, json};
use usher::schedule::State;

use crate::pool::pipeline;

const PRODUCER: &str = "approx-prefix-cache-producer";

fn config(plugin_type: &str, parameters: &str) -> String {
    format!("plugins:\n- {{type: {plugin_type}, parameters: {parameters}}}\n")
}

/// The parameters of a configuration's first plugin, as they count.
fn counting(text: &str) -> Value {
    pipeline(text, &State::default()).unwrap().resolved.plugins[0].parameters.clone()
}

#[test]
fn defaults_match_llm_d_router() {
    let index = json!({
        "autoTune": true,
        "blockSizeTokens": 16,
        "maxPrefixTokensToMatch": 131_072,
        "maxPrefixBlocksToMatch": 2048,
        "lruCapacityPerServer": 31_250,
    });
    let scorer = json!({
        "prefixMatchInfoProducerName": PRODUCER,
        "matchLengthWeight": 0.0,
        "matchLengthScaleTokens": 8192,
    });
    let filter = json!({
        "affinityThreshold": 0.8,
        "explorationProbability": 0.0,
        "maxTTFTPenaltyMs": 18_000.0,
        "ttftSource": "prefillThroughput",
        "peakPrefillThroughput": 15_928.0,
        "prefixMatchInfoProducerName": PRODUCER,
        "inFlightLoadProducerName": "inflight-load-producer",
        "latencyPredictionInfoProducerName": "predicted-latency-producer",
    });
    let cold = json!({"lruSize": 1024, "prefixMatchInfoProducerName": PRODUCER});
    let table = [
        (PRODUCER, "{}", index.clone()),
        ("multicluster-approx-prefix-cache-producer", "{lruCapacityPerServer: -1}", index),
        ("prefix-cache-scorer", "{prefixMatchInfoProducerName: ''}", scorer.clone()),
        ("multicluster-prefix-cache-scorer", "~", scorer),
        (
            "p2p-source-producer",
            "{prefillProfileName: ''}",
            json!({
                "prefixMatchInfoProducerName": PRODUCER,
                "minCachedTokenDelta": 1,
            }),
        ),
        (
            "burst-prefix-cache-producer",
            "{balanceBy: ''}",
            json!({
                "windowDurationMs": 100,
                "maxPerReplica": -1,
                "blockSizeTokens": 64,
                "maxPrefixTokensToMatch": 0,
                "minColocateBlocks": 0,
                "maxBatchSize": 1000,
                "balanceBy": "requests",
            }),
        ),
        ("no-hit-lru-scorer", "{prefixPluginType: x, prefixPluginName: old}", cold),
        ("prefix-cache-affinity-filter", "{ttftSource: '', inFlightLoadProducerName: ''}", filter),
    ];
    for (plugin_type, parameters, expected) in table {
        assert_eq!(counting(&config(plugin_type, parameters)), expected, "{plugin_type}");
    }
}

#[test]
fn invalid_parameters_are_refused_with_position() {
    let (scorer, filter) = ("prefix-cache-scorer", "prefix-cache-affinity-filter");
    let burst = "burst-prefix-cache-producer";
    // type, parameters, where the error is, message, hint
    let table = [
        (scorer, "{matchLengthWeight: 1.5}", "1.5", "matchLengthWeight can't be 1.5", "0"),
        (scorer, "{matchLengthWeight: -0.1}", "-0.1", "matchLengthWeight can't be -0.1", ""),
        (scorer, "{matchLengthWeight: .nan}", ".nan", "matchLengthWeight can't be NaN", ""),
        (
            scorer,
            "{matchLengthScaleTokens: 0, matchLengthWeight: 1}",
            "0,",
            "matchLengthScaleTokens can't be 0 where matchLengthWeight is above 0",
            "8192 tokens",
        ),
        (scorer, "{matchLengthScaleTokens: 1.5}", "1.5", "expected a whole number", ""),
        (scorer, "{matchLenWeight: 1}", "matchLenWeight", "unknown field", "`matchLengthWeight`"),
        (
            burst,
            "{windowDurationMs: 0}",
            "0",
            "windowDurationMs can't be 0",
            "1 to 10000; the default is 100",
        ),
        (burst, "{windowDurationMs: 10001}", "10001", "windowDurationMs can't be 10001", ""),
        (burst, "{blockSizeTokens: 0}", "0", "blockSizeTokens can't be 0", "1 or more; the default is 64"),
        (burst, "{maxPrefixTokensToMatch: -1}", "-1", "maxPrefixTokensToMatch can't be -1", "0 or more"),
        (burst, "{minColocateBlocks: -1}", "-1", "minColocateBlocks can't be -1", "0 or more"),
        (burst, "{maxBatchSize: 0}", "0", "maxBatchSize can't be 0", "the default is 1000"),
        (burst, "{balanceBy: token}", "token", "balanceBy 'token' is not known", "`tokens`"),
        (burst, "{windowMs: 5}", "windowMs", "unknown field 'windowMs'", ""),
        ("p2p-source-producer", "{minCachedTokenDelta: 0}", "0", "minCachedTokenDelta can't be 0", "1"),
        ("p2p-source-producer", "{prefillProfile: p}", "prefillP", "unknown field", "`prefillProfileName`"),
        ("no-hit-lru-scorer", "{lruSize: 0}", "0", "lruSize can't be 0", "1024"),
        ("no-hit-lru-scorer", "{lruSize: -5}", "-5", "lruSize can't be -5", ""),
        ("no-hit-lru-scorer", "{lrusize: 5}", "lrusize", "unknown field", "`lruSize`"),
        (filter, "{affinityThreshold: 80}", "80", "affinityThreshold can't be 80", "0.8"),
        (filter, "{explorationProbability: 2}", "2", "explorationProbability can't be 2", "0"),
        (filter, "{explorationProbability: -1}", "-1", "explorationProbability can't be -1", ""),
        (filter, "{peakPrefillThroughput: 0}", "0", "peakPrefillThroughput can't be 0", "15928"),
        (filter, "{maxTTFTPenaltyMs: .inf}", ".inf", "maxTTFTPenaltyMs can't be inf", "18000"),
        (filter, "{maxTtftPenaltyMs: 1}", "maxTtft", "unknown field", "`maxTTFTPenaltyMs`"),
        (filter, "{ttftSource: prefilThroughput}", "prefil", "is not known", "`prefillThroughput`"),
        (filter, "{ttftSource: latencyPrediction}", "latencyP", "is not known", "`latencyPredictor`"),
    ];
    for (plugin_type, parameters, at, message, hint) in table {
        let text = config(plugin_type, parameters);
        let error = pipeline(&text, &State::default()).expect_err(&text);
        let column =
            text.lines().nth(1).unwrap().find(parameters).unwrap() + parameters.find(at).unwrap() + 1;
        let place = error.position().map(|place| (place.line, place.column as usize));
        assert_eq!(place, Some((2, column)), "{text}{error}");
        assert!(error.message().contains(message), "{text}{error}");
        assert!(error.hint_text().unwrap_or_default().contains(hint), "{text}{error}");
        assert_eq!(error.plugin(), Some(plugin_type), "{error}");
    }
}

#[test]
fn a_producer_of_another_name_has_to_be_declared() {
    let declared = format!("- {{name: mine, type: {PRODUCER}}}\n");
    for plugin_type in ["prefix-cache-scorer", "no-hit-lru-scorer", "prefix-cache-affinity-filter"] {
        let text = config(plugin_type, "{prefixMatchInfoProducerName: mine}");
        let error = pipeline(&text, &State::default()).unwrap_err();
        let message = "it reads PrefixCacheMatchInfo from the plugin 'mine', which is not declared";
        assert!(error.message().contains(message), "{error}");
        let built = pipeline(&(text + &declared), &State::default()).unwrap();
        let names: Vec<&str> = built.resolved.plugins.iter().map(|plugin| plugin.name.as_str()).collect();
        assert!(names.contains(&"mine") && !names.contains(&PRODUCER), "{names:?}");
    }
}

#[test]
fn decisions_by_tokens_book_atomically() {
    let filter = "prefix-cache-affinity-filter";
    for (parameters, books) in
        [("{}", true), ("{maxTTFTPenaltyMs: 0}", false), ("{affinityThreshold: 0}", false)]
    {
        let built = pipeline(&config(filter, parameters), &State::default()).unwrap();
        assert_eq!(built.stages.books(), books, "{parameters}");
    }
}
