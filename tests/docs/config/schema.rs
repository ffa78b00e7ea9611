//! Keys that are not in the schema, and values that are not of its types.

use super::{assert_marked, build};

#[test]
fn unknown_and_repeated_keys_are_refused() {
    let table = [
        ("^surprise: true\n", "unknown field 'surprise'", "known here: apiVersion, kind"),
        ("^plugin: []\n", "unknown field 'plugin'", "did you mean `plugins`?"),
        ("^data: {sources: []}\n", "unknown field 'data'", "did you mean `dataLayer`?"),
        ("^Plugins: []\n", "unknown field 'Plugins'", "did you mean `plugins`?"),
        ("plugins: []\n^plugins: []\n", "'plugins' appears twice", "keep one"),
        (
            "plugins:\n- type: queue-scorer\n- {type: random-picker, ^paramters: {}}\nkind: EndpointPickerConfig\n",
            "plugin 'random-picker': unknown field 'paramters'",
            "did you mean `parameters`?",
        ),
        ("plugins: [{type: random-picker, ^type: random-picker}]\n", "'type' appears twice", "keep one"),
        ("schedulingProfiles: [{name: a, ^plugin: []}]\n", "unknown field 'plugin'", "`plugins`"),
        (
            "schedulingProfiles:\n- name: default\n  plugins:\n  - {pluginRef: queue-scorer, ^wieght: 3}\n",
            "unknown field 'wieght'",
            "did you mean `weight`?",
        ),
        ("dataLayer: {^injectDefault: true}\n", "unknown field 'injectDefault'", "`injectDefaults`"),
        (
            "dataLayer: {sources: [{pluginRef: a, ^extractor: []}]}\n",
            "unknown field 'extractor'",
            "`extractors`",
        ),
        (
            "dataLayer: {discovery: {pluginRef: a, ^type: b}}\n",
            "unknown field 'type'",
            "known here: pluginRef",
        ),
        ("flowControl: {^maxByte: 1}\n", "unknown field 'maxByte'", "`maxBytes`"),
        (
            "flowControl: {^defaultRequestTtl: 1s}\n",
            "unknown field 'defaultRequestTtl'",
            "`defaultRequestTTL`",
        ),
        (
            "flowControl: {priorityBands: [{priority: 1, ^fairnessPolicy: a}]}\n",
            "unknown field 'fairnessPolicy'",
            "`fairnessPolicyRef`",
        ),
        ("requestHandler: {^parser: a}\n", "unknown field 'parser'", "`parsers`"),
        ("saturationDetector: {^plugin: a}\n", "unknown field 'plugin'", "`pluginRef`"),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
}

#[test]
fn values_have_their_types() {
    let table = [
        ("^just text\n", "expected a map, found 'just text'", ""),
        ("^~\n", "expected a map, found nothing", ""),
        ("kind: ^3\n", "kind: expected text, found 3", "quotes"),
        ("apiVersion: ^1.5\n", "apiVersion: expected text, found 1.5", "quotes"),
        ("featureGates: ^flowControl\n", "featureGates: expected a list, found 'flowControl'", ""),
        ("featureGates: [^true]\n", "expected text, found true", "quotes"),
        ("plugins: ^3\n", "plugins: expected a list, found 3", ""),
        ("plugins: [^3]\n", "expected a map, found 3", ""),
        ("plugins: [^[a, b]]\n", "expected a map, found a list", ""),
        ("plugins:\n- type: ^3\n", "type: expected text, found 3", "quotes"),
        ("plugins:\n- type: ^yes\n", "type: expected text, found true", "quotes"),
        ("plugins:\n- {type: queue-scorer, name: ^7}\n", "name: expected text, found 7", "quotes"),
        ("schedulingProfiles: ^{name: a}\n", "schedulingProfiles: expected a list, found a map", ""),
        (
            "schedulingProfiles:\n- name: a\n  plugins:\n  - {pluginRef: q, weight: ^two}\n",
            "weight: expected a number, found 'two'",
            "write for example 2 or 0.5",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: q, weight: ^'2'}]}]\n",
            "weight: expected a number, found '2'",
            "without quotes",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: q, weight: ^.inf}]}]\n",
            "a weight has to be a finite number",
            "",
        ),
        (
            "dataLayer: {injectDefaults: ^maybe}\n",
            "injectDefaults: expected true or false, found 'maybe'",
            "",
        ),
        (
            "dataLayer: {discovery: ^file-discovery}\n",
            "discovery: expected a map, found 'file-discovery'",
            "",
        ),
        ("dataLayer: {sources: [^{extractors: []}]}\n", "'pluginRef' is missing", ""),
        ("dataLayer: {discovery: ^{}}\n", "'pluginRef' is missing", ""),
        ("requestHandler: {parsers: [^{pluginRef: ~}]}\n", "'pluginRef' is missing", ""),
        ("requestHandler: {parsers: [^openai-parser]}\n", "expected a map, found 'openai-parser'", ""),
        ("flowControl: {enableEviction: ^1}\n", "enableEviction: expected true or false, found 1", ""),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
}

#[test]
fn durations_and_quantities_have_their_notation() {
    let quantity = "is not a quantity; write for example 500, 10Mi or 1G";
    let duration = "is not a duration; write for example 50ms, 30s or 1h30m";
    let table = [
        ("flowControl: {maxBytes: ^10MB}\n", format!("maxBytes: \"10MB\" {quantity}")),
        ("flowControl: {maxRequests: ^many}\n", format!("maxRequests: \"many\" {quantity}")),
        ("flowControl: {maxBytes: ^-1}\n", "maxBytes: \"-1\" is negative; write".to_owned()),
        ("flowControl: {maxRequests: ^'-5'}\n", "maxRequests: \"-5\" is negative; write".to_owned()),
        ("flowControl: {maxBytes: ^16Ei}\n", "maxBytes: \"16Ei\" is too large".to_owned()),
        (
            "flowControl: {defaultPriorityBand: {maxBytes: ^-1}}\n",
            "maxBytes: \"-1\" is negative; write".to_owned(),
        ),
        ("flowControl: {priorityBands: [{maxRequests: ^1x}]}\n", format!("maxRequests: \"1x\" {quantity}")),
        (
            "flowControl: {defaultRequestTTL: ^5 minutes}\n",
            format!("defaultRequestTTL: \"5 minutes\" {duration}"),
        ),
        ("flowControl: {noEndpointRequestTTL: ^-1s}\n", format!("noEndpointRequestTTL: \"-1s\" {duration}")),
        ("flowControl: {defaultRequestTTL: ^''}\n", format!("defaultRequestTTL: \"\" {duration}")),
        (
            "flowControl: {defaultRequestTTL: ^9999999h}\n",
            "defaultRequestTTL: \"9999999h\" is longer than a duration can be".to_owned(),
        ),
        (
            "dataLayer: {crossReplicaSyncInterval: ^soon}\n",
            format!("crossReplicaSyncInterval: \"soon\" {duration}"),
        ),
        (
            "flowControl: {priorityBands: [{priority: ^1.5}]}\n",
            "priority: expected a whole number from -2147483648 to 2147483647, found 1.5".to_owned(),
        ),
        (
            "flowControl: {priorityBands: [{priority: ^3000000000}]}\n",
            "priority: expected a whole number from -2147483648 to 2147483647, found 3000000000".to_owned(),
        ),
    ];
    for (text, message) in table {
        assert_marked(text, &message, "");
    }
    assert_marked("flowControl: {defaultRequestTTL: ^5}\n", "expected text, found 5", "quotes");
}

#[test]
fn a_key_without_a_value_counts_as_absent() {
    let keys = [
        "apiVersion",
        "kind",
        "featureGates",
        "plugins",
        "schedulingProfiles",
        "dataLayer",
        "flowControl",
        "requestHandler",
        "saturationDetector",
        "parser",
    ];
    for key in keys {
        assert!(build(&format!("{key}:\n")).is_ok(), "{key}");
    }
    let nested = "plugins: [{type: queue-scorer, name: , parameters: }]
schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: }]}]
dataLayer: {sources: , discovery: , peerDiscovery: , crossReplicaSyncerPluginRef: '', crossReplicaSyncInterval: }
flowControl: {maxBytes: , defaultRequestTTL: , priorityBands: , saturationDetector: }
apiVersion: ''
kind: ''
";
    assert!(build(nested).is_ok(), "{:?}", build(nested).err());
}
