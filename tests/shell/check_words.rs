//! `usher check` in words: what a configuration does, known bad combinations, and what changes between two.

use std::path::{Path, PathBuf};

use serde_json::Value;
use usher::cli::check::{CheckArgs, Output, run_in};
use usher::settings::MemoryBudget;

use crate::check::{check, only};

/// Standard output on a terminal of so many columns, and the exit code.
fn run(width: usize, args: &CheckArgs, input: &str) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run_in(width, args, &mut input.as_bytes(), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn policies_fit_narrow_terminals() {
    for name in ["pd", "pd-topology", "rules", "single"] {
        let file = format!("deploy/capacity/{name}.yaml");
        let (code, out, _) = run(60, &args(&file, Output::Text), "");
        assert_eq!(code, 0, "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= 60), "{out}");
    }
}

fn args(file: &str, output: Output) -> CheckArgs {
    CheckArgs {
        files: vec![file.into()],
        output,
        allow_experimental_plugins: true,
        compare: None,
        endpoints_file: None,
        admin: None,
        memory_budget: MemoryBudget::Off,
    }
}

/// Rules of the findings of a configuration.
fn rules(text: &str) -> Vec<String> {
    let (code, out, err) = run(80, &args("-", Output::Json), text);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let report = only(&out);
    let found = report["findings"].as_array().unwrap();
    found.iter().map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_default_configuration_is_explained() {
    let (code, out, _) = check("deploy/config/default.yaml", "", Output::Text);
    assert_eq!(code, 0);
    let text = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "Would send a 2,000-token prompt to the one of all endpoints with the highest sum of 2 × queue-scorer + \
         2 × kv-cache-utilization-scorer + 3 × prefix-cache-scorer.",
        "Requests don't wait in Usher",
        "queue-scorer weighs 2 of 7, 29 %: The shorter an endpoint's waiting queue, the better",
        "max-score-picker: Picks the endpoints with the highest totals; equals in random order.",
        "(see docs/guide/prefix-and-pairs.md#which-scorer)",
    ] {
        assert!(text.contains(part), "{part} is not in {out}");
    }
}

#[test]
fn the_text_fits_terminals_of_60_80_and_100_columns() {
    for config in ["default", "pd-joint", "flow-control", "sticky-until-saturated"] {
        for width in [60, 80, 100] {
            let (code, out, _) = run(width, &args(&format!("deploy/config/{config}.yaml"), Output::Text), "");
            assert_eq!(code, 0);
            let long: Vec<&str> = out.lines().filter(|line| line.chars().count() > width).collect();
            assert!(long.is_empty(), "{width}: {long:#?}");
        }
    }
}

#[test]
fn errors_fit_terminals_and_are_one_line_elsewhere() {
    let text =
        format!("plugins:\n- {{type: queue-scorer, name: {}, tpye: {}}}\n", "n".repeat(70), "t".repeat(70));
    let (code, _, err) = run(60, &args("-", Output::Text), &text);
    assert_eq!(code, 1);
    let lines: Vec<&str> = err.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 60), "{err}");
    assert!(lines[0].starts_with("<stdin>:2:") && lines[1].starts_with("  "), "{err}");
    let (_, _, whole) = check("-", &text, Output::Text);
    assert!(whole.lines().next().is_some_and(|line| line.ends_with("(did you mean `type`?)")), "{whole}");
}

#[test]
fn only_bad_plugin_combinations_are_reported() {
    let profile = |plugins: &str, refs: &str| {
        format!("plugins: [{plugins}]\nschedulingProfiles: [{{name: main, plugins: [{refs}]}}]\n")
    };
    let of = |types: &[&str]| {
        let plugins: Vec<String> = types.iter().map(|name| format!("{{type: {name}}}")).collect();
        let refs: Vec<String> = types.iter().map(|name| format!("{{pluginRef: {name}}}")).collect();
        rules(&profile(&plugins.join(", "), &refs.join(", ")))
    };
    assert_eq!(of(&["queue-scorer", "prefix-cache-scorer"]), ["prefix-herding"]);
    assert_eq!(of(&["active-request-scorer", "prefix-cache-scorer"]), [""; 0]);
    assert_eq!(of(&["expected-latency-scorer"]), [""; 0]);
    assert_eq!(of(&["expected-latency-scorer", "queue-scorer"]), ["counted-twice"]);
    assert_eq!(of(&["queue-scorer", "random-picker"]), ["scores-ignored"]);
    assert_eq!(of(&["prefix-cache-affinity-filter"]), ["affinity-without-load"]);
    assert_eq!(of(&["token-load-scorer"]), ["producer-undeclared"]);
    let apart = "plugins: [{type: disagg-profile-handler}, {type: queue-scorer}]
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: queue-scorer}]}
- {name: decode, plugins: [{pluginRef: queue-scorer, weight: 0}]}
";
    let found = ["prefill-without-decider", "decode-without-role", "prefill-without-role", "weight-zero"];
    assert_eq!(rules(apart), found);
    let blind = "featureGates: [flowControl]
plugins: [{type: active-request-scorer}]
dataLayer: {injectDefaults: false}
";
    assert_eq!(rules(blind), ["saturation-without-metrics", "waiting-bytes-unbounded"]);
}

/// Exit code and differences of one configuration against another.
fn compare(old: &Path, new: &str, output: Output) -> (u8, String) {
    let args = CheckArgs { compare: Some(PathBuf::from(old)), ..args("-", output) };
    let (code, out, err) = run(80, &args, new);
    assert_eq!(err, "");
    (code, out)
}

#[test]
fn explicit_default_is_no_change() {
    let (code, out) = compare(Path::new("deploy/config/default.yaml"), "", Output::Json);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["comparison"]["changes"]), (0, &serde_json::json!([])), "{report:#}");
    // Twice the weights are the same weights, and a name is only a name.
    let same = "
plugins: [{type: queue-scorer, name: q}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer}]
schedulingProfiles:
- name: main
  plugins:
  - {pluginRef: q, weight: 4}
  - {pluginRef: kv-cache-utilization-scorer, weight: 4}
  - {pluginRef: prefix-cache-scorer, weight: 6}
";
    let (_, out) = compare(Path::new("deploy/config/default.yaml"), same, Output::Text);
    assert_eq!(out, "deploy/config/default.yaml → <stdin>: no change in behaviour\n");
}

#[test]
fn changes_of_plugins_weights_and_parameters_are_listed() {
    let new = "
plugins:
- {type: queue-scorer}
- {type: prefix-cache-scorer, parameters: {matchLengthWeight: 0.5}}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 3}
  - {pluginRef: prefix-cache-scorer, weight: 3}
";
    let (code, out) = compare(Path::new("deploy/config/default.yaml"), new, Output::Json);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    let changes = report["comparison"]["changes"].as_array().unwrap();
    let reported: Vec<String> = changes
        .iter()
        .map(|change| {
            let text = |key: &str| change[key].as_str().unwrap_or("").to_owned();
            format!(
                "{} {} {}: {} → {}",
                text("place"),
                text("change"),
                text("what"),
                text("old"),
                text("new")
            )
        })
        .collect();
    let expected = [
        "profile default removed scorer kv-cache-utilization-scorer: 2 of 7, 29 %",
        "profile default changed scorer queue-scorer: 2 of 7, 29 % → 3 of 6, 50 %",
        "profile default changed scorer prefix-cache-scorer: 3 of 7, 43 % → 3 of 6, 50 %",
        "plugin max-score-picker changed maxNumOfEndpoints: 1 → 3",
        "plugin prefix-cache-scorer changed matchLengthWeight: 0.0 → 0.5",
    ];
    assert_eq!(reported.len(), expected.len(), "{reported:#?}");
    for (reported, start) in reported.iter().zip(expected) {
        assert!(reported.starts_with(start), "{reported}, not {start}");
    }
}

#[test]
fn post_decision_plugin_is_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let with = "
plugins:
- {type: pd-profile-handler}
- {type: prefix-based-pd-decider}
- {type: prefill-header-handler}
- {type: queue-scorer}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: queue-scorer}]}
- {name: decode, plugins: [{pluginRef: queue-scorer}]}
";
    let old = folder.path().join("old.yaml");
    std::fs::write(&old, with).unwrap();
    let (_, out) = compare(&old, &with.replace("- {type: prefill-header-handler}\n", ""), Output::Text);
    assert!(out.contains("prefill-header-handler") && !out.contains("no change in behaviour"), "{out}");
}

#[test]
fn random_picks_do_not_count_as_wins() {
    let folder = tempfile::tempdir().unwrap();
    let endpoints = folder.path().join("endpoints.yaml");
    std::fs::write(
        &endpoints,
        "endpoints:\n- {name: a, address: 10.0.0.1, port: '1'}\n- {name: b, address: 10.0.0.2, port: '1'}\n",
    )
    .unwrap();
    for picker in ["random-picker", "weighted-random-picker"] {
        let text = format!(
            "plugins: [{{type: queue-scorer}}, {{type: {picker}}}]
schedulingProfiles: [{{name: main, plugins: [{{pluginRef: queue-scorer}}, {{pluginRef: {picker}}}]}}]
"
        );
        let args = CheckArgs { endpoints_file: Some(endpoints.clone()), ..args("-", Output::Text) };
        let (code, out, _) = run(400, &args, &text);
        assert_eq!(code, 0, "{out}");
        let busy = out.lines().find(|line| line.contains(" busy: ")).unwrap_or_else(|| panic!("{out}"));
        assert!(busy.contains("to any of 2 by chance (default/a, default/b)"), "{busy}");
    }
}

#[test]
fn only_two_configurations_are_compared() {
    let policy = Path::new("deploy/capacity/pd.yaml");
    let args = CheckArgs { compare: Some(policy.into()), ..args("-", Output::Text) };
    let (code, out, err) = run(80, &args, "");
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with("usher: --compare: deploy/capacity/pd.yaml is no EndpointPickerConfig"), "{err}");
}

#[test]
fn prompts_are_tried_on_idle_and_busy_endpoints() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("endpoints.yaml");
    std::fs::write(
        &file,
        "endpoints:\n- {name: a, address: 10.0.0.1, port: '8000'}\n- {name: b, address: 10.0.0.2, port: '8000'}\n",
    )
    .unwrap();
    for config in ["default", "expected-latency"] {
        let name = format!("deploy/config/{config}.yaml");
        let args = CheckArgs { endpoints_file: Some(file.clone()), ..args(&name, Output::Json) };
        let (code, out, err) = run(80, &args, "");
        assert_eq!((code, err.as_str()), (0, ""));
        let report = only(&out);
        let samples = report["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 4, "{samples:#?}");
        for sample in samples {
            let picks = sample["picks"][0]["endpoints"].as_array().unwrap();
            match sample["busy"].as_str() {
                None => assert_eq!(picks.len(), 2, "{config}: idle ones are equal: {sample:#}"),
                Some(busy) => assert!(picks.len() == 1 && picks[0] != busy, "{config}: {sample:#}"),
            }
        }
    }
}
