//! Errors that `usher check` tells, and their places.

use serde_json::Value;
use usher::cli::check::Output;

use crate::check::{check, only, places};

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
        "\n<stdin>: there are more errors than the 50 that are told (correct these first)\n51 errors\n";
    assert!(err.ends_with(last), "{err}");
    let (_, out, _) = check("-", &keys(200), Output::Json);
    let report = only(&out);
    let last = report["errors"].as_array().unwrap().last().unwrap();
    assert_eq!(last["line"], Value::Null, "{last}");
    assert_eq!(last["message"], "there are more errors than the 50 that are told");
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
