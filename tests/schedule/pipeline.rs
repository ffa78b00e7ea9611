//! Pipelines that are built from configurations: defaults, places, notes.

use std::time::Duration;

use prometheus::Registry;
use usher::config::{EndpointPickerConfig, Quantity};
use usher::registry::{Origin, Pipeline, ResolvedProfile, find_type};
use usher::request::ParserKind;
use usher::schedule::{SchedulerMetrics, State};

fn build(text: &str) -> Pipeline {
    let config = EndpointPickerConfig::parse(text).unwrap();
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    Pipeline::build(Some(&config), false, &metrics, &State::default()).unwrap()
}

fn built_in() -> Pipeline {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    Pipeline::build(None, false, &metrics, &State::default()).unwrap()
}

fn scorers(profile: &ResolvedProfile) -> Vec<(&str, f64)> {
    profile.scorers.iter().map(|s| (s.plugin.as_str(), s.weight)).collect()
}

#[track_caller]
fn assert_says(pipeline: &Pipeline, text: &str) {
    assert!(pipeline.notes.iter().any(|note| note.contains(text)), "{text}: {:?}", pipeline.notes);
}

#[test]
fn ignored_parameters_are_noted() {
    for plugin_type in [
        "queue-scorer",
        "kv-cache-utilization-scorer",
        "running-requests-size-scorer",
        "lora-affinity-scorer",
        "single-profile-handler",
    ] {
        let pipeline =
            build(&format!("plugins: [{{name: mine, type: {plugin_type}, parameters: {{any: [thing]}}}}]\n"));
        assert_says(&pipeline, &format!("plugin 'mine': {plugin_type} takes no parameters"));
    }
}

#[test]
fn accepted_parameters_count() {
    let pipeline = build(
        "
plugins:
- {type: file-discovery, parameters: {path: /etc/endpoints.yaml, watchFile: on}}
- type: metrics-data-source
  parameters: {path: /m, port: 9100, interval: 200ms, insecureSkipVerify: false, scheme: http}
- type: core-metrics-extractor
  parameters:
    defaultEngine: vllm
    engineConfigs:
    - name: vllm
      queuedRequestsSpec: vllm:num_requests_waiting
      runningRequestsSpec: vllm:num_requests_running{}
      kvUsageSpec: vllm:kv_cache_usage_perc
      loraSpec: vllm:lora_requests_info
      cacheInfoSpec: vllm:cache_config_info
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3.0}}
dataLayer:
  discovery: {pluginRef: file-discovery}
  sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]
",
    );
    let discovery = pipeline.discovery.unwrap();
    assert_eq!((discovery.path.to_str(), discovery.watch_file), (Some("/etc/endpoints.yaml"), true));
    let [source] = pipeline.sources.as_slice() else { panic!("{:?}", pipeline.sources) };
    assert_eq!((source.params.path.as_str(), source.params.port), ("/m", Some(9100)));
    assert_eq!(source.params.interval, Some(Duration::from_millis(200)));
    assert_eq!(source.engines[0].default_engine().name(), "vllm");
    let picker = pipeline.resolved.plugins.iter().find(|p| p.name == "max-score-picker").unwrap();
    assert_eq!(picker.parameters["maxNumOfEndpoints"], 3);
}

#[test]
fn configured_engines_extend_the_built_in_ones() {
    let build = |parameters: &str| {
        build(&format!("plugins: [{{type: core-metrics-extractor, parameters: {parameters}}}]\n"))
    };
    let default = |parameters: &str| {
        let pipeline = build(parameters);
        pipeline.sources[0].engines[0].default_engine().name().to_owned()
    };
    let table = [
        ("{}", "vllm"),
        ("{defaultEngine: ''}", "vllm"),
        ("{defaultEngine: triton}", "triton"),
        ("{defaultEngine: mine, engineConfigs: [{name: mine, queuedRequestsSpec: q}]}", "mine"),
        ("{engineLabelKey: engine, engineConfigs: [{name: vllm}]}", "vllm"),
    ];
    for (parameters, engine) in table {
        assert_eq!(default(parameters), engine, "{parameters}");
    }
    let pipeline = build("{engineConfigs: [{name: mine, queuedRequestsSpec: ' q{a=b} ', loraSpec: ''}]}");
    let expected = serde_json::json!({
        "engineLabelKey": "llm-d.ai/engine-type",
        "defaultEngine": "vllm",
        "engineConfigs": [{
            "name": "mine",
            "queuedRequestsSpec": "q{a=b}",
            "runningRequestsSpec": null,
            "kvUsageSpec": null,
            "loraSpec": null,
            "cacheInfoSpec": null,
            "cacheBlockSizeLabelName": "block_size",
            "cacheNumBlocksLabelName": "num_gpu_blocks",
            "cacheBlockSizeSpec": null,
            "cacheNumBlocksSpec": null,
            "customMetrics": [],
        }],
    });
    assert_eq!(pipeline.resolved.plugins[0].parameters, expected);
}

#[test]
fn no_interval_and_an_empty_one_mean_every_tick() {
    for interval in ["''", "0s", "~"] {
        let text = format!(
            "plugins: [{{type: metrics-data-source, parameters: {{interval: {interval}}}}}]\ndataLayer: {{sources: [{{pluginRef: metrics-data-source}}]}}\n"
        );
        let pipeline = build(&text);
        assert_eq!(pipeline.sources[0].params.interval, None, "{interval}");
        assert_says(&pipeline, "'metrics-data-source' is not polled, as no extractor reads it");
    }
}

#[test]
fn below_one_endpoint_means_one() {
    for count in ["0", "-3"] {
        let pipeline = build(&format!(
            "plugins: [{{type: random-picker, parameters: {{maxNumOfEndpoints: {count}}}}}]\n"
        ));
        assert_eq!(pipeline.resolved.plugins[0].parameters["maxNumOfEndpoints"], 1, "{count}");
    }
}

#[test]
fn without_a_configuration_the_default_runs() {
    let pipeline = built_in();
    let [profile] = pipeline.resolved.profiles.as_slice() else { panic!("one profile") };
    let expected =
        [("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0)];
    assert_eq!(scorers(profile), expected);
    assert_eq!(pipeline.resolved.stages.producers, ["approx-prefix-cache-producer"]);
    assert!(pipeline.stages.prefix().is_some(), "conditional requests ask it");
    assert_eq!((profile.name.as_str(), profile.picker.plugin.as_str()), ("default", "max-score-picker"));
    let parsers = [ParserKind::OpenAi, ParserKind::Anthropic, ParserKind::VllmHttp, ParserKind::PassThrough];
    assert_eq!(pipeline.parsers, parsers);
    assert_eq!(pipeline.sources.len(), 1);
    assert!(pipeline.discovery.is_none());
    assert!(pipeline.resolved.plugins.iter().all(|plugin| plugin.origin == Origin::Defaulted));
    assert_says(&pipeline, "the built-in configuration runs");
}

#[test]
fn the_shipped_default_is_the_built_in_one() {
    let shipped = build(&std::fs::read_to_string("deploy/config/default.yaml").unwrap());
    let built_in = built_in();
    assert_eq!(scorers(&shipped.resolved.profiles[0]), scorers(&built_in.resolved.profiles[0]));
    assert_eq!(shipped.parsers, built_in.parsers);
    let [shipped_plugins, built_in_plugins] = [&shipped, &built_in].map(|pipeline| {
        let plugins = pipeline.resolved.plugins.iter().filter(|p| p.plugin_type != "file-discovery");
        let mut plugins: Vec<_> = plugins.map(|p| (p.name.clone(), p.parameters.to_string())).collect();
        plugins.sort();
        plugins
    });
    assert_eq!(shipped_plugins, built_in_plugins);
    let sources = |pipeline: &Pipeline| {
        pipeline.sources.iter().map(|s| (s.params.clone(), s.engines.len())).collect::<Vec<_>>()
    };
    assert_eq!(sources(&shipped), sources(&built_in));
}

#[test]
fn an_empty_configuration_gets_every_default() {
    let pipeline = build("kind: EndpointPickerConfig\n");
    let profile = &pipeline.resolved.profiles[0];
    assert_eq!((profile.name.as_str(), profile.defaulted, profile.scorers.len()), ("default", true, 0));
    assert_eq!((profile.picker.plugin.as_str(), profile.picker.defaulted), ("max-score-picker", true));
    assert_eq!(pipeline.resolved.profile_handler.plugin, "single-profile-handler");
    assert!(pipeline.resolved.profile_handler.defaulted);
    assert_eq!(pipeline.resolved.saturation_detector.plugin, "utilization-detector");
    assert_eq!(pipeline.resolved.sources[0].extractors, ["core-metrics-extractor"]);
    assert_eq!(pipeline.discovery, None);
    assert!(pipeline.notes.iter().all(|note| !note.contains("discovery")), "{:?}", pipeline.notes);
}

fn names(pipeline: &Pipeline) -> Vec<&str> {
    pipeline.resolved.plugins.iter().map(|plugin| plugin.name.as_str()).collect()
}

#[test]
fn defaults_are_added_in_the_order_of_llm_d_router() {
    let parsers = ["openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"];
    let parsers = parsers.into_iter().filter(|name| find_type(name).unwrap().is_supported());
    let expected: Vec<&str> = ["active-request-scorer", "single-profile-handler", "max-score-picker"]
        .into_iter()
        .chain(["fcfs-ordering-policy", "global-strict-fairness-policy", "static-usage-limit-policy"])
        .chain(parsers)
        .chain(["utilization-detector", "metrics-data-source", "core-metrics-extractor"])
        .chain(["inflight-load-producer", "token-producer"])
        .collect();
    let pipeline = build("plugins: [{type: active-request-scorer}]\n");
    assert_eq!(names(&pipeline), expected);
    assert_eq!(pipeline.resolved.stages.producers, ["token-producer", "inflight-load-producer"]);
    assert_eq!(pipeline.resolved.stages.pre_request, ["inflight-load-producer"]);
    assert!(pipeline.stages.books());
}

#[test]
fn declared_plugins_are_not_added_as_defaults() {
    let pipeline = build(
        "
plugins:
- {name: handler, type: single-profile-handler}
- {name: top, type: max-score-picker}
- {type: fcfs-ordering-policy, parameters: {anything: goes}}
- {type: core-metrics-extractor}
- {type: utilization-detector, parameters: {queueDepthThreshold: 7}}
",
    );
    let handler = &pipeline.resolved.profile_handler;
    assert_eq!((handler.plugin.as_str(), handler.defaulted), ("handler", false));
    assert_eq!(pipeline.resolved.profiles[0].picker.plugin, "top");
    let all = names(&pipeline);
    for name in &all {
        assert_eq!(all.iter().filter(|other| *other == name).count(), 1, "{all:?}");
    }
    assert!(!all.contains(&"single-profile-handler") && !all.contains(&"max-score-picker"), "{all:?}");
    assert_eq!(pipeline.resolved.sources[0].extractors, ["core-metrics-extractor"]);
    let detector = pipeline.resolved.plugins.iter().find(|p| p.name == "utilization-detector").unwrap();
    assert_eq!(detector.parameters["queueDepthThreshold"], 7.0);
    assert!(matches!(detector.origin, Origin::Declared(_)));
}

#[test]
fn both_versions_and_none_are_accepted() {
    let table = [
        ("", 0),
        ("apiVersion: llm-d.ai/v1alpha1\n", 0),
        ("apiVersion: ''\n", 0),
        ("apiVersion: inference.networking.x-k8s.io/v1alpha1\n", 1),
    ];
    for (version, deprecations) in table {
        let pipeline = build(&format!("{version}kind: EndpointPickerConfig\n"));
        let deprecated = |note: &&String| note.contains("apiVersion") && note.contains("deprecated");
        assert_eq!(pipeline.notes.iter().filter(deprecated).count(), deprecations, "{version}");
    }
    assert!(build("plugins: [{type: queue-scorer}]\n").resolved.profiles[0].defaulted, "no kind");
}

#[test]
fn defaulted_parameters_are_marked() {
    let pipeline = build(
        "
plugins:
- type: metrics-data-source
  parameters: {path: /m, port: , scheme: http}
- {type: queue-scorer}
- {name: kv, type: kv-cache-utilization-scorer}
schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: 1}, {pluginRef: kv}]}]
",
    );
    let of = |name: &str| pipeline.resolved.plugins.iter().find(|p| p.name == name).unwrap();
    assert_eq!(
        of("metrics-data-source").defaulted_parameters,
        ["acceptGzip", "interval", "port", "selectMetrics"]
    );
    assert_eq!(of("max-score-picker").defaulted_parameters, ["maxNumOfEndpoints"]);
    let scorers = &pipeline.resolved.profiles[0].scorers;
    assert_eq!(scorers.iter().map(|scorer| scorer.defaulted).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn implied_profile_has_the_declared_plugins_in_order() {
    let pipeline = build(
        "plugins: [{name: kv, type: kv-cache-utilization-scorer}, {type: openai-parser}, {type: random-picker}, {name: q, type: queue-scorer}]\n",
    );
    let profile = &pipeline.resolved.profiles[0];
    assert_eq!(scorers(profile), [("kv", 1.0), ("q", 1.0)]);
    assert_eq!((profile.picker.plugin.as_str(), profile.picker.defaulted), ("random-picker", false));
}

#[test]
fn weights_count_as_written_and_only_on_scorers() {
    let pipeline = build(
        "
plugins:
- {name: q, type: queue-scorer}
- {name: kv, type: kv-cache-utilization-scorer}
- {name: top, type: max-score-picker}
- {type: openai-parser}
schedulingProfiles:
- name: p
  plugins:
  - {pluginRef: top, weight: 3}
  - {pluginRef: kv, weight: -2.5}
  - {pluginRef: q, weight: 0}
  - {pluginRef: openai-parser}
",
    );
    assert_eq!(scorers(&pipeline.resolved.profiles[0]), [("kv", -2.5), ("q", 0.0)]);
    assert_says(&pipeline, "profile 'p': the weight of 'top' has no effect");
    assert_says(&pipeline, "profile 'p': 'openai-parser' has no effect there");
}

#[test]
fn a_profile_without_a_picker_gets_the_first_declared_one() {
    let pipeline = build(
        "
plugins: [{type: queue-scorer}, {name: a, type: random-picker}, {name: b, type: max-score-picker}]
schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]
",
    );
    let picker = &pipeline.resolved.profiles[0].picker;
    assert_eq!((picker.plugin.as_str(), picker.defaulted), ("a", true));
    assert!(pipeline.resolved.plugins.iter().all(|plugin| plugin.name != "max-score-picker"));
}

#[test]
fn default_plugins_can_be_referenced() {
    let pipeline = build("schedulingProfiles: [{name: p, plugins: [{pluginRef: max-score-picker}]}]\n");
    assert!(!pipeline.resolved.profiles[0].picker.defaulted);
}

#[test]
fn parsers_are_asked_once_and_never_after_a_fallback() {
    let pipeline = build(
        "
plugins:
- {type: passthrough-parser}
- {name: again, type: openai-parser}
- {name: late, type: passthrough-parser}
requestHandler:
  parsers: [{pluginRef: openai-parser}, {pluginRef: again}, {pluginRef: passthrough-parser}, {pluginRef: late}]
",
    );
    assert_eq!(pipeline.parsers, [ParserKind::OpenAi, ParserKind::PassThrough]);
    assert_says(&pipeline, "parser 'again' is never asked: its type is listed already");
    assert_says(&pipeline, "parser 'late' is never asked: it follows a passthrough-parser");
}

#[test]
fn metrics_source_is_added_unless_disabled() {
    assert_eq!(build("dataLayer: {injectDefaults: true}\n").sources.len(), 1);
    let silent = build("dataLayer: {injectDefaults: false}\n");
    assert_eq!(silent.sources.len(), 0);
    assert_says(&silent, "no metrics are read");
    let named = "plugins: [{name: m, type: metrics-data-source}]\ndataLayer: {sources: [{pluginRef: m}]}\n";
    assert_eq!(build(named).sources.len(), 2, "only the literal name keeps the default away");
}

#[test]
fn deprecated_keys_and_versions_still_count() {
    let pipeline = build(
        "
apiVersion: inference.networking.x-k8s.io/v1alpha1
parser: {pluginRef: passthrough-parser}
saturationDetector: {pluginRef: sat}
plugins: [{name: sat, type: utilization-detector}]
",
    );
    assert_eq!(pipeline.parsers, [ParserKind::PassThrough]);
    assert_eq!(pipeline.resolved.saturation_detector.plugin, "sat");
    assert_eq!(pipeline.notes.iter().filter(|note| note.contains("is deprecated")).count(), 3);
    let both = build(
        "
parser: {pluginRef: passthrough-parser}
requestHandler: {parsers: [{pluginRef: openai-parser}]}
",
    );
    assert_eq!(both.parsers, [ParserKind::OpenAi]);
    assert_says(&both, "it is ignored, as both are set");
}

#[test]
fn feature_gates_are_parsed_as_go_booleans() {
    let gates =
        |list: &str| EndpointPickerConfig::parse(&format!("featureGates: {list}\n")).unwrap().feature_gates;
    assert!(!gates("[]").flow_control && gates("[]").ha_populate_non_leader_datastore);
    assert!(gates("[flowControl]").flow_control);
    assert!(gates("['flowControl=T']").flow_control);
    assert!(!gates("['haPopulateNonLeaderDatastore= False ']").ha_populate_non_leader_datastore);
}

#[test]
fn flow_control_is_read_in_full() {
    let config = EndpointPickerConfig::parse(
        "
flowControl:
  maxBytes: 1Gi
  maxRequests: '100'
  defaultRequestTTL: 1m
  noEndpointRequestTTL: 0s
  defaultPriorityBand: {maxRequests: 7, fairnessPolicyRef: f}
  defaultNegativePriorityBand: {maxBytes: 1M}
  priorityBands: [{priority: -1, orderingPolicyRef: o}]
  usageLimitPolicyPluginRef: u
  saturationDetector: {pluginRef: s}
  enableEviction: true
",
    )
    .unwrap();
    let flow = config.flow_control.unwrap().value;
    assert_eq!((flow.max_bytes, flow.max_requests), (Some(Quantity(1 << 30)), Some(Quantity(100))));
    assert_eq!(flow.default_request_ttl, Some(Duration::from_secs(60)));
    assert_eq!(flow.no_endpoint_request_ttl, Some(Duration::ZERO));
    assert_eq!(flow.default_priority_band.unwrap().max_requests, Some(Quantity(7)));
    assert_eq!(flow.default_negative_priority_band.unwrap().max_bytes, Some(Quantity(1_000_000)));
    assert_eq!(flow.priority_bands[0].value.priority, -1);
    assert_eq!(flow.usage_limit_policy_plugin_ref.unwrap().value, "u");
    assert!(flow.enable_eviction);
    assert_eq!(config.saturation_detector.unwrap().value, "s");
}

#[test]
fn flow_control_needs_its_gate() {
    let no_gate = "no effect without the feature gate";
    assert_says(&build("flowControl: {maxRequests: 5}\n"), no_gate);
    let detector =
        "flowControl: {saturationDetector: {pluginRef: utilization-detector}, enableEviction: true}\n";
    assert!(build(detector).notes.iter().all(|note| !note.contains(no_gate)));
    let gated = build("featureGates: [flowControl]\nflowControl: {maxRequests: 5}\n");
    assert!(gated.notes.iter().all(|note| !note.contains(no_gate)) && gated.flow_control.is_some());
}

#[test]
fn notification_sources_are_accepted_without_effect() {
    let pipeline = build(
        "
plugins:
- type: queue-scorer
- type: metrics-data-source
- type: core-metrics-extractor
- type: endpoint-notification-source
- {type: k8s-notification-source, parameters: {group: '', version: v1, kind: Pod}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
dataLayer:
  sources:
  - {pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}
  - {pluginRef: endpoint-notification-source, extractors: [{pluginRef: queue-scorer}]}
  - {pluginRef: k8s-notification-source}
",
    );
    assert_eq!((pipeline.sources.len(), pipeline.resolved.sources.len()), (1, 3));
    assert_eq!(pipeline.resolved.sources[1].extractors, ["queue-scorer"]);
    assert_says(&pipeline, "'endpoint-notification-source' has no effect: plugins learn of endpoints from");
    assert_says(&pipeline, "'k8s-notification-source' has no effect");
}

#[test]
fn model_lists_have_their_own_source() {
    let pipeline = build(
        "
plugins: [{type: models-data-source, parameters: {scheme: https, insecureSkipVerify: false}}, {type: models-data-extractor}]
dataLayer: {sources: [{pluginRef: models-data-source, extractors: [{pluginRef: models-data-extractor}]}]}
",
    );
    let [models, metrics] = pipeline.sources.as_slice() else { panic!("{:?}", pipeline.sources) };
    assert_eq!((models.models, models.engines.len()), (true, 0));
    assert_eq!((models.params.path.as_str(), models.params.https), ("/v1/models", true));
    assert!(!models.params.tls.insecure_skip_verify);
    assert_eq!((metrics.models, metrics.engines.len()), (false, 1), "the default is there, too");
    let unlisted = build("plugins: [{type: models-data-extractor}]\n");
    assert_says(&unlisted, "'models-data-extractor' has no effect, as no data source lists it");
}
