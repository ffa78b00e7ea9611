//! References outside of profiles: to nothing, or to what can't stand there.

use super::{assert_marked, assert_refused, build};

const PLUGINS: &str = "plugins: [{type: queue-scorer}, {type: metrics-data-source}, {type: models-data-source}, \
                       {type: core-metrics-extractor}, {type: models-data-extractor}]\n";

/// `line` behind two declared plugins and with the gate of flow control open.
#[track_caller]
fn assert_line_refused(line: &str, message: &str, hint: &str) {
    assert_marked(&format!("{PLUGINS}featureGates: [flowControl]\n{line}\n"), message, hint);
}

#[test]
fn parser_references_need_a_parser() {
    let table = [
        (
            "requestHandler: {parsers: [{pluginRef: ^queue-scorer}]}",
            "'queue-scorer', which is not a parser",
            "",
        ),
        ("requestHandler: {parsers: [{pluginRef: ^mine}]}", "the undeclared plugin 'mine'", "declare it"),
        (
            "requestHandler: {parsers: [{pluginRef: ^openai-parsr}]}",
            "requestHandler.parsers refers to the undeclared plugin 'openai-parsr'",
            "did you mean `openai-parser`?",
        ),
        ("requestHandler: {parsers: [{pluginRef: ^''}]}", "the undeclared plugin ''", "declare it"),
        ("parser: {pluginRef: ^mine}", "the undeclared plugin 'mine'", "declare it"),
        ("parser: {pluginRef: ^random-picker}", "'random-picker', which is not a parser", ""),
        (
            "parser: {pluginRef: ^multicluster-metrics-data-source}",
            "'multicluster-metrics-data-source' is not supported by this version",
            "",
        ),
    ];
    for (line, message, hint) in table {
        assert_line_refused(line, message, hint);
    }
}

#[test]
fn saturation_detector_reference_needs_a_detector() {
    let not_one =
        "flowControl.saturationDetector refers to 'queue-scorer', which is not a saturation detector";
    let nothing = "flowControl.saturationDetector refers to the undeclared plugin";
    let table = [
        ("flowControl: {saturationDetector: {pluginRef: ^queue-scorer}}", not_one, ""),
        ("saturationDetector: {pluginRef: ^queue-scorer}", not_one, ""),
        ("saturationDetector: {pluginRef: ^mine}", nothing, "declare it"),
        ("flowControl: {saturationDetector: {pluginRef: ^concurrency-detector}}", nothing, "declare it"),
        (
            "flowControl: {saturationDetector: {pluginRef: ^utilisation-detector}}",
            nothing,
            "did you mean `utilization-detector`?",
        ),
    ];
    for (line, message, hint) in table {
        assert_line_refused(line, message, hint);
    }
    assert_marked(
        "plugins: [{name: utilization-detector, type: queue-scorer}]\nsaturationDetector: {pluginRef: ^utilization-detector}\n",
        "which is not a saturation detector",
        "",
    );
}

#[test]
fn data_layer_references_need_the_right_kind() {
    let table = [
        (
            "dataLayer: {discovery: {pluginRef: ^queue-scorer}}",
            "dataLayer.discovery refers to 'queue-scorer', which is not a discovery plugin",
            "",
        ),
        ("dataLayer: {discovery: {pluginRef: ^files}}", "the undeclared plugin 'files'", "declare it"),
        (
            "dataLayer: {sources: [{pluginRef: ^nothing}]}",
            "dataLayer.sources refers to the undeclared plugin 'nothing'",
            "declare it",
        ),
        ("dataLayer: {sources: [{pluginRef: ^queue-scorer}]}", "which is not a data source", ""),
        (
            "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: ^queue-scorer}]}]}",
            "extractors refers to 'queue-scorer', which is not an extractor",
            "",
        ),
        (
            "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: ^nothing}]}]}",
            "extractors refers to the undeclared plugin 'nothing'",
            "declare it",
        ),
        (
            "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: ^models-data-extractor}]}]}",
            "reads lists of models, and data source 'metrics-data-source' brings metrics",
            "the other kind",
        ),
        (
            "dataLayer: {sources: [{pluginRef: models-data-source, extractors: [{pluginRef: ^core-metrics-extractor}]}]}",
            "reads metrics, and data source 'models-data-source' brings lists of models",
            "the other kind",
        ),
        (
            "dataLayer: {crossReplicaSyncerPluginRef: ^queue-scorer}",
            "dataLayer.crossReplicaSyncerPluginRef refers to 'queue-scorer', which is not a cross-replica syncer",
            "",
        ),
        (
            "dataLayer: {crossReplicaSyncerPluginRef: ^nothing}",
            "the undeclared plugin 'nothing'",
            "declare it",
        ),
        (
            "dataLayer: {peerDiscovery: {pluginRef: ^queue-scorer}}",
            "dataLayer.peerDiscovery refers to 'queue-scorer', which is not a peer discovery plugin",
            "",
        ),
        (
            "dataLayer: {peerDiscovery: {pluginRef: ^nothing}}",
            "the undeclared plugin 'nothing'",
            "declare it",
        ),
    ];
    for (line, message, hint) in table {
        assert_line_refused(line, message, hint);
    }
}

/// Mistakes in flow control, most of them wrong references: the line with a mark at the place, the message,
/// and the hint.
const FLOW: [(&str, &str, &str); 7] = [
    (
        "flowControl: {priorityBands: [{priority: 1, orderingPolicyRef: ^nothing}]}",
        "orderingPolicyRef refers to the undeclared plugin 'nothing'",
        "declare it",
    ),
    (
        "flowControl: {priorityBands: [{orderingPolicyRef: ^global-strict-fairness-policy}]}",
        "orderingPolicyRef refers to 'global-strict-fairness-policy', which is not an ordering policy",
        "",
    ),
    (
        "flowControl: {defaultPriorityBand: {fairnessPolicyRef: ^fcfs-ordering-policy}}",
        "fairnessPolicyRef refers to 'fcfs-ordering-policy', which is not a fairness policy",
        "",
    ),
    (
        "flowControl: {defaultNegativePriorityBand: {fairnessPolicyRef: ^round-robin-fairness-policy}}",
        "fairnessPolicyRef refers to the undeclared plugin 'round-robin-fairness-policy'",
        "declare it",
    ),
    (
        "flowControl: {usageLimitPolicyPluginRef: ^fcfs-ordering-policy}",
        "usageLimitPolicyPluginRef refers to 'fcfs-ordering-policy', which is not a usage limit policy",
        "",
    ),
    (
        "flowControl: {usageLimitPolicyPluginRef: ^nothing}",
        "usageLimitPolicyPluginRef refers to the undeclared plugin 'nothing'",
        "declare it",
    ),
    (
        "flowControl:\n  priorityBands:\n  - priority: 1\n  - ^priority: 1\n",
        "priority 1 has two bands",
        "keep one of them",
    ),
];

#[test]
fn flow_control_references_need_the_right_kind() {
    for (line, message, hint) in FLOW {
        assert_line_refused(line, message, hint);
    }
}

#[test]
fn flow_control_is_ignored_without_its_gate() {
    for (line, ..) in FLOW {
        let pipeline = build(&format!("{}\n", line.replace('^', ""))).expect(line);
        let note = "flowControl has no effect without the feature gate flowControl";
        assert!(pipeline.notes.iter().any(|other| other == note), "{line}: {:?}", pipeline.notes);
    }
}

#[test]
fn consumed_data_needs_a_producer() {
    let scorer = |producer: &str| {
        format!(
            "plugins:\n- {{type: queue-scorer}}\n- {{name: busy, type: active-request-scorer, parameters: {{inFlightLoadProducerName: {producer}}}}}\n"
        )
    };
    let table = [
        (
            "inflight-load",
            "plugin 'busy': it reads InFlightLoad from the plugin 'inflight-load', which is not declared",
            "did you mean `inflight-load-producer`?",
        ),
        (
            "queue-scorer",
            "plugin 'busy': it reads InFlightLoad from the plugin 'queue-scorer', which does not produce it",
            "name a plugin that does",
        ),
        (
            "mine",
            "plugin 'busy': it reads InFlightLoad from the plugin 'mine', which is not declared",
            "declare it under plugins",
        ),
    ];
    for (producer, message, hint) in table {
        let error = assert_refused(&scorer(producer), (3, 3), message, hint);
        assert_eq!(error.plugin(), Some("busy"));
    }
    let declared = "- {name: counter, type: inflight-load-producer}\n";
    assert_refused(&(scorer("countr") + declared), (3, 3), "not declared", "did you mean `counter`?");
    // One of the default's name that is something else is not replaced.
    let taken =
        "plugins:\n- {name: inflight-load-producer, type: queue-scorer}\n- ^type: active-request-scorer\n";
    assert_marked(taken, "which does not produce it", "name a plugin that does");
}
