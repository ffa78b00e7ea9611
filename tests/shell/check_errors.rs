//! Errors that `usher check` reports, and their places.

use serde_json::{Value, json};
use usher::cli::check::{CheckArgs, Output};
use usher::settings::MemoryBudget;

use crate::check::{check, check_with, only, places};

#[test]
fn nested_errors_are_both_reported() {
    let text = "\
plugins:
- type: queue-scorer
- type: single-profile-handler
- name: other
  type: data-parallel-profile-handler
  parameters: {primaryPrt: 8000}
- {name: twice, type: max-score-picker}
- {name: twice, type: max-score-picker, parameters: {maxNumOfEndpoint: 2}}
";
    let (code, out, err) = check("-", text, Output::Text);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    let expected = [
        "<stdin>:4:3: multiple profile handlers found: 'single-profile-handler' and 'other'",
        "<stdin>:6:16: plugin 'other': unknown field 'primaryPrt'",
        "<stdin>:8:10: duplicate plugin name 'twice'",
        "<stdin>:8:54: plugin 'twice': unknown field 'maxNumOfEndpoint'",
    ];
    assert_eq!(places(&err), expected, "{err}");
}

#[test]
fn omitted_errors_are_mentioned() {
    let keys = |count: usize| -> String { (0..count).map(|number| format!("key{number}: 1\n")).collect() };
    let (_, _, err) = check("-", &keys(50), Output::Text);
    assert!(err.ends_with("\n50 errors\n"), "{err}");
    let (_, _, err) = check("-", &keys(51), Output::Text);
    let last =
        "\n<stdin>: there are more errors than the 50 that are shown (correct these first)\n51 errors\n";
    assert!(err.ends_with(last), "{err}");
    let (_, out, _) = check("-", &keys(200), Output::Json);
    let report = only(&out);
    let last = report["errors"].as_array().unwrap().last().unwrap();
    assert_eq!(last["line"], Value::Null, "{last}");
    assert_eq!(last["message"], "there are more errors than the 50 that are shown");
}

/// Width of a text on a terminal whose characters from U+2E80 on take two columns.
fn columns(text: &str) -> usize {
    text.chars().map(|char| if char >= '\u{2e80}' { 2 } else { 1 }).sum()
}

#[test]
fn carets_are_under_the_word_behind_wide_characters_and_tabs() {
    for name in ["模型", "🚀", "\"a\tb\"", "a"] {
        let text = format!("plugins:\n- {{name: {name}, tpye:\tqueue-scorer}}\n");
        let (code, _, err) = check("-", &text, Output::Text);
        assert_eq!(code, 1);
        let lines: Vec<&str> = err.lines().skip(1).take(2).collect();
        let [source, carets] = lines[..] else { panic!("{err}") };
        let (before, _) = source.split_once("tpye").unwrap();
        assert_eq!(carets.find('^'), Some(columns(before)), "{err}");
        assert!(carets.ends_with(" ^^^^"), "{err}");
    }
}

/// Exit code, standard output and standard error of a check of the built-in configuration with these endpoints.
fn with_endpoints(text: &str, output: Output) -> (u8, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("endpoints.yaml");
    std::fs::write(&file, text).unwrap();
    let args = CheckArgs {
        files: vec!["-".into()],
        output,
        allow_experimental_plugins: false,
        compare: None,
        endpoints_file: Some(file),
        admin: None,
        memory_budget: MemoryBudget::Off,
    };
    let (code, out, err) = check_with(&args, "");
    (code, out, err.replace(&format!("{}/", folder.path().display()), ""))
}

#[test]
fn errors_of_the_endpoints_to_try_have_places_and_carets() {
    let text = "\
endpoints:
- {name: a, address: 10.0.0.1, port: 80}
- {name: b, adress: 10.0.0.2, port: 80}
- {name: c, address: 10.0.0.3, port: none}
";
    let (code, out, err) = with_endpoints(text, Output::Text);
    assert_eq!(code, 1, "{err}");
    assert!(out.starts_with("<stdin> is empty"), "the configuration is valid: {out}");
    let expected = [
        "endpoints.yaml:3:3: endpoints[1] (b): `address` is missing ",
        "endpoints.yaml:3:13: endpoints[1] (b): unknown field `adress` (did you mean `address`?)",
        "endpoints.yaml:4:38: endpoints[2] (c): `port` is not in 1 to 65535 ",
    ];
    let errors: Vec<&str> = err.lines().filter(|line| line.starts_with("endpoints.yaml:")).collect();
    assert!(
        errors.len() == 3 && errors.iter().zip(expected).all(|(line, says)| line.starts_with(says)),
        "{err}"
    );
    assert!(err.contains("\n    |             ^^^^^^\n"), "{err}");
    assert!(err.ends_with("\n3 errors in 1 of 2 files\n"), "{err}");

    let (code, out, err) = with_endpoints(text, Output::Json);
    assert_eq!((code, err.as_str()), (1, ""));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["valid"], &report["files"][0]["valid"]), (&json!(false), &json!(true)));
    let lines: Vec<_> = (report["endpoints_file"]["errors"].as_array().unwrap().iter())
        .map(|error| error["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [3, 3, 4], "{report:#}");
}

#[test]
fn unknown_fields_of_the_endpoints_to_try_are_warnings() {
    let text = "endpoints:\n- {name: a, address: 10.0.0.1, port: 80, weight: 2}\n";
    let (code, out, err) = with_endpoints(text, Output::Text);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("default/a"), "prompts are tried on it: {out}");
    let says = "warning: endpoints.yaml:2:42: endpoints[0] (a): unknown field `weight`";
    assert!(err.starts_with(says), "{err}");
    let (code, out, _) = with_endpoints(text, Output::Json);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["valid"]), (0, &json!(true)));
    assert_eq!(report["endpoints_file"]["warnings"].as_array().unwrap().len(), 1, "{report:#}");
}

#[test]
fn unreadable_endpoints_to_try_are_named_in_the_report() {
    let args = CheckArgs {
        files: vec!["-".into()],
        output: Output::Json,
        allow_experimental_plugins: false,
        compare: None,
        endpoints_file: Some("does/not/exist.yaml".into()),
        admin: None,
        memory_budget: MemoryBudget::Off,
    };
    let (code, out, err) = check_with(&args, "");
    assert_eq!((code, err.as_str()), (2, ""));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["endpoints_file"]["file"], "does/not/exist.yaml");
    assert_eq!(report["endpoints_file"]["valid"], false);
}
