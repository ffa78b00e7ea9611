//! Handlers that disaggregate, and their deciders.

use serde_json::{Value, json};
use usher::registry::Pipeline;

use super::{assert_marked, build};

/// These parameters of a handler, with deciders, a scorer and a profile for each stage.
fn config(handler: &str, parameters: &str) -> String {
    format!(
        "
plugins:
- {{type: queue-scorer}}
- {{type: {handler}, parameters: {parameters}}}
- {{name: cached, type: prefix-based-pd-decider, parameters: {{nonCachedTokens: 16}}}}
- {{type: always-disagg-pd-decider}}
- {{name: images, type: always-disagg-multimodal-decider}}
schedulingProfiles: [{{name: decode}}, {{name: prefill}}, {{name: encode}}]
"
    )
}

const DISAGG: &str = "disagg-profile-handler";
const PD: &str = "pd-profile-handler";

fn parameters(pipeline: &Pipeline, plugin: &str) -> Value {
    pipeline.resolved.plugins.iter().find(|found| found.name == plugin).unwrap().parameters.clone()
}

fn is_noted(pipeline: &Pipeline, text: &str) -> bool {
    pipeline.notes.iter().any(|note| note.contains(text))
}

#[test]
fn stage_order_is_read_in_every_spelling() {
    let decode =
        ["decode-first", "decode", "decodeFirst", "decode_first", "decodefirst", "DecodeFirst", "''", "~"];
    let prefill =
        ["prefill-first", "prefill", "prefillFirst", "prefill_first", "prefillfirst", "PrefillFirst"];
    let spellings = |order, of: &[&str]| {
        for written in of {
            let built = build(&config(DISAGG, &format!("{{stageOrder: {written}}}"))).expect(written);
            assert_eq!(parameters(&built, DISAGG)["stageOrder"], order, "{written}");
        }
    };
    spellings("decode-first", &decode);
    spellings("prefill-first", &prefill);
    let table = [
        ("^encode-first", "stageOrder 'encode-first' is not known", "`decode-first`"),
        ("^first", "stageOrder 'first' is not known", "write decode-first or prefill-first"),
        ("^decode first", "stageOrder 'decode first' is not known", "`decode-first`"),
        ("^1", "stageOrder: expected text, found 1", "put it in quotes"),
    ];
    for (written, message, hint) in table {
        assert_marked(&config(DISAGG, &format!("{{stageOrder: {written}}}")), message, hint);
    }
}

#[test]
fn stages_are_written_in_maps_or_flat() {
    let stages = |decode: &str, prefill: &str, encode: &str| json!({"decode": decode, "prefill": prefill, "encode": encode});
    let deciders = |prefill: Value, encode: Value| json!({"prefill": prefill, "encode": encode});
    let flat = |prefill_key: &str, prefill: Value, encode: Value| {
        json!({
            "stageOrder": "decode-first",
            "decodeProfile": "decode",
            "prefillProfile": "prefill",
            "encodeProfile": "encode",
            prefill_key: prefill,
            "encodeDeciderPluginName": encode,
        })
    };
    let maps = |profiles: Value, deciders: Value| json!({"stageOrder": "decode-first", "profiles": profiles, "deciders": deciders});
    let default = stages("decode", "prefill", "encode");
    let nobody = deciders(Value::Null, Value::Null);
    let (long, short) = ("prefillDeciderPluginName", "deciderPluginName");
    let table = [
        ("{}", maps(default.clone(), nobody.clone())),
        ("{profiles: {}, deciders: {}}", maps(default.clone(), nobody.clone())),
        ("{profiles: , deciders: {prefill: ''}, decodeProfile: ''}", maps(default.clone(), nobody.clone())),
        (
            "{profiles: {decode: encode, encode: decode}, deciders: {encode: images, prefill: cached}}",
            maps(stages("encode", "prefill", "decode"), deciders(json!("cached"), json!("images"))),
        ),
        ("{prefillDeciderPluginName: cached}", flat(long, json!("cached"), Value::Null)),
        ("{deciderPluginName: cached}", flat(short, json!("cached"), Value::Null)),
        ("{encodeDeciderPluginName: images}", flat(long, Value::Null, json!("images"))),
        (
            "{prefillDeciderPluginName: cached, deciderPluginName: always-disagg-pd-decider}",
            flat(long, json!("cached"), Value::Null),
        ),
        (
            "{prefillDeciderPluginName: '', deciderPluginName: cached, profiles: {decode: ''}}",
            flat(short, json!("cached"), Value::Null),
        ),
    ];
    for (written, expected) in table {
        let built = build(&config(DISAGG, written)).expect(written);
        assert_eq!(parameters(&built, DISAGG), expected, "{written}");
        let is_flat = expected.get("decodeProfile").is_some();
        assert_eq!(is_noted(&built, "its flat parameters are deprecated"), is_flat, "{written}");
    }
}

#[test]
fn unsupported_handler_parameters_are_refused() {
    let both = "given in the flat form of older versions, and also under profiles or deciders";
    let always = "with stageOrder prefill-first, prefill always runs and can't have a decider";
    let twice = "is given to two stages";
    let table = [
        ("{profiles: {decode: decode}, deciderPluginName: ^cached}", both, "under profiles and deciders"),
        ("{prefillProfile: ^prefill, deciders: {encode: images}}", both, "under profiles and deciders"),
        ("{stageOrder: prefill-first, deciders: {prefill: ^cached}}", always, "stageOrder: decode-first"),
        ("{deciderPluginName: ^cached, stageOrder: prefill}", always, "leave out the decider"),
        ("{profiles: {prefill: ^decode}}", twice, "a profile of its own"),
        ("{profiles: {encode: a, prefill: ^a}}", twice, "a profile of its own"),
        ("{encodeProfile: ^prefill}", twice, "a profile of its own"),
        ("{^decider: cached}", "unknown field 'decider'", "`deciders`"),
        ("{profiles: {^prefil: a}}", "unknown field 'prefil'", "`prefill`"),
        ("{deciders: {^decode: a}}", "unknown field 'decode'", "`encode`"),
        ("{deciders: {prefill: ^3}}", "expected text, found 3", "put it in quotes"),
        ("{^primaryPort: 8000}", "unknown field 'primaryPort'", ""),
    ];
    for (written, message, hint) in table {
        let error = assert_marked(&config(DISAGG, written), message, hint);
        assert_eq!(error.plugin(), Some(DISAGG));
    }
}

#[test]
fn decider_references_need_a_declared_decider() {
    let undeclared = "it refers to the undeclared plugin";
    let table = [
        (DISAGG, "{deciders: {prefill: ^nothing-here}}", undeclared, "declare it"),
        (DISAGG, "{deciders: {encode: ^image}}", undeclared, "did you mean `images`?"),
        (DISAGG, "{deciderPluginName: ^nothing-here}", undeclared, "declare it"),
        (
            DISAGG,
            "{deciders: {prefill: ^queue-scorer}}",
            "deciders.prefill refers to 'queue-scorer', which is not a decider",
            "it is a scorer",
        ),
        (
            DISAGG,
            "{deciders: {encode: ^queue-scorer}}",
            "deciders.encode refers to 'queue-scorer', which is not a decider",
            "it is a scorer",
        ),
        (
            DISAGG,
            "{deciderPluginName: ^queue-scorer}",
            "deciderPluginName refers to 'queue-scorer', which is not a decider",
            "it is a scorer",
        ),
        (
            DISAGG,
            "{encodeDeciderPluginName: ^queue-scorer}",
            "encodeDeciderPluginName refers to 'queue-scorer', which is not a decider",
            "it is a scorer",
        ),
        (DISAGG, "{deciders: {prefill: disagg-profile-handler}}", "refer to each other", "name another"),
        (PD, "^{}", "it refers to the undeclared plugin 'prefix-based-pd-decider'", "declare it"),
        (PD, "{deciderPluginName: ^nothing-here}", undeclared, "declare it"),
        (PD, "{deciderPluginName: cached, prefixPluginName: ^nothing-here}", undeclared, "declare it"),
        (
            PD,
            "{deciderPluginName: ^queue-scorer}",
            "deciderPluginName refers to 'queue-scorer', which is not a decider",
            "it is a scorer",
        ),
    ];
    for (handler, written, message, hint) in table {
        let text = config(handler, written);
        if !text.contains('^') {
            let error = build(&text).unwrap_err();
            assert!(
                error.message().contains(message) && error.hint_text().unwrap().contains(hint),
                "{error}"
            );
            continue;
        }
        let error = assert_marked(&text, message, hint);
        assert_eq!(error.plugin(), Some(handler));
    }
}

#[test]
fn deciders_may_be_declared_behind_their_handler_and_used_twice() {
    let text = "
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: any, encode: any}}}
- {name: any, type: always-disagg-pd-decider, parameters: {x: ignored}}
schedulingProfiles: [{name: decode}, {name: prefill}, {name: encode}]
";
    let built = build(text).unwrap();
    let names: Vec<_> = built.resolved.plugins.iter().map(|plugin| plugin.name.as_str()).take(2).collect();
    assert_eq!(names, [DISAGG, "any"]);
    assert!(is_noted(&built, "plugin 'any': always-disagg-pd-decider takes no parameters"));
}

#[test]
fn numbers_of_deciders_are_not_negative() {
    let decider = |parameters: &str| {
        format!("plugins: [{{type: prefix-based-pd-decider, parameters: {parameters}}}]\n")
    };
    let table = [
        ("{nonCachedTokens: ^-1}", "nonCachedTokens can't be -1", "0 or more"),
        ("{promptTokens: ^-5}", "promptTokens can't be -5", "0 or more"),
        ("{nonCachedTokens: ^1.5}", "expected a whole number, found 1.5", ""),
        ("{^nonCachedToken: 1}", "unknown field 'nonCachedToken'", "`nonCachedTokens`"),
    ];
    for (written, message, hint) in table {
        assert_marked(&decider(written), message, hint);
    }
    let built = build(&decider("{nonCachedTokens: 512}")).unwrap();
    let expected = json!({"nonCachedTokens": 512, "promptTokens": 0});
    assert_eq!(parameters(&built, "prefix-based-pd-decider"), expected);
}

#[test]
fn pd_profile_handler_accepts_its_old_parameters() {
    let built = build(&config(
        PD,
        "{deciderPluginName: cached, decodeProfile: '', prefixPluginType: x, prefixPluginName: queue-scorer, primaryPort: 0}",
    ))
    .unwrap();
    let expected = json!({
        "decodeProfile": "decode",
        "prefillProfile": "prefill",
        "deciderPluginName": "cached",
        "primaryPort": 0,
        "prefixMatchInfoProducerName": "approx-prefix-cache-producer",
    });
    assert_eq!(parameters(&built, PD), expected);
    assert!(is_noted(&built, "pd-profile-handler is deprecated, use disagg-profile-handler"));
    assert!(is_noted(&built, "profile 'encode' never runs, as it is of no stage"));
    let table = [
        ("{deciderPluginName: cached, primaryPort: ^-1}", "primaryPort can't be -1", "1 to 65535"),
        ("{deciderPluginName: cached, primaryPort: ^65536}", "primaryPort can't be 65536", "1 to 65535"),
        ("{deciderPluginName: cached, prefillProfile: ^decode}", "is given to two stages", "of its own"),
        ("{deciderPluginName: cached, ^stageOrder: x}", "unknown field 'stageOrder'", "decodeProfile"),
        (
            "{deciderPluginName: cached, decodeProfile: other}",
            "no scheduling profile 'other'",
            "decodeProfile",
        ),
    ];
    for (written, message, hint) in table {
        let text = config(PD, written);
        if !text.contains('^') {
            let error = build(&text).unwrap_err();
            assert!(
                error.message().contains(message) && error.hint_text().unwrap().contains(hint),
                "{error}"
            );
            continue;
        }
        assert_marked(&text, message, hint);
    }
}

#[test]
fn missing_decode_profile_is_refused() {
    let text = "
plugins:
- {type: queue-scorer}
- ^{name: h, type: disagg-profile-handler, parameters: PARAMETERS}
schedulingProfiles: [{name: decoder}, {name: prefill}]
";
    for (parameters, profile, hint) in [
        ("{}", "'decode'", "did you mean `decoder`?"),
        (
            "{profiles: {decode: main}}",
            "'main'",
            "name one of the profiles in profiles.decode: decoder, prefill",
        ),
        ("{decodeProfile: main}", "'main'", "name one of the profiles in decodeProfile: decoder, prefill"),
    ] {
        let text = text.replace("PARAMETERS", parameters);
        let error =
            assert_marked(&text, &format!("plugin 'h': there is no scheduling profile {profile}"), hint);
        assert_eq!(error.plugin(), Some("h"));
    }
}

#[test]
fn stages_that_never_run_are_noted() {
    let (prefill, encode) = (
        "profile 'prefill' never runs, as prefill has no decider",
        "profile 'encode' never runs, as encode has",
    );
    let table = [
        ("{}", vec![prefill, encode]),
        ("{stageOrder: prefill-first}", vec![encode]),
        ("{deciders: {prefill: cached}}", vec![encode]),
        ("{deciders: {prefill: cached, encode: images}}", vec![]),
        (
            "{profiles: {prefill: p}, deciders: {prefill: cached, encode: images}}",
            vec![
                "prefill never runs, as there is no profile 'p'",
                "profile 'prefill' never runs, as it is of no stage",
            ],
        ),
        (
            "{profiles: {prefill: p, encode: e}, stageOrder: prefill-first}",
            vec![
                "prefill never runs, as there is no profile 'p'",
                "profile 'prefill' never runs, as it is of no stage",
                "profile 'encode' never runs, as it is of no stage",
            ],
        ),
    ];
    for (parameters, expected) in table {
        let built = build(&config(DISAGG, parameters)).unwrap();
        let notes: Vec<_> = built.notes.iter().filter(|note| note.contains("never runs")).collect();
        assert_eq!(notes.len(), expected.len(), "{parameters}: {notes:?}");
        for (note, text) in notes.iter().zip(expected) {
            assert!(note.contains(&format!("plugin '{DISAGG}': {text}")), "{note}");
        }
    }
}

#[test]
fn producers_of_decider_inputs_are_added() {
    for (handler, parameters) in [(DISAGG, "{}"), (PD, "{deciderPluginName: always-disagg-pd-decider}")] {
        let built = build(&config(handler, parameters)).unwrap();
        for plugin in [handler, "cached"] {
            let found = built.resolved.plugins.iter().find(|found| found.name == plugin).unwrap();
            let reads: Vec<_> = found.reads.iter().map(|data| data.producer.as_str()).collect();
            assert_eq!(reads, ["token-producer", "approx-prefix-cache-producer"], "{plugin}");
        }
        for producer in ["token-producer", "approx-prefix-cache-producer"] {
            assert!(built.resolved.stages.producers.contains(&producer.to_owned()));
        }
    }
}
