//! Configurations that are refused, each with the place, the words and the hint.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the exception for tests does not reach their helpers"
)]

use prometheus::Registry;
use proptest::prelude::*;
use usher::config::{ConfigError, EndpointPickerConfig};
use usher::schedule::registry::{Pipeline, PluginType};
use usher::schedule::{SchedulerMetrics, State};

fn build(text: &str) -> Result<Pipeline, ConfigError> {
    build_all(text, false)
}

fn build_all(text: &str, experimental: bool) -> Result<Pipeline, ConfigError> {
    let config = EndpointPickerConfig::parse(text)?;
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    Pipeline::build(Some(&config), experimental, &metrics, &State::default())
}

/// A configuration with one plugin.
fn with_parameters(plugin_type: &str, parameters: &str) -> String {
    format!("plugins:\n- {{type: {plugin_type}, parameters: {parameters}}}\n")
}

/// Asserts the place of an error, a part of its message and a part of its hint
/// (empty: there is no hint).
fn assert_refused(text: &str, place: (u32, u32), message: &str, hint: &str) -> ConfigError {
    let error = build(text).expect_err(text);
    assert_eq!(error.position().map(|p| (p.line, p.column)), Some(place), "{text}\n{error}");
    assert!(error.message().contains(message), "{text}\n{error}");
    assert_eq!(error.hint_text().is_none(), hint.is_empty(), "{text}\n{error}");
    assert!(error.hint_text().unwrap_or_default().contains(hint), "{text}\n{error}");
    error
}

#[test]
fn the_schema_is_strict() {
    let table = [
        ("surprise: true\n", (1, 1), "unknown field 'surprise'", "known here: apiVersion, kind"),
        ("plugin: []\n", (1, 1), "unknown field 'plugin'", "did you mean `plugins`?"),
        ("plugins: []\nplugins: []\n", (2, 1), "'plugins' appears twice", "keep one"),
        (
            "schedulingProfiles:\n- name: a\n  plugins:\n  - {pluginRef: q, weight: two}\n",
            (4, 28),
            "weight: expected a number, found 'two'",
            "write for example 2 or 0.5",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: q, weight: '2'}]}]\n",
            (1, 65),
            "weight: expected a number, found '2'",
            "without quotes",
        ),
        ("plugins: 3\n", (1, 10), "plugins: expected a list, found 3", ""),
        ("plugins: [3]\n", (1, 11), "expected a map, found 3", ""),
        ("plugins:\n- type: 3\n", (2, 9), "expected text, found 3", "quotes"),
        ("plugins:\n- type: yes\n", (2, 9), "expected text, found true", "quotes"),
        (
            "plugins:\n- type: queue-scorer\n- {type: random-picker, paramters: {}}\nkind: EndpointPickerConfig\n",
            (3, 25),
            "plugin 'random-picker': unknown field 'paramters'",
            "did you mean `parameters`?",
        ),
        (
            "schedulingProfiles:\n- name: default\n  plugins:\n  - {pluginRef: queue-scorer, wieght: 3}\n",
            (4, 31),
            "unknown field 'wieght'",
            "did you mean `weight`?",
        ),
        (
            "dataLayer: {injectDefaults: maybe}\n",
            (1, 29),
            "injectDefaults: expected true or false, found 'maybe'",
            "",
        ),
        ("dataLayer: {sources: [{extractors: []}]}\n", (1, 23), "'pluginRef' is missing", ""),
        (
            "flowControl: {maxBytes: 10MB}\n",
            (1, 25),
            "maxBytes: \"10MB\" is not a quantity; write for example",
            "",
        ),
        ("flowControl: {maxBytes: -1}\n", (1, 25), "\"-1\" is not a quantity", ""),
        ("flowControl: {defaultRequestTTL: 5}\n", (1, 34), "expected text, found 5", "quotes"),
        (
            "flowControl: {defaultRequestTTL: 5 minutes}\n",
            (1, 34),
            "is not a duration; write for example",
            "",
        ),
        (
            "flowControl: {priorityBands: [{priority: 1.5}]}\n",
            (1, 42),
            "expected a whole number, found 1.5",
            "",
        ),
        ("just text\n", (1, 1), "expected a map, found 'just text'", ""),
        ("~\n", (1, 1), "expected a map, found nothing", ""),
    ];
    for (text, place, message, hint) in table {
        assert_refused(text, place, message, hint);
    }
}

#[test]
fn what_the_keys_say_is_checked() {
    let table = [
        ("kind: Pod\n", (1, 7), "kind 'Pod' is not known", "EndpointPickerConfig"),
        ("apiVersion: llm-d.ai/v2\n", (1, 13), "apiVersion 'llm-d.ai/v2' is not known", "llm-d.ai/v1alpha1"),
        (
            "featureGates: [dataLayer]\n",
            (1, 16),
            "unknown feature gate 'dataLayer'",
            "known here: flowControl",
        ),
        ("featureGates: [flowcontrol]\n", (1, 16), "unknown feature gate", "did you mean `flowControl`?"),
        ("featureGates: ['flowControl=maybe']\n", (1, 16), "feature gate 'flowControl': \"maybe\"", ""),
        ("plugins:\n- name: x\n", (2, 3), "plugin 'x' is missing a type", ""),
        (
            "plugins:\n- type: queue-scorer\n- type: queue-scorer\n",
            (3, 9),
            "duplicate plugin name 'queue-scorer'",
            "another name",
        ),
        ("schedulingProfiles: [{plugins: []}]\n", (1, 22), "missing a name", ""),
        ("schedulingProfiles:\n- name: a\n- name: a\n", (3, 9), "duplicate scheduling profile 'a'", ""),
        (
            "schedulingProfiles: [{name: a, plugins: [{weight: 1}]}]\n",
            (1, 42),
            "'a' has an entry without a pluginRef",
            "",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: q, weight: .inf}]}]\n",
            (1, 65),
            "a weight has to be a finite number",
            "",
        ),
        (
            "featureGates: [flowControl]\nflowControl:\n  priorityBands:\n  - priority: 1\n  - priority: 1\n",
            (5, 5),
            "priority 1 has two bands",
            "",
        ),
    ];
    for (text, place, message, hint) in table {
        assert_refused(text, place, message, hint);
    }
}

#[test]
fn plugins_have_to_exist_and_fit_into_profiles() {
    let two_pickers = "plugins: [{type: max-score-picker}, {type: random-picker}]\n";
    let listed = "schedulingProfiles:\n- name: a\n  plugins:\n  - pluginRef: max-score-picker\n  - pluginRef: random-picker\n";
    let table: [(&str, &str, (u32, u32), &str, &str); 10] = [
        (
            "plugins:\n- type: queue-score\n",
            "",
            (2, 9),
            "plugin type 'queue-score' is not registered",
            "did you mean `queue-scorer`?",
        ),
        (
            "plugins:\n- {name: mine, type: zebra}\n",
            "",
            (2, 22),
            "plugin 'mine': plugin type 'zebra' is not registered",
            "",
        ),
        (
            "plugins: [{type: queue-scorer}]\n",
            "schedulingProfiles:\n- name: a\n  plugins:\n  - pluginRef: queue-scores\n",
            (5, 16),
            "profile 'a' refers to the undeclared plugin 'queue-scores'",
            "did you mean `queue-scorer`?",
        ),
        (two_pickers, listed, (6, 16), "profile 'a' already has the picker 'max-score-picker'", "one picker"),
        (two_pickers, "", (1, 37), "profile 'default' already has the picker", "one picker"),
        (
            "plugins: [{type: utilization-detector}]\n",
            "schedulingProfiles:\n- name: a\n  plugins:\n  - pluginRef: utilization-detector\n",
            (5, 16),
            "utilization-detector as a filter: not supported by this version",
            "",
        ),
        (
            "",
            "schedulingProfiles:\n- name: a\n- name: b\n",
            (3, 9),
            "no profile handler configured",
            "declare one",
        ),
        (
            "plugins:\n- type: single-profile-handler\n",
            "schedulingProfiles:\n- name: a\n- name: b\n",
            (2, 3),
            "can't choose among multiple scheduling profiles",
            "",
        ),
        (
            "plugins:\n- type: single-profile-handler\n- {name: two, type: single-profile-handler}\n",
            "",
            (3, 3),
            "multiple profile handlers found",
            "declare one",
        ),
        (
            "plugins: [{name: max-score-picker, type: queue-scorer}]\n",
            "schedulingProfiles:\n- name: a\n",
            (1, 11),
            "'max-score-picker' is not a picker",
            "another name",
        ),
    ];
    for (plugins, profiles, place, message, hint) in table {
        assert_refused(&format!("{plugins}{profiles}"), place, message, hint);
    }
}

#[test]
fn references_have_to_fit() {
    let plugins =
        "plugins: [{type: queue-scorer}, {type: metrics-data-source}]\nfeatureGates: [flowControl]\n";
    let table = [
        ("requestHandler: {parsers: [{pluginRef: queue-scorer}]}", 40, "is not a parser", ""),
        ("requestHandler: {parsers: [{pluginRef: mine}]}", 40, "the undeclared plugin 'mine'", "declare it"),
        (
            "parser: {pluginRef: anthropic-parser}",
            21,
            "'anthropic-parser' is not supported by this version",
            "",
        ),
        ("dataLayer: {discovery: {pluginRef: queue-scorer}}", 36, "is not a discovery plugin", ""),
        ("dataLayer: {sources: [{pluginRef: nothing}]}", 35, "the undeclared plugin 'nothing'", "declare it"),
        ("dataLayer: {sources: [{pluginRef: queue-scorer}]}", 35, "is not a data source", ""),
        (
            "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: queue-scorer}]}]}",
            81,
            "is not an extractor",
            "",
        ),
        ("dataLayer: {crossReplicaSyncerPluginRef: queue-scorer}", 42, "is not a cross-replica syncer", ""),
        ("dataLayer: {peerDiscovery: {pluginRef: queue-scorer}}", 40, "is not a peer discovery plugin", ""),
        (
            "flowControl: {saturationDetector: {pluginRef: queue-scorer}}",
            47,
            "is not a saturation detector",
            "",
        ),
        ("saturationDetector: {pluginRef: mine}", 33, "the undeclared plugin 'mine'", "declare it"),
        (
            "flowControl: {priorityBands: [{priority: 1, orderingPolicyRef: nothing}]}",
            64,
            "orderingPolicyRef refers to the undeclared plugin 'nothing'",
            "declare it",
        ),
        (
            "flowControl: {defaultPriorityBand: {fairnessPolicyRef: fcfs-ordering-policy}}",
            56,
            "is not a fairness policy",
            "",
        ),
        (
            "flowControl: {usageLimitPolicyPluginRef: fcfs-ordering-policy}",
            42,
            "is not a usage limit policy",
            "",
        ),
    ];
    for (line, column, message, hint) in table {
        assert_refused(&format!("{plugins}{line}\n"), (3, column), message, hint);
    }
}

#[test]
fn parameters_are_strict() {
    // type, parameters, column within the parameters, message, hint
    let table = [
        (
            "max-score-picker",
            "{maxNumOfEndpoint: 1}",
            2,
            "unknown field 'maxNumOfEndpoint'",
            "`maxNumOfEndpoints`",
        ),
        ("max-score-picker", "{maxNumOfEndpoints: two}", 21, "expected a whole number, found 'two'", ""),
        ("random-picker", "[]", 1, "expected a map, found a list", ""),
        ("openai-parser", "{x: 1}", 2, "unknown field 'x'", "nothing can be set"),
        ("file-discovery", "{watchFile: true}", 1, "'path' is missing", ""),
        ("file-discovery", "{path: ''}", 8, "'path' is empty", "name the endpoints file"),
        ("file-discovery", "{path: a, watchFiles: true}", 11, "unknown field 'watchFiles'", "`watchFile`"),
        ("metrics-data-source", "{port: 0}", 8, "port 0", "1 to 65535"),
        ("metrics-data-source", "{port: 65536}", 8, "from 0 to 65535, found 65536", ""),
        ("metrics-data-source", "{scheme: https}", 10, "scheme https: not supported by this version", ""),
        ("metrics-data-source", "{scheme: ftp}", 10, "scheme 'ftp' is not known", "http"),
        ("metrics-data-source", "{path: metrics}", 8, "doesn't begin with a slash", "/metrics"),
        ("metrics-data-source", "{interval: -1s}", 12, "interval: \"-1s\" is not a duration", ""),
        ("metrics-data-source", "{clientCertPath: a}", 18, "go together", "both or neither"),
        ("metrics-data-source", "{caCertPath: a}", 14, "caCertPath: not supported by this version", ""),
        (
            "metrics-data-source",
            "{clientCertPath: a, clientKeyPath: b}",
            18,
            "clientCertPath: not supported",
            "",
        ),
    ];
    for (plugin_type, parameters, column, message, hint) in table {
        assert_parameters_refused(plugin_type, parameters, column, message, hint);
    }
}

#[test]
fn parameters_of_engines_and_detectors_are_strict() {
    let core = "core-metrics-extractor";
    let engine = |rest: &str| format!("{{engineConfigs: [{{name: vllm, {rest}}}]}}");
    let table = [
        (core, "{defaultEngine: sglang}".to_owned(), 17, "defaultEngine sglang: not supported", ""),
        (core, "{defaultEngine: vlm}".to_owned(), 17, "defaultEngine 'vlm' is not known", "`vllm`"),
        (core, "{engineLabelKey: engine}".to_owned(), 18, "engineLabelKey", ""),
        (core, "{engineConfigs: [{}]}".to_owned(), 18, "missing a name", ""),
        (
            core,
            "{engineConfigs: [{name: default}]}".to_owned(),
            25,
            "can't be named 'default'",
            "defaultEngine",
        ),
        (core, "{engineConfigs: [{name: a}, {name: a}]}".to_owned(), 36, "two engines named 'a'", ""),
        (core, "{engineConfigs: [{name: a}]}".to_owned(), 18, "the engine 'a': not supported", ""),
        (core, engine("kvUsageSpec: 'a b'"), 44, "kvUsageSpec: \"a b\" is not a metric's name", "name{label"),
        (core, engine("queuedRequestsSpec: mine"), 51, "than 'vllm:num_requests_waiting': not supported", ""),
        (core, engine("cacheBlockSizeLabelName: mine"), 18, "a queuedRequestsSpec of vllm other than", ""),
        (core, engine("customMetrics: [{attributeKey: a}]"), 47, "missing its metricSpec", ""),
        (
            core,
            engine("customMetrics: [{attributeKey: a, metricSpec: m}, {attributeKey: a, metricSpec: m}]"),
            96,
            "the attributeKey 'a' twice",
            "",
        ),
        (
            core,
            engine("customMetrics: [{attributeKey: a, metricSpec: m}]"),
            47,
            "customMetrics: not supported",
            "",
        ),
        ("utilization-detector", "{kvCacheUtilThreshold: 1.5}".to_owned(), 24, "can't be 1.5", "0.8"),
        ("utilization-detector", "{queueDepth: 1}".to_owned(), 2, "unknown field 'queueDepth'", "known here"),
        ("static-usage-limit-policy", "{threshold: -1}".to_owned(), 13, "can't be -1", "the default is 1"),
    ];
    for (plugin_type, parameters, column, message, hint) in table {
        assert_parameters_refused(plugin_type, &parameters, column, message, hint);
    }
}

fn assert_parameters_refused(plugin_type: &str, parameters: &str, column: u32, message: &str, hint: &str) {
    let text = with_parameters(plugin_type, parameters);
    let before = text.lines().nth(1).unwrap().find(parameters).unwrap() as u32;
    let error = assert_refused(&text, (2, before + column), message, hint);
    assert_eq!(error.plugin(), Some(plugin_type), "{error}");
}

#[test]
fn every_type_of_the_peer_is_known_and_supported_or_refused_by_name() {
    for plugin_type in PluginType::all() {
        let parameters = match plugin_type.name {
            "file-discovery" => "{path: a}",
            "session-id-producer" => "{cookieName: a}",
            "request-attribute-reporter" => {
                "{attributes: [{key: {name: a}, expression: usage.total_tokens}]}"
            }
            "disaggregatedset-rollout-screener" => "{scope: {labelSelector: {}}, revisionGating: {}}",
            _ => "{}",
        };
        let result = build_all(&with_parameters(plugin_type.name, parameters), true);
        if plugin_type.is_supported() {
            assert!(result.is_ok(), "{}: {:?}", plugin_type.name, result.err());
        } else {
            let error = result.unwrap_err();
            assert!(error.message().contains("is not supported by this version"), "{error}");
            assert_eq!(error.plugin(), Some(plugin_type.name));
        }
    }
}

const WORDS: [&str; 24] = [
    "plugins",
    "schedulingProfiles",
    "name",
    "type",
    "parameters",
    "pluginRef",
    "weight",
    "dataLayer",
    "sources",
    "featureGates",
    "queue-scorer",
    "random-picker",
    ": ",
    "- ",
    "\n  ",
    "\n",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&a ",
    "*a",
    "2.5",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = build(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_mixture_of_words_is_answered(picks in proptest::collection::vec(0..WORDS.len(), 0..80)) {
        let text: String = picks.into_iter().map(|pick| WORDS[pick]).collect();
        if let Err(error) = build(&text) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn a_broken_configuration_is_answered(cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = std::fs::read("deploy/config/default.yaml").unwrap();
        let at = cut.index(bytes.len());
        bytes[at] = byte;
        let _ = build(&String::from_utf8_lossy(&bytes));
        bytes.truncate(at);
        let _ = build(&String::from_utf8_lossy(&bytes));
    }
}
