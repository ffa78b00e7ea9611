//! Keys and their values, as far as they can be judged without knowing the plugins.

use super::assert_marked;

#[test]
fn unknown_api_versions_are_refused() {
    let table = [
        ("kind: ^Pod\n", "kind 'Pod' is not known", "write kind: EndpointPickerConfig"),
        ("apiVersion: ^llm-d.ai/v2\n", "apiVersion 'llm-d.ai/v2' is not known", "llm-d.ai/v1alpha1"),
        ("apiVersion: ^v1alpha1\n", "apiVersion 'v1alpha1' is not known", "llm-d.ai/v1alpha1"),
        (
            "apiVersion: ^inference.networking.k8s.io/v1alpha1\n",
            "apiVersion 'inference.networking.k8s.io/v1alpha1' is not known",
            "llm-d.ai/v1alpha1",
        ),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
}

#[test]
fn unknown_feature_gates_are_refused() {
    let table = [
        ("featureGates: [^sorcery]\n", "unknown feature gate 'sorcery'", "known here: flowControl, ha"),
        ("featureGates: [^flowcontrol]\n", "unknown feature gate", "did you mean `flowControl`?"),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
    for gone in ["dataLayer", "prepareDataPlugins", "enableLegacyMetrics"] {
        let text = format!("featureGates:\n- ^{gone}\n");
        assert_marked(&text, &format!("unknown feature gate '{gone}'"), "older versions had it");
    }
    for value in ["maybe", "yes", "", "2"] {
        let text = format!("featureGates: [^'flowControl={value}']\n");
        let message = format!("feature gate 'flowControl': {value:?} is not a boolean; write true or false");
        assert_marked(&text, &message, "");
    }
}

#[test]
fn plugins_need_a_type_and_a_unique_name() {
    let table = [
        ("plugins:\n- ^name: x\n", "plugin 'x' is missing a type", ""),
        ("plugins:\n- ^{name: x, type: ''}\n", "plugin 'x' is missing a type", ""),
        ("plugins:\n- ^parameters: {}\n", "plugin '' is missing a type", ""),
        (
            "plugins:\n- type: queue-scorer\n- type: ^queue-scorer\n",
            "duplicate plugin name 'queue-scorer'",
            "another name",
        ),
        (
            "plugins:\n- {name: q, type: queue-scorer}\n- {name: ^q, type: random-picker}\n",
            "duplicate plugin name 'q'",
            "another name",
        ),
        (
            "plugins:\n- {name: random-picker, type: queue-scorer}\n- type: ^random-picker\n",
            "duplicate plugin name 'random-picker'",
            "another name",
        ),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
}

#[test]
fn profiles_need_a_unique_name() {
    let table = [
        ("schedulingProfiles: [^{plugins: []}]\n", "a scheduling profile is missing a name", "name: default"),
        ("schedulingProfiles: [{name: ^''}]\n", "a scheduling profile is missing a name", "name: default"),
        ("schedulingProfiles:\n- name: a\n- name: ^a\n", "duplicate scheduling profile 'a'", "another name"),
        (
            "schedulingProfiles: [{name: a, plugins: [^{weight: 1}]}]\n",
            "profile 'a' has an entry without a pluginRef",
            "name a plugin",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: ^''}]}]\n",
            "profile 'a' has an entry without a pluginRef",
            "name a plugin",
        ),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
}
