//! `usher check` as a program sees it: standard output, standard error, exit code.

use serde_json::{Value, json};
use usher::cli::check::{CheckArgs, Output, run_with};
use usher::settings::MemoryBudget;

/// Exit code, standard output, standard error.
pub(crate) fn check(file: &str, input: &str, output: Output) -> (u8, String, String) {
    let args = CheckArgs {
        files: vec![file.into()],
        output,
        allow_experimental_plugins: false,
        compare: None,
        endpoints_file: None,
        admin: None,
        memory_budget: MemoryBudget::Off,
    };
    check_with(&args, input)
}

pub(crate) fn check_with(args: &CheckArgs, input: &str) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run_with(args, &mut input.as_bytes(), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// The only file of a report.
pub(crate) fn only(report: &str) -> Value {
    let report: Value = serde_json::from_str(report).unwrap();
    let [file] = &report["files"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(file["valid"], report["valid"]);
    file.clone()
}

/// Two scorers, one of which needs data that nobody declares.
const TEXT: &str = "
plugins:
- {name: q, type: queue-scorer}
- {name: busy, type: active-request-scorer, parameters: {idleThreshold: 2}}
schedulingProfiles:
- {name: main, plugins: [{pluginRef: q, weight: 2.5}, {pluginRef: busy}]}
";

#[test]
fn text_shows_the_pipeline_and_its_defaults() {
    let (code, out, err) = check("-", TEXT, Output::Text);
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "

parsers           openai-parser (default)
                  anthropic-parser (default)
                  vllmhttp-parser (default)
                  passthrough-parser (default)
producers         token-producer
                  inflight-load-producer
profile handler   single-profile-handler (default)
profile           main
  scorers         q × 2.5
                  busy × 1 (default)
  picker          max-score-picker (default)
on a decision     inflight-load-producer
discovery         none: give usher serve --endpoints-file, --pool-name or
                  --endpoint-selector
data sources      metrics-data-source (default) → core-metrics-extractor
saturation        utilization-detector (default)
feature gates     flowControl=false
                  haPopulateNonLeaderDatastore=true

plugins
  q: queue-scorer (line 3)
  busy: active-request-scorer (line 4)
    set       idleThreshold=2
    default   inFlightLoadProducerName=\"inflight-load-producer\" maxBusyScore=1.0
    reads     InFlightLoad from inflight-load-producer
  single-profile-handler (default)
  max-score-picker (default)
    default   maxNumOfEndpoints=1
";
    assert!(out.starts_with("<stdin> is valid\n\ndestination\n") && out.contains(expected), "{out}");
    let producer = "
  inflight-load-producer (default)
    default   addEstimatedOutputTokens=false outputRatio=1.5
              prefixMatchInfoProducerName=\"approx-prefix-cache-producer\"
              syncCrossReplicaState=true
    reads     TokenizedPrompt from token-producer
    produces  InFlightLoad, UncachedRequestTokens
  token-producer (default)
    produces  TokenizedPrompt
";
    assert!(out.contains(producer), "{out}");
    assert!(out.contains("\nnotes\n  - "), "{out}");
    assert!(out.contains("  - dataLayer.discovery: none: give usher serve --endpoints-file"), "{out}");
    for line in out.lines() {
        assert!(line.chars().count() <= 80 && line == line.trim_end(), "{line:?}");
    }
}

#[test]
fn json_names_the_producer_of_each_attribute() {
    let (_, out, _) = check("-", TEXT, Output::Json);
    let report = only(&out);
    let pipeline = &report["pipeline"];
    assert_eq!(pipeline["discovery"], Value::Null);
    assert_eq!(pipeline["stages"]["producers"], json!(["token-producer", "inflight-load-producer"]));
    assert_eq!(
        pipeline["profiles"][0]["scorers"],
        json!([
            {"plugin": "q", "weight": 2.5, "defaulted": false},
            {"plugin": "busy", "weight": 1.0, "defaulted": true},
        ])
    );
    let busy = &pipeline["plugins"][1];
    assert_eq!(busy["reads"], json!([{"data": "InFlightLoad", "producer": "inflight-load-producer"}]));
    assert_eq!(busy["parameters"]["idleThreshold"], 2);
    assert_eq!(busy["defaultedParameters"], json!(["inFlightLoadProducerName", "maxBusyScore"]));
    let plugins = pipeline["plugins"].as_array().unwrap();
    let producer = plugins.iter().find(|plugin| plugin["name"] == "inflight-load-producer").unwrap();
    assert_eq!(producer["produces"], json!(["InFlightLoad", "UncachedRequestTokens"]));
    assert_eq!(producer["origin"], "defaulted");
    let note = "dataLayer.discovery: none: give usher serve --endpoints-file";
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().any(|text| text.as_str().unwrap().starts_with(note)), "{out}");
}

#[test]
fn configuration_may_contain_endpoint_discovery() {
    let text = "plugins: [{type: file-discovery, parameters: {path: endpoints.yaml}}]\ndataLayer: {discovery: {pluginRef: file-discovery}}\n";
    let (code, out, _) = check("-", text, Output::Json);
    let report = only(&out);
    assert_eq!((code, &report["pipeline"]["discovery"]["plugin"]), (0, &json!("file-discovery")));
    assert_eq!(report["pipeline"]["plugins"][0]["parameters"]["path"], "endpoints.yaml");
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().all(|note| !note.as_str().unwrap().contains("dataLayer.discovery")), "{notes:?}");
}

#[test]
fn stale_readings_between_scrapes_are_noted() {
    let source = "
plugins: [{type: metrics-data-source, parameters: {interval: 1s}}, {type: core-metrics-extractor}]
dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]}
";
    let note = "metricsStalenessThreshold to 2s or more";
    let (code, out, _) = check("-", source, Output::Json);
    assert!(code == 0 && out.contains(note), "{out}");
    let (_, out, _) = check("-", TEXT, Output::Json);
    assert!(!out.contains("metricsStalenessThreshold to"), "the file doesn't say how often: {out}");
}

#[test]
fn negative_weights_are_warned_of() {
    let (code, out, _) = check("-", &TEXT.replace("weight: 2.5", "weight: -1"), Output::Json);
    let warnings = &only(&out)["warnings"];
    assert_eq!((code, warnings.as_array().unwrap().len()), (0, 1), "{warnings}");
    assert!(
        warnings[0].as_str().unwrap().starts_with("profile 'main': the weight of 'q' is -1, "),
        "{warnings}"
    );
    let (_, out, _) = check("-", &TEXT.replace("weight: 2.5", "weight: -1"), Output::Text);
    assert!(out.starts_with("<stdin> is valid\n\nwarnings\n  - profile 'main'"), "{out}");
    assert!(out.contains(": The negative weight turns this around: "), "{out}");
}

#[test]
fn empty_and_misspelt_endpoint_lists_are_reported() {
    let (code, out, err) = check("-", "endpoints: []\n", Output::Text);
    assert_eq!((code, out.as_str()), (0, "<stdin> is valid: 0 endpoints\n"));
    assert!(err.starts_with("warning: <stdin>: there is no endpoint in it: serve "), "{err}");
    let (_, out, _) = check("-", "endpoints: []\n", Output::Json);
    assert_eq!(only(&out)["warnings"].as_array().unwrap().len(), 1, "{out}");
    let (code, _, err) = check("-", "endpoint:\n- {name: a, address: 127.0.0.1, port: 80}\n", Output::Text);
    assert!(code == 1 && err.contains("unknown field `endpoint` (did you mean `endpoints`?)"), "{err}");
}

#[test]
fn deprecated_types_name_their_replacement() {
    let text = "plugins: [{name: t, type: tokenizer}]\n";
    let (_, out, _) = check("-", text, Output::Text);
    assert!(out.contains("\n  t: tokenizer (line 1) (deprecated, use token-producer)\n"), "{out}");
    let note = "  - plugin 't': the type tokenizer is deprecated, use token-producer";
    assert!(out.contains(note), "{out}");
    let (_, out, _) = check("-", text, Output::Json);
    let report = only(&out);
    assert_eq!(report["pipeline"]["plugins"][0]["deprecated"], "token-producer");
}

#[test]
fn an_empty_configuration_is_the_built_in_one() {
    let (code, out, err) = check("-", "", Output::Text);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("<stdin> is empty, which asks for the built-in configuration\n"), "{out}");
    assert!(out.contains("\nprofile           default (default)\n"), "{out}");
    assert!(out.contains("\n  queue-scorer (default)\n"), "{out}");
    // A comment is a configuration that says nothing, which llm-d-router refuses, too.
    let (code, _, err) = check("-", "# later\n", Output::Text);
    assert_eq!((code, err.as_str()), (1, "<stdin>: the document is empty\n"));
}

#[test]
fn text_explains_request_queueing() {
    let text = "featureGates: [flowControl]\nflowControl: {maxBytes: 1Mi, defaultRequestTTL: 0s, noEndpointRequestTTL: 90s, enableEviction: true}\n";
    let (code, out, err) = check("-", text, Output::Text);
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "
flow control      any number of requests and 1048576 bytes
                  wait for room for ever, for an endpoint for 90s
                  evicts requests of priorities below 0
  ceilings        static-usage-limit-policy (default)
  priorities      0: 5000 requests, 1000000000 bytes,
                  global-strict-fairness-policy (default), fcfs-ordering-policy
                  (default)
                  others: 5000 requests,";
    assert!(out.contains(expected), "{out}");
}

#[test]
fn json_shows_the_resolved_pipeline() {
    let (code, out, _) = check("deploy/config/default.yaml", "", Output::Json);
    let report = only(&out);
    assert_eq!((code, &report["valid"]), (0, &Value::Bool(true)));
    let pipeline = &report["pipeline"];
    assert_eq!(pipeline["profiles"][0]["scorers"][1]["plugin"], "kv-cache-utilization-scorer");
    assert_eq!(pipeline["profiles"][0]["scorers"][1]["weight"], 2.0);
    assert_eq!(pipeline["profiles"][0]["picker"]["defaulted"], false);
    assert_eq!(pipeline["discovery"], Value::Null, "it goes with every source of endpoints");
    assert_eq!(pipeline["featureGates"]["flowControl"], false);
    let plugins = pipeline["plugins"].as_array().unwrap();
    let of = |name: &str| plugins.iter().find(|plugin| plugin["name"] == name).unwrap();
    assert_eq!(of("queue-scorer")["origin"]["declared"]["column"], 5);
    assert_eq!(of("utilization-detector")["origin"], "defaulted");
    assert_eq!(of("utilization-detector")["kinds"][0], "saturation-detector");
}

/// All that a configuration can say of state that replicas share.
const SHARED: &str = "
plugins:
- {type: k8s-peer-discovery, parameters: {selector: app=usher, port: '9002', namespace: default}}
- {name: shared, type: redis-syncer, parameters: {address: 'redis:6379', password: hunter2, ttl: 3s}}
- {type: local-syncer}
dataLayer:
  peerDiscovery: {pluginRef: k8s-peer-discovery}
  crossReplicaSyncerPluginRef: shared
  crossReplicaSyncInterval: 500ms
  crossReplicaPublishTimeout: 1s
  crossReplica: {syncerPluginRef: local-syncer, syncInterval: 500ms, publishTimeout: 1s}
";

#[test]
fn shared_state_settings_give_one_warning() {
    let (code, out, err) = check("-", SHARED, Output::Json);
    assert_eq!((code, err.as_str()), (0, ""));
    let report = only(&out);
    assert_eq!(
        report["warnings"],
        json!([
            "replicas find each other through the state store, which dataLayer.crossReplica.syncerPluginRef or \
             --state-store names; without effect: dataLayer.peerDiscovery, \
             dataLayer.crossReplicaSyncerPluginRef, plugin 'k8s-peer-discovery', plugin 'shared'"
        ])
    );
    for note in report["notes"].as_array().unwrap() {
        assert!(!note.as_str().unwrap().contains("replica"), "{note}");
    }
    let (_, out, _) = check("-", SHARED, Output::Text);
    assert_eq!(out.matches("\nwarnings\n  - replicas find each other").count(), 1, "{out}");
    assert!(!out.contains("hunter2"), "{out}");
    let (_, out, _) = check("-", TEXT, Output::Text);
    assert!(!out.contains("\nwarnings\n"), "{out}");
    let (_, out, _) = check("-", TEXT, Output::Json);
    let report = only(&out);
    assert_eq!(report["warnings"], json!([]));
}

#[test]
fn password_in_a_url_is_shown_nowhere() {
    for address in ["rediss://:hunter2@a:6379", "'redis://me:hunter2@a'"] {
        let text = format!(
            "plugins:\n- type: redis-syncer\n  parameters:\n    address: {address}\ndataLayer: {{crossReplicaSyncerPluginRef: redis-syncer}}\n"
        );
        for output in [Output::Text, Output::Json] {
            let (code, out, err) = check("-", &text, output);
            let all = format!("{out}{err}");
            assert!(code == 1 && all.contains("no port after the colon"), "{all}");
            assert!(!all.contains("hunter2"), "{all}");
        }
    }
}

#[test]
fn an_error_has_its_place_and_its_line() {
    let text = "plugins:\n- type: max-score-picker\n  parameters:\n    maxNumOfEndpoint: 2\n";
    let (code, out, err) = check("-", text, Output::Text);
    assert_eq!((code, out.as_str()), (1, ""));
    let expected = "\
<stdin>:4:5: plugin 'max-score-picker': unknown field 'maxNumOfEndpoint' (did you mean `maxNumOfEndpoints`?)
  4 |     maxNumOfEndpoint: 2
    |     ^^^^^^^^^^^^^^^^
";
    assert_eq!(err, expected);
    let (code, out, err) = check("-", text, Output::Json);
    assert_eq!((code, err.as_str()), (1, ""));
    let expected = json!({
        "file": "<stdin>",
        "kind": "EndpointPickerConfig",
        "valid": false,
        "errors": [{
            "line": 4,
            "column": 5,
            "message": "plugin 'max-score-picker': unknown field 'maxNumOfEndpoint'",
            "hint": "did you mean `maxNumOfEndpoints`?",
        }],
    });
    assert_eq!(only(&out), expected);
}

/// Places and starts of errors, in the order in which they are reported.
pub(crate) fn places(err: &str) -> Vec<&str> {
    let is_error = |line: &&str| line.starts_with("<stdin>:");
    err.lines().filter(is_error).map(|line| line.rsplit_once(" (").map_or(line, |(place, _)| place)).collect()
}

#[test]
fn all_errors_are_reported_without_their_consequences() {
    let text = "\
plugins:
- {name: queue, type: queue-scorrer}
- {name: best, type: max-score-picker, parameters: {maxNumOfEndpoint: 2}}
- {name: loads, type: load-aware-scorer, parameters: {threshold: many}}
- {name: twice, type: random-picker}
- {name: twice, type: random-picker}
schedulingProfiles:
- name: main
  plugins:
  - {pluginRef: queue, weight: 2}
  - {pluginRef: loads, wieght: 2}
  - {pluginRef: nothing}
  - {pluginRef: best}
";
    let (code, out, err) = check("-", text, Output::Text);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    let expected = [
        "<stdin>:2:23: plugin 'queue': plugin type 'queue-scorrer' is not registered",
        "<stdin>:3:53: plugin 'best': unknown field 'maxNumOfEndpoint'",
        "<stdin>:4:66: plugin 'loads': threshold: expected a whole number, found 'many'",
        "<stdin>:6:10: duplicate plugin name 'twice'",
        "<stdin>:11:24: unknown field 'wieght'",
        "<stdin>:12:17: profile 'main' refers to the undeclared plugin 'nothing'",
    ];
    assert_eq!(places(&err), expected, "{err}");
    assert!(err.ends_with("\n6 errors\n"), "{err}");
    let (_, out, _) = check("-", text, Output::Json);
    assert_eq!(only(&out)["errors"].as_array().unwrap().len(), expected.len());
}

#[test]
fn capacity_policies_and_lists_of_endpoints_are_checked() {
    let (code, out, err) = check("deploy/capacity/pd.yaml", "", Output::Text);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("llama-70b is valid: Recommend, every 15s\n"), "{out}");
    let (_, out, _) = check("deploy/capacity/pd.yaml", "", Output::Json);
    let report = only(&out);
    assert_eq!(report["kind"], "CapacityPolicy");
    assert_eq!(report["policies"][0]["name"], "llama-70b");
    let endpoints = "endpoints:
- {name: a, address: 10.0.0.1, port: '8000', labels: {llm-d.ai/role: decode}}
- {name: b, adress: 10.0.0.2, port: '8000'}
- {name: c, address: 10.0.0.3, port: '8000', lables: {}}
";
    let (code, out, err) = check("-", endpoints, Output::Text);
    assert_eq!((code, out.as_str()), (1, ""));
    let expected = [
        "<stdin>:3:3: endpoints[1] (b): `address` is missing",
        "<stdin>:3:13: endpoints[1] (b): unknown field `adress`",
        "<stdin>:4:46: endpoints[2] (c): unknown field `lables`",
    ];
    assert_eq!(places(&err), expected, "{err}");
    let good = endpoints.replace("adress", "address").replace("lables", "labels");
    let (code, out, err) = check("-", &good, Output::Text);
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "\
<stdin> is valid: 3 endpoints
  default/a                10.0.0.1:8000          llm-d.ai/role=decode
  default/b                10.0.0.2:8000
  default/c                10.0.0.3:8000
";
    assert_eq!(out, expected);
    let (_, out, _) = check("-", &good, Output::Json);
    let first = json!({"namespace": "default", "name": "a", "address": "10.0.0.1:8000", "labels": {"llm-d.ai/role": "decode"}});
    assert_eq!(only(&out)["endpoints"][0], first);
    let (code, _, err) = check("-", "kind: ConfigMap\ndata: {}\n", Output::Text);
    assert_eq!(code, 1);
    assert!(
        err.starts_with("<stdin>:1:7: kind 'ConfigMap' is not known (known are EndpointPickerConfig, "),
        "{err}"
    );
}

#[test]
fn several_files_are_checked_at_once() {
    let files = ["deploy/capacity/pd.yaml", "-", "does/not/exist.yaml", "deploy/config/default.yaml"];
    let mut args = CheckArgs {
        files: files.map(Into::into).to_vec(),
        output: Output::Text,
        allow_experimental_plugins: false,
        compare: None,
        endpoints_file: None,
        admin: None,
        memory_budget: MemoryBudget::Off,
    };
    let (code, out, err) = check_with(&args, "endpoint: []\n");
    assert_eq!(code, 2, "one could not be read");
    assert!(
        out.contains("is valid: Recommend") && out.contains("\n\ndeploy/config/default.yaml is valid\n"),
        "{out}"
    );
    assert!(err.starts_with("<stdin>:1:1: unknown field `endpoint`"), "{err}");
    assert!(err.contains("\ndoes/not/exist.yaml: the file can't be read: "), "{err}");
    assert!(err.ends_with("\n2 errors in 2 of 4 files\n"), "{err}");
    args.output = Output::Json;
    let (code, out, err) = check_with(&args, "endpoint: []\n");
    assert_eq!((code, err.as_str()), (2, ""));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["valid"], false);
    let valid: Vec<bool> =
        report["files"].as_array().unwrap().iter().map(|file| file["valid"].as_bool().unwrap()).collect();
    assert_eq!(valid, [true, false, false, true]);
    args.files = vec!["-".into(), "-".into()];
    let (code, out, err) = check_with(&args, "");
    assert_eq!((code, out.as_str(), err.as_str()), (2, "", "usher: - is given twice; name each file once\n"));
}

#[test]
fn unreadable_file_is_named_in_the_error() {
    let (code, _, err) = check("does/not/exist.yaml", "", Output::Text);
    assert_eq!(code, 2);
    assert!(err.starts_with("does/not/exist.yaml: the file can't be read: "), "{err}");
    assert!(err.ends_with("(check the path, a relative one counts from the working directory)\n"), "{err}");
    let (code, _, err) = check("tests", "", Output::Text);
    assert_eq!(code, 2);
    assert!(err.ends_with("(give the path of a file)\n"), "{err}");
    let (code, _, err) = check("-", &"#".repeat((1 << 20) + 5), Output::Text);
    assert_eq!((code, err.as_str()), (1, "<stdin>: the document is too long (the limit is 1048576 bytes)\n"));
}
