//! Parameters of filters, detectors, pickers and handlers: defaults, and what is refused.

use serde_json::json;
use usher::schedule::State;

use crate::pool::pipeline;

fn config(plugin_type: &str, parameters: &str) -> String {
    format!("plugins:\n- {{type: {plugin_type}, parameters: {parameters}}}\n")
}

#[test]
fn defaults_match_llm_d_router() {
    let selector = json!({"matchLabels": {}, "matchExpressions": []});
    let stages = json!({"encodeProfile": "encode"});
    let table = [
        ("decode-filter", "{any: [thing]}", json!({})),
        ("prefill-filter", "{}", json!({})),
        ("encode-filter", "{}", json!({})),
        ("label-selector-filter", "{}", selector.clone()),
        ("label-selector-filter", "~", selector.clone()),
        ("by-label-selector", "{}", selector),
        ("by-label", "{label: a}", json!({"label": "a", "validValues": [], "allowsNoLabel": false})),
        (
            "utilization-filter",
            "{conditions: [{metric: kv-cache-utilization, maxValue: 1}]}",
            json!({
                "conditions": [{"metric": "kv-cache-utilization", "maxValue": 1.0}],
                "fallbackOnEmpty": false,
                "inFlightLoadProducerName": "inflight-load-producer",
            }),
        ),
        ("header-based-testing-filter", "{}", json!({})),
        (
            "utilization-detector",
            "{}",
            json!({
                "queueDepthThreshold": 5.0,
                "kvCacheUtilThreshold": 0.8,
                "metricsStalenessThreshold": "200ms",
                "headroom": 0.0,
            }),
        ),
        (
            "concurrency-detector",
            "{inFlightLoadProducerName: ''}",
            json!({
                "maxConcurrency": 100,
                "concurrencyMode": "requests",
                "maxTokenConcurrency": 1_000_000,
                "headroom": 0.0,
                "inFlightLoadProducerName": "inflight-load-producer",
            }),
        ),
        ("weighted-random-picker", "{}", json!({"maxNumOfEndpoints": 1})),
        ("data-parallel-profile-handler", "{}", json!({"primaryPort": 8000})),
        ("header-profile-handler", "{}", json!({"headerName": "epp-profile", "defaultProfile": "decode"})),
        ("disagg-headers-handler", "{}", stages.clone()),
        ("prefill-header-handler", "{}", stages),
        ("destination-endpoint-served-verifier", "{}", json!({})),
    ];
    for (plugin_type, parameters, expected) in table {
        let built = pipeline(&config(plugin_type, parameters), &State::default()).unwrap();
        assert_eq!(built.resolved.plugins[0].parameters, expected, "{plugin_type}");
    }
}

#[test]
fn configured_parameters_take_effect() {
    let expression = json!({"key": "example.com/tier", "operator": "NotIn", "values": ["iron", ""]});
    let table = [
        (
            "label-selector-filter",
            "{matchLabels: {a: b}, matchExpressions: [{key: example.com/tier, operator: NotIn, values: [iron, '']}]}",
            json!({"matchLabels": {"a": "b"}, "matchExpressions": [expression]}),
        ),
        (
            "concurrency-detector",
            "{maxConcurrency: 7, concurrencyMode: hybrid, maxTokenConcurrency: 9.0, headroom: 0.5, inFlightLoadProducerName: mine}",
            json!({
                "maxConcurrency": 7,
                "concurrencyMode": "hybrid",
                "maxTokenConcurrency": 9,
                "headroom": 0.5,
                "inFlightLoadProducerName": "mine",
            }),
        ),
        (
            "header-profile-handler",
            "{headerName: X-P, defaultProfile: ''}",
            json!({"headerName": "x-p", "defaultProfile": "decode"}),
        ),
        (
            "disagg-headers-handler",
            "{prefillProfile: p}",
            json!({"prefillProfile": "p", "encodeProfile": "encode"}),
        ),
    ];
    for (plugin_type, parameters, expected) in table {
        let text = config(plugin_type, parameters) + "- {name: mine, type: inflight-load-producer}\n";
        let built = pipeline(&text, &State::default()).unwrap();
        assert_eq!(built.resolved.plugins[0].parameters, expected, "{plugin_type}");
    }
}

#[test]
fn invalid_parameters_are_refused_with_position() {
    let selector = "label-selector-filter";
    // type, parameters, where the error is, message, hint
    let table = [
        (selector, "{matchLabel: {a: b}}", "matchLabel", "unknown field 'matchLabel'", "`matchLabels`"),
        (selector, "{matchLabels: [a]}", "[a]", "matchLabels: expected a map, found a list", ""),
        (selector, "{matchLabels: {a: 1}}", "1", "a: expected text, found 1", "quotes"),
        (selector, "{matchLabels: {-a: b}}", "-a", "'-a' can't be a label's key", "63 letters"),
        (selector, "{matchLabels: {A.b/c: b}}", "A.b", "'A.b/c' can't be a label's key", "domain"),
        (selector, "{matchLabels: {a: b c}}", "b c", "'b c' can't be a label's value", "63 letters"),
        (selector, "{matchExpressions: [{operator: Exists}]}", "{operator", "'key' is missing", ""),
        (selector, "{matchExpressions: [{key: a}]}", "{key", "'operator' is missing", ""),
        (
            selector,
            "{matchExpressions: [{key: '', operator: Exists}]}",
            "''",
            "'' can't be a label's key",
            "",
        ),
        (
            selector,
            "{matchExpressions: [{key: a, operator: Gt, values: ['1']}]}",
            "Gt",
            "operator: unknown value 'Gt'",
            "known here: In, NotIn, Exists, DoesNotExist",
        ),
        (selector, "{matchExpressions: [{key: a, operator: exists}]}", "exists", "'exists'", "`Exists`"),
        (
            selector,
            "{matchExpressions: [{key: a, operator: In}]}",
            "In",
            "the operator In needs values",
            "Exists",
        ),
        (
            selector,
            "{matchExpressions: [{key: a, operator: NotIn, values: []}]}",
            "NotIn",
            "the operator NotIn needs values",
            "",
        ),
        (
            selector,
            "{matchExpressions: [{key: a, operator: DoesNotExist, values: [b]}]}",
            "b]",
            "the operator DoesNotExist takes no values",
            "In",
        ),
        (
            selector,
            "{matchExpressions: [{key: a, operator: In, values: [b, '*']}]}",
            "'*'",
            "'*' can't be a label's value",
            "",
        ),
        (
            selector,
            "{matchExpressions: [{key: a, operator: Exists, value: b}]}",
            "value:",
            "unknown field",
            "`values`",
        ),
        ("by-label-selector", "{labels: {}}", "labels", "unknown field 'labels'", ""),
        ("by-label", "{}", "{}", "'label' is missing", ""),
        ("by-label", "{label: ''}", "''", "'label' is empty", "name a label"),
        ("by-label", "{label: a, validValue: [b]}", "validValue", "unknown field", "`validValues`"),
        ("by-label", "{label: a, validValues: b}", "b}", "validValues: expected a list, found 'b'", ""),
        ("utilization-filter", "{}", "{}", "conditions is empty", "write for example"),
        ("utilization-filter", "{conditions: []}", "[]", "conditions is empty", ""),
        (
            "utilization-filter",
            "{conditions: [{metric: queue, maxValue: 1}]}",
            "queue",
            "metric: unknown value 'queue'",
            "did you mean `waiting-queue`?",
        ),
        (
            "utilization-filter",
            "{conditions: [{metric: waiting-queue}]}",
            "{metric",
            "'maxValue' is missing",
            "",
        ),
        ("utilization-filter", "{conditions: [{maxValue: 1}]}", "{maxValue", "'metric' is missing", ""),
        (
            "utilization-filter",
            "{conditions: [{metric: waiting-queue, maxValue: -1}]}",
            "-1",
            "maxValue can't be -1",
            "",
        ),
        (
            "utilization-filter",
            "{conditions: [{metric: waiting-queue, maxValue: .nan}]}",
            ".nan",
            "maxValue can't be NaN",
            "",
        ),
        ("utilization-filter", "{condition: []}", "condition", "unknown field", "`conditions`"),
        (
            "header-based-testing-filter",
            "{header: x}",
            "header",
            "unknown field 'header'",
            "nothing can be set",
        ),
        ("utilization-detector", "{queueDepthThreshold: 0}", "0", "queueDepthThreshold can't be 0", "5"),
        ("utilization-detector", "{kvCacheUtilThreshold: 0}", "0", "kvCacheUtilThreshold can't be 0", "0.8"),
        ("utilization-detector", "{headroom: -0.1}", "-0.1", "headroom can't be -0.1", ""),
        ("utilization-detector", "{metricsStalenessThreshold: -1s}", "-1s", "is not a duration", ""),
        (
            "concurrency-detector",
            "{concurrencyMode: bananas}",
            "bananas",
            "concurrencyMode 'bananas' is not known",
            "known here: requests, tokens, hybrid",
        ),
        ("concurrency-detector", "{concurrencyMode: request}", "request", "is not known", "`requests`"),
        ("concurrency-detector", "{maxConcurrency: 0}", "0", "maxConcurrency can't be 0", "100"),
        (
            "concurrency-detector",
            "{maxTokenConcurrency: -5}",
            "-5",
            "maxTokenConcurrency can't be -5",
            "1000000",
        ),
        ("concurrency-detector", "{maxConcurrency: 1.5}", "1.5", "expected a whole number", ""),
        ("concurrency-detector", "{headroom: -1}", "-1", "headroom can't be -1", ""),
        ("concurrency-detector", "{maxTokens: 1}", "maxTokens", "unknown field 'maxTokens'", ""),
        ("weighted-random-picker", "{maxNumOfEndpoint: 1}", "maxNum", "unknown field", "`maxNumOfEndpoints`"),
        ("data-parallel-profile-handler", "{primaryPort: 0}", "0", "primaryPort can't be 0", "1 to 65535"),
        ("data-parallel-profile-handler", "{primaryPort: 65536}", "65536", "primaryPort can't be 65536", ""),
        ("data-parallel-profile-handler", "{port: 1}", "port", "unknown field 'port'", ""),
        ("header-profile-handler", "{header: x}", "header", "unknown field 'header'", ""),
        ("disagg-headers-handler", "{profile: x}", "profile", "unknown field 'profile'", ""),
        ("prefill-header-handler", "{prefilProfile: x}", "prefil", "unknown field", "`prefillProfile`"),
        ("destination-endpoint-served-verifier", "{x: 1}", "x", "unknown field 'x'", "nothing can be set"),
    ];
    for (plugin_type, parameters, at, message, hint) in table {
        let text = config(plugin_type, parameters);
        let error = pipeline(&text, &State::default()).expect_err(&text);
        let line = text.lines().nth(1).unwrap();
        let start = line.find(parameters).unwrap();
        let column = start + parameters.find(at).unwrap() + 1;
        let place = error.position().map(|place| (place.line, place.column as usize));
        assert_eq!(place, Some((2, column)), "{text}{error}");
        assert!(error.message().contains(message), "{text}{error}");
        assert!(error.hint_text().unwrap_or_default().contains(hint), "{text}{error}");
        assert_eq!(error.plugin(), Some(plugin_type), "{error}");
    }
}

#[test]
fn missing_in_flight_producer_is_refused() {
    for (plugin_type, parameters) in [
        ("concurrency-detector", "{inFlightLoadProducerName: mine}"),
        (
            "utilization-filter",
            "{inFlightLoadProducerName: mine, conditions: [{metric: active-requests, maxValue: 1}]}",
        ),
    ] {
        let error = pipeline(&config(plugin_type, parameters), &State::default()).unwrap_err();
        assert!(error.message().contains("from the plugin 'mine', which is not declared"), "{error}");
    }
}
