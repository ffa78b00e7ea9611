//! Plugins that don't exist, or don't fit into their places in profiles.

use super::{assert_marked, build};

#[test]
fn plugin_types_must_be_registered() {
    let table = [
        (
            "plugins:\n- type: ^queue-score\n",
            "plugin 'queue-score': plugin type 'queue-score' is not registered",
            "did you mean `queue-scorer`?",
        ),
        (
            "plugins:\n- {name: mine, type: ^zebra}\n",
            "plugin 'mine': plugin type 'zebra' is not registered",
            "",
        ),
        (
            "plugins: [{type: ^round-robin}]\n",
            "plugin type 'round-robin' is not registered",
            "did you mean `round-robin-fairness-policy`?",
        ),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
}

#[test]
fn profile_references_must_exist() {
    let table = [
        (
            "plugins: [{type: queue-scorer}]\nschedulingProfiles:\n- name: a\n  plugins:\n  - pluginRef: ^queue-scores\n",
            "profile 'a' refers to the undeclared plugin 'queue-scores'",
            "did you mean `queue-scorer`?",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: ^queue-scorer}]}]\n",
            "profile 'a' refers to the undeclared plugin 'queue-scorer'",
            "declare it under plugins",
        ),
        // Producers are added behind the profiles' backs.
        (
            "plugins: [{type: active-request-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: ^inflight-load-producer}]}]\n",
            "profile 'a' refers to the undeclared plugin 'inflight-load-producer'",
            "declare it under plugins",
        ),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
}

#[test]
fn a_profile_has_one_picker() {
    let table = [
        (
            "plugins: [{type: max-score-picker}, {type: random-picker}]\nschedulingProfiles:\n- name: a\n  plugins:\n  - pluginRef: max-score-picker\n  - pluginRef: ^random-picker\n",
            "profile 'a' already has the picker 'max-score-picker'",
        ),
        (
            "plugins: [{type: max-score-picker}, ^{type: random-picker}]\n",
            "profile 'default' already has the picker 'max-score-picker'",
        ),
        (
            "plugins: [{type: random-picker}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: random-picker}, {pluginRef: ^random-picker}]}]\n",
            "profile 'a' already has the picker 'random-picker'",
        ),
    ];
    for (text, message) in table {
        assert_marked(text, message, "a profile has one picker");
    }
    assert_marked(
        "plugins: [^{name: max-score-picker, type: queue-scorer}]\nschedulingProfiles:\n- name: a\n",
        "the plugin 'max-score-picker' is not a picker",
        "give it another name",
    );
}

#[test]
fn one_handler_chooses_among_several_profiles() {
    let table = [
        ("schedulingProfiles:\n- name: a\n- name: ^b\n", "no profile handler configured", "declare one"),
        (
            "plugins:\n- ^type: single-profile-handler\nschedulingProfiles:\n- name: a\n- name: b\n",
            "can't choose among multiple scheduling profiles, and there are 2",
            "",
        ),
        (
            "plugins:\n- type: single-profile-handler\n- ^{name: two, type: single-profile-handler}\n",
            "multiple profile handlers found: 'single-profile-handler' and 'two'",
            "declare one",
        ),
    ];
    for (text, message, hint) in table {
        assert_marked(text, message, hint);
    }
}

/// A defect of each phase of loading, in the order of the phases. Two of them do not
/// disturb each other: they are in different sections, or one section holds both.
const PHASES: [(&str, &str, &str); 11] = [
    ("featureGates", "[sorcery]", "unknown feature gate"),
    ("plugins", "{type: zebra}", "is not registered"),
    ("plugins", "{type: max-score-picker, parameters: {x: 1}}", "unknown field 'x'"),
    (
        "requestHandler",
        "{parsers: [{pluginRef: multicluster-metrics-data-source}]}",
        "not supported by this version",
    ),
    ("schedulingProfiles", "[{name: a, plugins: [{pluginRef: nothing}]}]", "profile 'a' refers to"),
    ("saturationDetector", "{pluginRef: nothing}", "saturationDetector refers to the undeclared"),
    (
        "plugins",
        "{name: h1, type: single-profile-handler}, {name: h2, type: single-profile-handler}",
        "multiple",
    ),
    ("dataLayer", "{discovery: {pluginRef: fcfs-ordering-policy}}", "is not a discovery plugin"),
    ("flowControl", "{priorityBands: [{priority: 1}, {priority: 1}]}", "has two bands"),
    ("saturationDetector", "{pluginRef: fcfs-ordering-policy}", "is not a saturation detector"),
    (
        "plugins",
        "{type: active-request-scorer, parameters: {inFlightLoadProducerName: nobody}}",
        "it reads InFlightLoad",
    ),
];

#[test]
fn error_of_the_earlier_phase_is_reported() {
    for (first, (section, value, message)) in PHASES.iter().enumerate() {
        for (other_section, other, _) in &PHASES[first + 1..] {
            if section == other_section && *section != "plugins" {
                continue;
            }
            let mut sections = vec![("featureGates", "[flowControl]".to_owned())];
            for (section, value) in [(section, value), (other_section, other)] {
                match sections.iter_mut().find(|(known, _)| known == section) {
                    Some((_, known)) if *section == "plugins" => *known += &format!(", {value}"),
                    Some((_, known)) => *known = (*value).to_owned(),
                    None => sections.push((section, (*value).to_owned())),
                }
            }
            let line = |(section, value): &(&str, String)| match *section {
                "plugins" => format!("plugins: [{value}]\n"),
                section => format!("{section}: {value}\n"),
            };
            let text: String = sections.iter().map(line).collect();
            let error = build(&text).expect_err(&text);
            assert!(error.message().contains(message), "{text}{error}");
        }
    }
}
