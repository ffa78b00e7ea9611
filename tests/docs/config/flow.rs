//! Flow control: its plugins' parameters, and the rules that the section comes to.

use std::time::Duration;

use usher::registry::Pipeline;
use usher::schedule::flow_control::{BandRules, Fairness, FlowControlRules, Ordering, UsageLimit};

use super::{assert_parameters_refused, build, build_with};

#[test]
fn parameters_of_policies_are_strict() {
    let (aware, holdback) = ("program-aware-fairness", "priority-holdback-policy");
    let table = [
        (aware, "{strategy: fifo}", 12, "strategy 'fifo' is not known", "known here: las"),
        (aware, "{lasHalfLifeSeconds: 0}", 22, "lasHalfLifeSeconds can't be 0", "the default is 60"),
        (aware, "{lasWeightService: -1}", 20, "lasWeightService can't be -1", "the default is 0.8"),
        (aware, "{lasWeightHeadWait: .inf}", 21, "lasWeightHeadWait can't be inf", "the default is 0.2"),
        (aware, "{evictionTtlSeconds: 1e20}", 22, "evictionTtlSeconds can't be", "the default is 3600"),
        (aware, "{halfLife: 1}", 2, "unknown field 'halfLife'", "lasHalfLifeSeconds"),
        (holdback, "{}", 1, "minCeiling is missing", "minCeiling: 0.5"),
        (holdback, "{minCeiling: 1}", 14, "minCeiling can't be 1", "below 1"),
        (holdback, "{minCeiling: -0.1}", 14, "minCeiling can't be -0.1", "at least 0"),
        (holdback, "{minCeiling: 0.8, maxCeiling: 0.5}", 14, "0.8 is above maxCeiling 0.5", "swap them"),
        (holdback, "{minCeiling: 0.1, maxCeiling: 0}", 31, "maxCeiling can't be 0", "the default is 1"),
        (holdback, "{minCeiling: 0.1, shape: cubic}", 26, "shape 'cubic' is not known", "linear"),
        (holdback, "{minCeiling: 0.1, domain: values}", 27, "domain 'values' is not known", "`value`"),
        ("soft-reflective-ceiling-policy", "{period: 1}", 2, "unknown field 'period'", "nothing can be set"),
        ("sheddable-eviction-filter", "{x: 1}", 2, "unknown field 'x'", "nothing can be set"),
        ("priority-then-time-eviction-order-policy", "{x: 1}", 2, "unknown field 'x'", "nothing can be set"),
    ];
    for (plugin_type, parameters, column, message, hint) in table {
        assert_parameters_refused(plugin_type, parameters, column, message, hint);
    }
}

fn rules(section: &str) -> FlowControlRules {
    pipeline(section).flow_control.expect(section).rules
}

fn pipeline(section: &str) -> Pipeline {
    let text = format!(
        "
featureGates: [flowControl]
plugins:
- {{type: round-robin-fairness-policy}}
- {{type: edf-ordering-policy}}
- {{name: half, type: static-usage-limit-policy, parameters: {{threshold: 0.5}}}}
{section}
"
    );
    build(&text).expect(section)
}

#[test]
fn unset_limits_take_the_llm_d_router_defaults() {
    for section in ["", "flowControl: {}", "flowControl: {maxRequests: 0, maxBytes: '0', priorityBands: []}"]
    {
        assert_eq!(rules(section), FlowControlRules::default(), "{section}");
    }
    let default = FlowControlRules::default();
    assert_eq!(
        (default.ttl, default.no_endpoint_ttl),
        (Some(Duration::from_secs(60)), Some(Duration::from_secs(60)))
    );
    let band = default.band(-7);
    assert_eq!((band.max_requests, band.max_bytes), (5000, 1_000_000_000));
    assert!(
        build("flowControl: {maxRequests: 1}\n").unwrap().flow_control.is_none(),
        "without the gate nobody waits"
    );
}

#[test]
fn no_endpoint_ttl_defaults_to_the_request_ttl() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    // The section, and both times.
    let table = [
        ("{}", seconds(60), seconds(60)),
        ("{defaultRequestTTL: 5s}", seconds(5), seconds(5)),
        ("{defaultRequestTTL: 0s}", None, None),
        ("{noEndpointRequestTTL: 5s}", seconds(60), seconds(5)),
        ("{noEndpointRequestTTL: 0s}", seconds(60), None),
        ("{defaultRequestTTL: 0s, noEndpointRequestTTL: 5s}", None, seconds(5)),
    ];
    for (section, ttl, no_endpoint_ttl) in table {
        let rules = rules(&format!("flowControl: {section}"));
        assert_eq!((rules.ttl, rules.no_endpoint_ttl), (ttl, no_endpoint_ttl), "{section}");
    }
}

#[test]
fn every_priority_has_its_rules() {
    let rules = rules(
        "
flowControl:
  maxRequests: 50
  maxBytes: 1Mi
  defaultPriorityBand: {maxRequests: 7, fairnessPolicyRef: round-robin-fairness-policy}
  priorityBands:
  - {priority: 3, maxBytes: 1k}
  - {priority: 9, orderingPolicyRef: edf-ordering-policy, maxRequests: 0}
  usageLimitPolicyPluginRef: half
  enableEviction: true
",
    );
    assert_eq!((rules.max_requests, rules.max_bytes, rules.evicts), (Some(50), Some(1 << 20), true));
    let UsageLimit::Static(params) = &rules.usage_limit else { panic!("{:?}", rules.usage_limit) };
    assert_eq!(params.threshold, 0.5);
    let listed: Vec<i32> = rules.bands.iter().map(|(priority, _)| *priority).collect();
    assert_eq!(listed, [9, 3, 0], "priority 0 is always there");
    let default = BandRules { max_requests: 7, fairness: Fairness::RoundRobin, ..BandRules::default() };
    assert_eq!(rules.band(0), &default);
    assert_eq!(rules.band(5), &default);
    assert_eq!(rules.band(-5), &default, "as the others, unless it is said otherwise");
    assert_eq!(rules.band(3), &BandRules { max_bytes: 1000, ..BandRules::default() });
    assert_eq!(rules.band(9), &BandRules { ordering: Ordering::Edf, ..BandRules::default() });
}

#[test]
fn negative_priorities_can_have_their_own_rules() {
    let rules = rules(
        "
flowControl:
  defaultPriorityBand: {maxRequests: 7}
  defaultNegativePriorityBand: {maxRequests: 2}
  priorityBands: [{priority: -3, maxRequests: 4}]
",
    );
    let most = |priority| rules.band(priority).max_requests;
    assert_eq!([most(1), most(0), most(-1), most(-3)], [7, 7, 2, 4]);
}

#[test]
fn unreachable_limit_is_noted() {
    let notes = |section: &str| pipeline(section).notes;
    let note = "maxRequests of priority 3 is never reached";
    let section =
        |band: &str| format!("flowControl: {{maxRequests: 50, priorityBands: [{{priority: 3, {band}}}]}}");
    assert!(notes(&section("maxRequests: 51")).iter().any(|text| text.contains(note)));
    for band in ["maxRequests: 50", "maxBytes: 9", "maxRequests: 0"] {
        assert!(notes(&section(band)).iter().all(|text| !text.contains("never reached")), "{band}");
    }
}

#[test]
fn rules_that_wait_forever_or_admit_no_request_are_noted() {
    let has = |section: &str, text: &str| pipeline(section).notes.iter().any(|note| note.contains(text));
    let (room, endpoint) = ("defaultRequestTTL is 0", "noEndpointRequestTTL is 0");
    assert!(has("flowControl: {defaultRequestTTL: 0s}", room));
    assert!(has("flowControl: {defaultRequestTTL: 0s}", endpoint), "it follows the other");
    assert!(has("flowControl: {noEndpointRequestTTL: 0s}", endpoint));
    assert!(!has("flowControl: {noEndpointRequestTTL: 0s}", room) && !has("", room));
    let never = "is ever let through";
    let threshold = |threshold: &str| {
        let text = format!(
            "
featureGates: [flowControl]
plugins: [{{type: static-usage-limit-policy, parameters: {{threshold: {threshold}}}}}]
flowControl: {{usageLimitPolicyPluginRef: static-usage-limit-policy}}
"
        );
        build(&text).unwrap().notes.iter().any(|note| note.contains(never))
    };
    assert!(threshold("0") && !threshold("0.1"));
}

#[test]
fn detector_with_stale_readings_between_scrapes_is_noted() {
    let [slow, fast] = [1000, 50].map(Duration::from_millis);
    let notes = |detector: &str, source: &str, tick| {
        let text = format!(
            "
plugins:
- {{name: full, type: utilization-detector, parameters: {{{detector}}}}}
- {{type: concurrency-detector}}
- {{type: metrics-data-source, parameters: {{{source}}}}}
- {{type: core-metrics-extractor}}
- {{type: dcgm-data-source}}
- {{type: dcgm-extractor}}
dataLayer:
  sources:
  - {{pluginRef: metrics-data-source, extractors: [{{pluginRef: core-metrics-extractor}}]}}
  - {{pluginRef: dcgm-data-source, extractors: [{{pluginRef: dcgm-extractor}}]}}
flowControl: {{saturationDetector: {{pluginRef: full}}}}
"
        );
        build_with(&text, true).unwrap().notes_on_staleness(tick)
    };
    let want = "'full' takes endpoints for full whose numbers are 200ms old, and they are read every 1s: set \
        metricsStalenessThreshold to 2s or more";
    assert_eq!(notes("", "", Some(slow)), [want]);
    assert_eq!(notes("", "interval: 1s", None), [want], "the file alone says so");
    assert_eq!(notes("", "interval: 1s", Some(fast)), [want]);
    let table = [
        ("", "", None, 0),
        ("", "", Some(fast), 0),
        ("", "interval: 50ms", Some(slow), 0),
        ("", "interval: 100ms", None, 0),
        ("", "interval: 101ms", None, 1),
        ("metricsStalenessThreshold: 2s", "", Some(slow), 0),
        ("metricsStalenessThreshold: 1999ms", "", Some(slow), 1),
    ];
    for (detector, source, tick, count) in table {
        let notes = notes(detector, source, tick);
        assert_eq!(notes.len(), count, "{detector} {source} {tick:?}: {notes:?}");
    }
    let asking = |plugin: &str| {
        let text = format!(
            "
plugins:
- {{type: queue-scorer}}
- {{type: concurrency-detector}}
- {{type: utilization-detector}}
- {{name: filter, type: utilization-detector}}
flowControl: {{saturationDetector: {{pluginRef: concurrency-detector}}}}
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: {plugin}}}]}}]
"
        );
        build(&text).unwrap().notes_on_staleness(Some(slow))
    };
    assert!(asking("queue-scorer").is_empty(), "nobody asks a detector that goes by age");
    let notes = asking("filter");
    assert!(notes.len() == 1 && notes[0].starts_with("'filter' takes"), "{notes:?}");
}

#[test]
fn resolved_section_shows_effective_values() {
    let pipeline =
        pipeline("flowControl: {maxRequests: 50, defaultRequestTTL: 90s, noEndpointRequestTTL: 0s}");
    let resolved = serde_json::to_value(&pipeline.resolved).unwrap();
    let policy = |plugin: &str| serde_json::json!({"plugin": plugin, "defaulted": true});
    let band = |priority: &str| {
        serde_json::json!({
            "priority": priority,
            "maxRequests": 5000,
            "maxBytes": 1_000_000_000,
            "fairnessPolicy": policy("global-strict-fairness-policy"),
            "orderingPolicy": policy("fcfs-ordering-policy"),
        })
    };
    let expected = serde_json::json!({
        "maxRequests": 50,
        "maxBytes": null,
        "defaultRequestTTL": "90s",
        "noEndpointRequestTTL": null,
        "bands": [band("0"), band("others"), band("others below 0")],
        "usageLimitPolicy": policy("static-usage-limit-policy"),
        "enableEviction": false,
    });
    assert_eq!(resolved["flowControl"], expected);
    let off = serde_json::to_value(build("plugins: [{type: queue-scorer}]\n").unwrap().resolved).unwrap();
    assert!(off.get("flowControl").is_none());
}
