//! Configurations that are refused, each with the place, the words and the hint. What is
//! refused for its parameters is here, the rest in the modules.

mod broken;
mod disagg;
mod flow;
mod keys;
mod places;
mod references;
mod replicas;
pub(crate) mod required;
mod schema;

use prometheus::Registry;
use required::{beside, required};
use usher::config::{ConfigError, EndpointPickerConfig};
use usher::registry::{Pipeline, PluginType, Stability, plugin_types};
use usher::schedule::{SchedulerMetrics, State};

fn build(text: &str) -> Result<Pipeline, ConfigError> {
    build_with(text, false)
}

/// The pipeline of a configuration.
pub(crate) fn build_with(text: &str, allow_experimental: bool) -> Result<Pipeline, ConfigError> {
    let config = EndpointPickerConfig::parse(text)?;
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    Pipeline::build(Some(&config), allow_experimental, &metrics, &State::default())
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

/// The same, with a `^` in the text before the place of the error.
#[track_caller]
fn assert_marked(text: &str, message: &str, hint: &str) -> ConfigError {
    let before = text.split('^').next().unwrap();
    assert_eq!(text.matches('^').count(), 1, "{text}");
    let line = before.lines().count().max(1) as u32 + u32::from(before.ends_with('\n'));
    let column = before.rsplit('\n').next().unwrap().chars().count() as u32 + 1;
    assert_refused(&text.replace('^', ""), (line, column), message, hint)
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
        ("load-aware-scorer", "{treshold: 1}", 2, "unknown field 'treshold'", "`threshold`"),
        ("token-load-scorer", "{queueThresholdTokens: 1.5}", 24, "expected a whole number, found 1.5", ""),
        (
            "context-length-aware",
            "{enableFilter: true}",
            2,
            "unknown field 'enableFilter'",
            "`enableFiltering`",
        ),
        ("header-label-affinity-scorer", "{headerName: a}", 1, "'labelKey' is missing", ""),
        (
            "header-label-affinity-scorer",
            "{headerName: '', labelKey: b}",
            14,
            "'headerName' is empty",
            "x-tenant",
        ),
        (
            "mm-embeddings-cache-scorer",
            "{producer: a}",
            2,
            "unknown field 'producer'",
            "did you mean `producerName`?",
        ),
        (
            "mm-embeddings-cache-producer",
            "{cacheSizeInMBPerServer: 1}",
            26,
            "can't be 1",
            "the default is 4096",
        ),
        (
            "mm-embeddings-cache-producer",
            "{cacheSizeInMB: 9}",
            2,
            "unknown field 'cacheSizeInMB'",
            "did you mean `cacheSizeInMBPerServer`?",
        ),
        (
            "token-producer",
            "{estimate: {x: 1}}",
            13,
            "estimate.x: not supported by this version",
            "leave it out",
        ),
        ("token-producer", "{estimate: 3}", 12, "expected a map, found 3", ""),
        ("token-producer", "{local: {}}", 9, "local.path is missing", "the model's tokenizer.json"),
        ("token-producer", "{vllm: {url: x}}", 14, "vllm.url can't be 'x'", "http://localhost:8000"),
        ("file-discovery", "{watchFile: true}", 1, "'path' is missing", ""),
        ("file-discovery", "{path: ''}", 8, "'path' is empty", "name the endpoints file"),
        ("file-discovery", "{path: a, watchFiles: true}", 11, "unknown field 'watchFiles'", "`watchFile`"),
        ("metrics-data-source", "{port: 0}", 8, "port 0", "1 to 65535"),
        ("metrics-data-source", "{port: 65536}", 8, "from 0 to 65535, found 65536", ""),
        ("metrics-data-source", "{scheme: ftp}", 10, "scheme 'ftp' is not known", "http or https"),
        ("metrics-data-source", "{path: metrics}", 8, "doesn't begin with a slash", "/metrics"),
        ("metrics-data-source", "{interval: -1s}", 12, "interval: \"-1s\" is not a duration", ""),
        ("metrics-data-source", "{clientCertPath: a}", 18, "go together", "both or neither"),
        ("metrics-data-source", "{clientKeyPath: a}", 17, "go together", "both or neither"),
        ("metrics-data-source", "{useNodeAddress: true}", 2, "unknown field 'useNodeAddress'", "known here"),
        ("models-data-source", "{path: models}", 8, "doesn't begin with a slash", "/v1/models"),
        ("models-data-source", "{port: 1}", 2, "unknown field 'port'", "known here"),
        ("models-data-source", "{clientCertPath: a}", 18, "go together", "both or neither"),
        ("dcgm-data-source", "{port: 0}", 8, "port 0", "1 to 65535"),
        ("dcgm-data-source", "{useNodeAddress: 1}", 18, "expected", ""),
        ("dcgm-data-source", "{caCertPath: a}", 2, "unknown field 'caCertPath'", "known here"),
        ("k8s-notification-source", "{kind: Pod}", 1, "'version' is missing", ""),
        ("k8s-notification-source", "{version: v1, kind: ''}", 21, "'kind' is empty", "kind Pod"),
        ("endpoint-notification-source", "{kind: Pod}", 2, "unknown field 'kind'", "nothing can be set"),
        ("models-data-extractor", "{a: 1}", 2, "unknown field 'a'", "nothing can be set"),
        ("dcgm-extractor", "{a: 1}", 2, "unknown field 'a'", "nothing can be set"),
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
        (core, "{defaultEngine: vlm}".to_owned(), 17, "defaultEngine 'vlm' is not known", "`vllm`"),
        (core, "{defaultEngine: mine}".to_owned(), 17, "defaultEngine 'mine' is not known", "vllm, sglang"),
        (core, "{engineLabel: engine}".to_owned(), 2, "unknown field 'engineLabel'", "`engineLabelKey`"),
        (core, "{engineConfigs: [{}]}".to_owned(), 18, "missing a name", ""),
        (
            core,
            "{engineConfigs: [{name: default}]}".to_owned(),
            25,
            "can't be named 'default'",
            "defaultEngine",
        ),
        (core, "{engineConfigs: [{name: a}, {name: a}]}".to_owned(), 36, "two engines named 'a'", "remove"),
        (core, engine("kvUsageSpec: 'a b'"), 44, "kvUsageSpec: \"a b\" is not a metric's name", "name{label"),
        (core, engine("loraSpec: 'm{a=b'"), 41, "loraSpec: \"m{a=b\" has no closing brace", "name{label"),
        (core, engine("customMetrics: [{attributeKey: a}]"), 47, "missing its metricSpec", ""),
        (
            core,
            engine("customMetrics: [{attributeKey: a, metricSpec: m}, {attributeKey: a, metricSpec: m}]"),
            96,
            "the attributeKey 'a' twice",
            "another key",
        ),
        (
            core,
            engine("customMetrics: [{attributeKey: WaitingQueueSize, metricSpec: m}]"),
            62,
            "the attributeKey 'WaitingQueueSize' is the name of what every engine reports",
            "another key",
        ),
        (
            core,
            engine("customMetrics: [{attributeKey: a, metricSpec: 'm{}{'}]"),
            77,
            "metricSpec: ",
            "name{label",
        ),
        ("utilization-detector", "{kvCacheUtilThreshold: 1.5}".to_owned(), 24, "can't be 1.5", "0.8"),
        (
            "utilization-detector",
            "{queueDepth: 1}".to_owned(),
            2,
            "unknown field 'queueDepth'",
            "`queueDepthThreshold`",
        ),
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
fn every_llm_d_router_type_is_supported_or_refused_by_name() {
    for plugin_type in plugin_types() {
        let PluginType { name, .. } = *plugin_type;
        let text = format!("plugins: [{{type: {name}, parameters: {}}}{}]\n", required(name), beside(name));
        let [refused, allowed] =
            [false, true].map(|allow_experimental| build_with(&text, allow_experimental));
        if !plugin_type.is_supported() {
            for error in [refused.unwrap_err(), allowed.unwrap_err()] {
                assert!(error.message().contains("is not supported by this version"), "{error}");
                assert_eq!(error.plugin(), Some(plugin_type.name));
            }
            continue;
        }
        assert!(allowed.is_ok(), "{}: {:?}", plugin_type.name, allowed.err());
        match (plugin_type.stability, refused) {
            (Stability::Beta, refused) => assert!(refused.is_ok(), "{}: {refused:?}", plugin_type.name),
            (Stability::Alpha, Ok(_)) => panic!("{} is experimental and was let in", plugin_type.name),
            (Stability::Alpha, Err(error)) => {
                assert_eq!(error.position().map(|at| (at.line, at.column)), Some((1, 18)), "{error}");
                assert!(error.message().contains("is experimental"), "{error}");
                assert_eq!(error.hint_text(), Some("allow it with --allow-experimental-plugins"));
            }
        }
    }
}
